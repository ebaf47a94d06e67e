"""`kvsim search`: the smallest setting or the largest load that meets the SLO, with its bracket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kvsim.cli.common import Command, Hardware, Json, Model, Progress, Set, emit_json, show

if TYPE_CHECKING:
    from kvsim.study.search import Found


def search(
    scenario: str | None = None,
    /,
    *,
    key: Annotated[list[str] | None, Parameter(negative="")] = None,
    from_: Annotated[float | None, Parameter(name="--from")] = None,
    to: float | None = None,
    smallest: bool = False,
    tolerance: float = 0.05,
    replications: int = 8,
    cluster: str | None = None,
    workers: int = 2,
    set_: Set = None,
    hardware: Hardware = None,
    model: Model = None,
    command: Command = None,
    output: Annotated[str | None, Parameter(name=["--output", "-o"])] = None,
    json: Json = False,
) -> int:
    """Find the largest load (or smallest size) that meets the SLO; exit 1 if none does.

    Parameters
    ----------
    scenario
        A scenario file or a bundled name, with an `slo:` block.
    key
        What to search; by default the rate of the workload. engine.hicache.ratio, hardware.host_ram and others with --smallest.
        Several as key=low..high (repeatable): the cheapest combination that meets the SLO (Optuna).
    from_
        Where to start; by default a hundredth of the scenario's value (a load), or 0.
    to
        Where to stop; by default four times the scenario's value (a load).
    smallest
        The SLO is met above the answer (a size), not below it (a load).
    tolerance
        End when the bracket is this narrow, relative to its value.
    replications
        At most so many per value; they are added only where one does not decide.
    cluster
        Run on a Dask cluster: an address, or local:N.
    output
        Keep results in this folder; an interrupted search goes on from there.
    """
    from kvsim.cli.study_common import interrupted, scenario_of
    from kvsim.study.executor import cluster_executor
    from kvsim.study.point import plain_scenario
    from kvsim.study.search import is_whole, load_key
    from kvsim.study.search import search as run
    from kvsim.study.store import Store

    base = plain_scenario(scenario_of(scenario, set_, hardware, model, command))
    if key is not None and (len(key) > 1 or "=" in key[0]):
        return _several(base, key, output, json)
    chosen = key[0] if key else load_key(base)
    low, high = _range(base, chosen, from_, to, smallest)
    progress = Progress("runs", None)
    with interrupted(output), cluster_executor(cluster) as executor:
        try:
            found = run(
                base,
                chosen,
                low,
                high,
                largest=not smallest,
                tolerance=tolerance,
                whole=is_whole(chosen),
                workers=workers,
                executor=executor,
                store=Store(output) if output else None,
                progress=progress,
                most_replications=replications,
            )
        finally:
            progress.close()
    if json:
        emit_json(_data(found))
    else:
        _print(found)
    return 0 if found.meets is not None else 1


def _several(base: dict[str, Any], keys: list[str], output: str | None, json: bool) -> int:
    """Search several settings at once and print the cheapest point that meets the SLO."""
    from kvsim.study.design import parse_range
    from kvsim.study.search import cheapest
    from kvsim.study.store import Store

    ranges = dict(parse_range(text) for text in keys)
    progress = Progress("runs", None)
    try:
        best, rows = cheapest(base, ranges, store=Store(output) if output else None, progress=progress)
    finally:
        progress.close()
    good = sum(1 for row in rows if row["spare"] >= 0)
    words = "no point tried meets the SLO" if best is None else ", ".join(f"{key}={value:g}" for key, value in best.items())
    text = f"{words}: the cheapest of {good} points that meet the SLO, of {len(rows)} tried" if best else f"{words} ({len(rows)} tried)"
    if json:
        emit_json({"best": best, "sentence": text, "trials": rows})
    else:
        from rich.text import Text

        show(Text(text, style="bold"))
    return 0 if best else 1


def _range(base: dict[str, Any], key: str, low: float | None, high: float | None, smallest: bool) -> tuple[float, float]:
    from kvsim.errors import ConfigError
    from kvsim.study.search import is_whole

    at: Any = base
    for step in key.split("."):
        at = at.get(step) if isinstance(at, dict) else None
    if at is None and key == "workload.rate_scale":
        at = 1.0
    if (low is None or high is None) and (isinstance(at, bool) or not isinstance(at, (int, float))):
        raise ConfigError(f"search of {key}: the scenario gives it no number to start from; give --from and --to")
    if low is None:
        low = 0.0 if smallest else max(1.0, round(float(at) / 100)) if is_whole(key) else float(at) / 100
    return low, float(at) * 4 if high is None else high


def _data(found: Found) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "key": found.key,
        "largest": found.largest,
        "wanted": found.wanted,
        "meets": found.meets,
        "fails": found.fails,
        "unsure": found.unsure,
        "sentence": found.sentence(),
        "probes": [asdict(probe) for probe in found.probes],
    }


def _print(found: Found) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(pad_edge=False)
    for name in (found.key, "attainment", "replications", "verdict"):
        table.add_column(name, justify="right")
    for probe in found.probes:
        share = "-" if probe.attainment is None else _share(probe.attainment, probe.half_width or 0.0)
        table.add_row(f"{probe.value:g}", share, str(probe.replications), probe.reason or probe.verdict)
    tail = (
        f"Wanted: {100 * found.wanted:g} % of requests within the SLO. Same random numbers at every value; ± are 95 % half-widths; a value "
    )
    show(
        table,
        Text(found.sentence(), style="bold"),
        Text(tail + "is met or missed only if 1.4 times its interval lies on one side.", style="dim"),
    )


def _share(mean: float, half: float) -> str:
    """Return a share of requests with its interval, which ends at 0 and 100 %."""
    low, high = max(0.0, mean - half), min(1.0, mean + half)
    return f"{100 * mean:.1f} [{100 * low:.1f}, {100 * high:.1f}] %"
