"""`kvsim run`: simulate a scenario and print its statistics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kvsim.cli.common import Command, Hardware, Json, Model, Set, is_run_directory, note, resolve_scenario

if TYPE_CHECKING:
    from kvsim.config.resolved import Resolved


def run(
    scenario: str | None = None,
    /,
    *,
    set_: Set = None,
    hardware: Hardware = None,
    model: Model = None,
    command: Command = None,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    output: Annotated[str | None, Parameter(name=["--output", "-o"])] = None,
    report: str | None = None,
    timeline: str | None = None,
    metrics: str | None = None,
    bench_json: str | None = None,
    figures: str | None = None,
    misses: bool = False,
    json: Json = False,
) -> int:
    """Simulate a scenario and print its statistics; exit 1 if its SLO is missed.

    Parameters
    ----------
    scenario
        A scenario file, a bundled name (`kvsim list scenarios`), or a run directory to repeat.
    from_
        An HTML report made by kvsim: make its numbers again.
    output
        Write the run directory: manifest, resolved scenario, tables, summary.
    report
        Write a self-contained HTML report.
    timeline
        Write a Perfetto timeline (.pftrace).
    metrics
        Write OpenMetrics text with the engine's own metric names.
    bench_json
        Write a result file with the keys of the engine's benchmark.
    figures
        Write the figures as SVG and PNG into a folder.
    misses
        Say why prompt tokens missed the cache.
    """
    from kvsim.cli.outcome import finish_run

    resolved = _scenario_of(scenario, from_, set_, hardware, model, command)
    return finish_run(
        resolved,
        output=output,
        report=report,
        timeline=timeline,
        metrics=metrics,
        bench_json=bench_json,
        figures=figures,
        misses=misses,
        json=json,
    )


def _scenario_of(
    scenario: str | None, from_: str | None, set_: list[str] | None, hardware: str | None, model: str | None, command: str | None
) -> Resolved:
    if from_ is not None:
        from kvsim.report.embed import read_block

        block = read_block(Path(from_))
        if "study" in block:
            note(f"{from_} is the report of a sweep: this runs its scenario as it is; kvsim sweep --from runs its points")
        return _resolve_data(block["resolved"], set_, from_)
    if scenario is not None and is_run_directory(scenario):
        return resolve_scenario(str(Path(scenario) / "scenario.yaml"), set_=set_)
    return resolve_scenario(scenario, set_=set_, hardware=hardware, model=model, command=command)


def _resolve_data(data: dict[str, Any], set_: list[str] | None, origin: str) -> Resolved:
    from kvsim.config.load import load_data
    from kvsim.config.resolve import resolve
    from kvsim.cost.resolve import with_cost_notes

    return with_cost_notes(resolve(load_data(data, list(set_ or ()), origin)))
