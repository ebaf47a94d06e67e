"""`kvsim calibrate`: measurements of a server in, constants of the time model out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kvsim.cli.common import Hardware, Json, Model, Set, emit_json, emit_wrapped, note, resolve_scenario

if TYPE_CHECKING:
    from kvsim.study.calibrate import Calibration, Errors


def calibrate(
    scenario: str | None = None,
    /,
    *data: str,
    output: Annotated[str | None, Parameter(name=["--output", "-o"])] = None,
    constants: str | None = None,
    probe: str | None = None,
    residuals: Annotated[bool, Parameter(negative="")] = False,
    set_: Set = None,
    hardware: Hardware = None,
    model: Model = None,
    json: Json = False,
) -> int:
    """Fit the constants of the step-time model to measurements of a server, and say what the data cannot tell.

    Reads a CSV of steps (`kind,new_tokens,cached_tokens,batch,sum_context,latency_ms`), SGLang server logs,
    bench_serving and vLLM benchmark results, Prometheus samples, and results of the probe. The constants are those of
    `costs: {kind: analytic}`; the scenario says which machine, model and engine was measured.

    Parameters
    ----------
    scenario
        A scenario file or bundled name that describes the measured server (with --hardware and --model: the first data
        file).
    data
        Files of measurements.
    output
        Write the overlay: a YAML file that a scenario names under `include`.
    constants
        Fit exactly these (comma-separated), not those the data determines best.
    probe
        Write a script that sends 20 requests to a server and prints their times as JSON; nothing else is done.
    residuals
        Print every measurement with its error.
    """
    from kvsim.errors import ConfigError

    if probe is not None:
        return _write_probe(Path(probe))
    files = [Path(name) for name in ([scenario, *data] if hardware is not None and scenario is not None else data)]
    if not files:
        raise ConfigError("calibrate: name the files of measurements after the scenario, or --probe FILE to get a script that makes them")
    from kvsim.cost.resolve import analytic_inputs_of, chunk_of
    from kvsim.study.calibrate import calibrate as fit
    from kvsim.study.calibrate import overlay_text
    from kvsim.study.calibrate_read import read_observations

    resolved = resolve_scenario(None if hardware else scenario, set_=set_, hardware=hardware, model=model)
    chunk = chunk_of(resolved)
    found = read_observations(files, chunk=chunk)
    names = [name.strip() for name in constants.split(",")] if constants else None
    result = fit(analytic_inputs_of(resolved), found.rows, chunk=chunk, constants=names)
    if output is not None:
        Path(output).write_text(overlay_text(result, [path.name for path in files], scenario or f"{hardware} {model}"), encoding="utf-8")
        note(f"wrote {output}: put `include: [{output}]` into the scenario")
    if json:
        emit_json(_as_data(result, dict(found.skipped)))
    else:
        _show(result, dict(found.skipped), residuals)
    return 0


def _write_probe(path: Path) -> int:
    from kvsim.study import calibrate_probe

    source = Path(calibrate_probe.__file__).read_text(encoding="utf-8")
    path.write_text(source, encoding="utf-8")
    note(f"wrote {path}: run `python {path} http://HOST:PORT --model NAME > probe.json`, then `kvsim calibrate SCENARIO probe.json`")
    return 0


def _show(result: Calibration, skipped: dict[str, int], residuals: bool) -> None:
    from rich.table import Table

    from kvsim.cli.common import show

    table = Table(title="Fitted constants (intervals hold for all of them together, 99 %)", title_justify="left")
    for column in ("constant", "default", "fitted", "interval", ""):
        table.add_column(column, justify="left" if column in {"constant", ""} else "right")
    for c in result.constants:
        remark = "at its bound" if c.at_bound else "moved" if c.moved else "as before"
        table.add_row(c.name, f"{c.default:.4g}", f"{c.value:.4g}", f"{c.low:.4g} .. {c.high:.4g}", remark)
    show(table)
    emit_wrapped(f"errors before  {_errors(result.before)}")
    emit_wrapped(f"errors fitted  {_errors(result.after)}")
    held = _errors(result.held_out_all) if result.held_out_all else "not available: one group of measurements only"
    emit_wrapped(f"held out       {held}  (leave one group out: {len(result.held_out)} groups)", " " * 15)
    for group, errors in result.held_out.items():
        emit_wrapped(f"  {group}: {_errors(errors)}")
    for name, why in result.untold.items():
        emit_wrapped(f"not told by this data: {name} {why}")
    for reason, count in skipped.items():
        emit_wrapped(f"left out: {count} x {reason}")
    for warning in result.warnings:
        note(f"note: {warning}")
    if residuals:
        for row, error in result.residuals:
            emit_wrapped(f"{error:+7.1%}  {row.seconds * 1e3:10.3f} ms  {row.group}  {row.source}")


def _errors(errors: Errors) -> str:
    return f"median {errors.median:.1%}, P95 {errors.p95:.1%}, worst {errors.worst:.1%} (n = {errors.count})"


def _as_data(result: Calibration, skipped: dict[str, int]) -> dict[str, Any]:
    from dataclasses import asdict

    data = asdict(result)
    data["residuals"] = [{**asdict(row), "error": error} for row, error in result.residuals]
    return {"constants": data.pop("constants"), "overrides": result.overrides(), **data, "skipped": skipped}
