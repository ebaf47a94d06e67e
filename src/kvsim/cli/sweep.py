"""`kvsim sweep`: a grid of settings with common random numbers, one row per point."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kvsim.cli.common import Command, Hardware, Json, Model, Progress, Set, emit_json, show

if TYPE_CHECKING:
    from kvsim.study.fleet import Fleet
    from kvsim.study.sweep import Result, Study


def sweep(
    scenario: str | None = None,
    /,
    *,
    axis: Annotated[list[str] | None, Parameter(negative="")] = None,
    set_: Set = None,
    hardware: Hardware = None,
    model: Model = None,
    command: Command = None,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    replications: int | None = None,
    precision: float | None = None,
    points: int | None = None,
    budget: float | None = None,
    workers: int = 2,
    cluster: str | None = None,
    output: Annotated[str | None, Parameter(name=["--output", "-o"])] = None,
    report: str | None = None,
    json: Json = False,
) -> int:
    """Simulate a grid of settings and print one row per point; infeasible points are marked.

    Parameters
    ----------
    scenario
        A scenario file or a bundled name; its `study:` block gives the axes if --axis does not.
    axis
        key=v1,v2,... (repeatable; key1+key2=[a,b],[c,d] varies both together; key=low..high is a range, see --points).
    from_
        An HTML report made by a sweep: make the numbers of its points again.
    replications
        Repeat every point with so many seeds; intervals are t intervals over them.
    precision
        Add replications to each point until the half-width of mean TTFT is this share of it (0.05), or say why not.
    points
        So many points of a Latin hypercube over the axes given as ranges.
    budget
        Money per hour: compare fleets of that cost, more machines against more RAM each (needs the scenario's `cost:`).
    workers
        Local processes.
    cluster
        Run on a Dask cluster: an address, or local:N.
    output
        Keep results in this folder; an interrupted sweep goes on from there.
    report
        Write a self-contained HTML report.
    """
    from kvsim.cli.study_common import interrupted, scenario_of
    from kvsim.report.extras import require
    from kvsim.study.design import chosen_points
    from kvsim.study.executor import cluster_executor
    from kvsim.study.store import Store
    from kvsim.study.sweep import headline
    from kvsim.study.sweep import sweep as run

    require(report=report)
    axes: dict[str, list[Any]] | None
    chosen: list[Any] | None
    if from_ is not None:
        base, axes, chosen, repeats = _study_again(from_, set_)
        replications = replications or repeats
    else:
        base = scenario_of(scenario, set_, hardware, model, command)
        axes, chosen = chosen_points(axis, points, base.run.seed)
    affordable = _fleets(base, budget, axis) if budget is not None else []
    if affordable:
        chosen = [fleet.point for fleet in affordable]
        axes = {key: list(dict.fromkeys(point[key] for point in chosen)) for key in chosen[0]}
    progress = Progress("runs done", None if precision else _runs(base, axes, chosen, replications))
    with interrupted(output), cluster_executor(cluster) as executor:
        try:
            study = run(
                base,
                axes,
                points=chosen,
                replications=replications,
                precision=precision,
                workers=workers,
                executor=executor,
                store=Store(output) if output else None,
                progress=progress,
            )
        finally:
            progress.close()
    study.scenario = scenario or from_ or "scenario"
    if output or report:
        _keep(study, base, output, report)
    if json:
        emit_json(
            {
                "axes": study.axes,
                "advice": _advice(study, affordable),
                "fleets": [asdict(fleet) for fleet in affordable],
                "precision": study.precision_notes,
                "estimates": study.estimates(),
                "points": [{**r.point, "replication": r.replication, **headline(r), "summary": r.summary} for r in study.results],
            }
        )
    else:
        _print(study, affordable)
    return 0


def _study_again(report: str, set_: list[str] | None) -> tuple[Any, dict[str, list[Any]], list[Any], int]:
    """Return base scenario, axes, points and replications of the sweep that a report was made from."""
    from kvsim.config.load import load_data
    from kvsim.errors import ConfigError
    from kvsim.report.study_html import read_study

    study, data = read_study(report)
    if data is None:
        raise ConfigError(f"{report}: holds the results of a sweep, and not the scenario they were made from")
    found = list(study.points())
    return load_data(data, list(set_ or ()), report), study.axes, [point for point, _ in found], max(len(results) for _, results in found)


def _keep(study: Study, base: Any, output: str | None, report: str | None) -> None:
    """Write study.json into the output folder and the HTML report, as asked."""
    from kvsim.config.resolve import resolve
    from kvsim.report.study_html import write_study, write_study_report

    data = resolve(base).data
    if output:
        write_study(study, output, data)
    if report:
        write_study_report(study, report, data)


def _runs(base: Any, axes: dict[str, list[Any]] | None, points: list[Any] | None, replications: int | None) -> int:
    """Return how many runs a sweep has."""
    from kvsim.study.design import grid

    count = len(points) if points is not None else len(grid(axes if axes is not None else base.study.axes))
    return count * int(replications or base.run.replications)


def _fleets(base: Any, budget: float, axis: list[str] | None) -> list[Fleet]:
    from kvsim.errors import ConfigError
    from kvsim.study.fleet import fleets
    from kvsim.study.point import plain_scenario

    if axis:
        raise ConfigError("--budget chooses the points itself: leave --axis out")
    return fleets(plain_scenario(base), budget)


def _advice(study: Study, affordable: list[Fleet]) -> str | None:
    if affordable:
        from kvsim.study.fleet import fleet_sentence

        return fleet_sentence(study, affordable)
    from kvsim.study.advice import ratio_advice

    return ratio_advice(study) if list(study.axes) == ["engine.hicache.ratio"] else None


def _print(study: Study, affordable: list[Fleet]) -> None:
    from rich.text import Text

    from kvsim.report.study_table import sweep_table

    advice = _advice(study, affordable)
    parts: list[Any] = [sweep_table(study)]
    if any(row["replications"] > 1 for row in study.estimates()):
        parts.append(interval_table(study))
    if advice:
        parts.append(Text(advice, style="bold"))
    parts.append(
        Text(
            "All points use the same random numbers, so their differences are paired. " + _notes(study.results, study.precision_notes),
            style="dim",
        )
    )
    show(*parts)


def interval_table(study: Study) -> Any:
    """Return means over replications with their 95 % t intervals."""
    from rich.table import Table

    table = Table(title="means over replications ± 95 %", title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    shown = {
        "ttft_mean_s": "TTFT mean s",
        "ttft_p99_s": "TTFT p99 s",
        "tpot_mean_s": "TPOT s",
        "hit_rate": "hit rate",
        "attainment": "within SLO",
    }
    table.add_column("point", overflow="fold")
    for title in ("runs", *shown.values()):
        table.add_column(title, justify="right")
    for row in study.estimates():
        table.add_row(_label(row["point"]), str(row["replications"]), *(_interval(row["figures"].get(name)) for name in shown))
    return table


def _label(point: dict[str, Any]) -> str:
    """Return a point in words: the last part of each key and its value."""
    return ", ".join(f"{key.rpartition('.')[2]} {'off' if value is False else value}" for key, value in point.items()) or "as is"


def _interval(found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    if found["half_width"] is None:
        return f"{found['mean']:.3g}"
    cut = found["low"] > found["mean"] - found["half_width"] or found["high"] < found["mean"] + found["half_width"]
    tail = f" [{found['low']:.2g}, {found['high']:.2g}]" if cut else f" ± {found['half_width']:.2g}"
    return f"{found['mean']:.3g}{tail}"


def _notes(results: list[Result], precision: list[str]) -> str:
    reasons = dict.fromkeys(f"{_label(result.point)}: {result.reason}" for result in results if result.summary is None)
    assumptions = dict.fromkeys(text for result in results for text in result.capacity.get("assumptions", ()))
    overloaded = [result.point for result in results if result.summary and result.summary["overload"]["overloaded"]]
    text = f"Infeasible: {'; '.join(reasons)}. " if reasons else ""
    text += " ".join(f"{line}." for line in precision) + (" " if precision else "")
    if overloaded:
        text += "Points marked 'overloaded' have no steady state: their waits grow with the length of the run. "
    if any(result.summary and result.summary["overload"].get("state") == "near the limit" for result in results):
        text += "'near limit': fully busy with a queue for much of the run; waits swing widely and hold for these arrivals only. "
    return text + (f"Assumptions: {'; '.join(assumptions)}." if assumptions else "")
