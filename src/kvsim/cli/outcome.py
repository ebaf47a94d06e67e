"""What `run` and `replay` do with a resolved scenario: simulate, measure, write artefacts, print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.cli.common import Progress, emit_json, note, show

if TYPE_CHECKING:
    from kvsim.config.resolved import Resolved
    from kvsim.study.sweep import Study


def finish_run(
    resolved: Resolved,
    *,
    output: str | None = None,
    report: str | None = None,
    timeline: str | None = None,
    metrics: str | None = None,
    bench_json: str | None = None,
    figures: str | None = None,
    misses: bool = False,
    json: bool = False,
) -> int:
    """Simulate, write what was asked for, print the summary; return 1 if the SLO was missed, else 0."""
    from kvsim.measure.summary import summarise
    from kvsim.report.extras import require
    from kvsim.sim.simulate import simulate

    require(report=report, timeline=timeline, metrics=metrics, figures=figures)
    for warning in resolved.warnings:
        note(f"warning: {warning}")
    progress = Progress("requests ended", None)
    observer = _miss_observer(resolved) if misses else None
    try:
        recording = simulate(resolved, progress=progress, **({"observer": observer} if observer else {}))
    finally:
        progress.close()
    for remark in recording.manifest.get("notes", ()):
        note(f"note: {remark}")
    summary = summarise(recording)
    if observer is not None:
        summary["misses"] = observer.summary()
    if output is not None:
        from kvsim.record.store import write_run

        write_run(recording, summary, output)
    _artefacts(recording, summary, resolved, report=report, timeline=timeline, metrics=metrics, bench_json=bench_json, figures=figures)
    repeated = _replications(resolved)
    if json:
        more = {} if repeated is None else {"replications": {**repeated.estimates()[0], "notes": repeated.precision_notes}}
        emit_json({"scenario_digest": resolved.digest, **summary, **more, "assumptions": list(resolved.capacity.assumptions)})
    else:
        from kvsim.report.terminal import run_tables

        show(*run_tables(summary, resolved))
        if repeated is not None:
            from kvsim.cli.sweep import interval_table

            show(interval_table(repeated), *repeated.precision_notes)
    return 1 if summary["slo"] is not None and not summary["slo"]["met"] else 0


def _replications(resolved: Resolved) -> Study | None:
    """Return the scenario repeated with other seeds if ``run.replications`` or ``run.precision`` ask for it."""
    run = resolved.scenario.run
    if run.replications == 1 and run.precision is None:
        return None
    from kvsim.study.sweep import sweep

    progress = Progress("replications", None if run.precision else run.replications)
    try:
        return sweep(resolved.scenario, {}, workers=2, progress=progress)
    finally:
        progress.close()


def _miss_observer(resolved: Resolved) -> Any:
    from kvsim.measure.misses import MissObserver

    return MissObserver(resolved)


def _artefacts(recording: Any, summary: dict[str, Any], resolved: Resolved, **paths: str | None) -> None:
    """Write the views on a recording that were asked for; each lives in report/."""
    if paths["report"]:
        from kvsim.report.html import write_report

        write_report(recording, summary, resolved, paths["report"])
    if paths["timeline"]:
        from kvsim.report.perfetto import write_timeline

        write_timeline(recording, paths["timeline"])
    if paths["metrics"]:
        from kvsim.report.openmetrics import write_metrics

        write_metrics(recording, paths["metrics"])
    if paths["bench_json"]:
        from kvsim.report.bench import write_bench_json

        write_bench_json(recording, summary, paths["bench_json"])
    if paths["figures"]:
        from kvsim.report.images import write_figures

        write_figures(recording, summary, resolved, paths["figures"])
