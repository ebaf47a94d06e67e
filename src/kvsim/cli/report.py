"""`kvsim report`: the HTML report of something that was simulated before."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kvsim.cli.common import Json, emit, emit_json, is_run_directory


def report(
    source: str,
    /,
    *,
    output: Annotated[str | None, Parameter(name=["--output", "-o"])] = None,
    figures: str | None = None,
    timeline: str | None = None,
    metrics: str | None = None,
    bench_json: str | None = None,
    json: Json = False,
) -> int:
    """Make the HTML report of a run directory or a study, without simulating again.

    Parameters
    ----------
    source
        A folder that `kvsim run -o` or `kvsim sweep -o` wrote, or a study's JSON file.
    output
        The HTML file; by default report.html in the folder.
    figures
        Write the figures as SVG and PNG into a folder.
    timeline
        Write a Perfetto timeline (.pftrace).
    metrics
        Write OpenMetrics text with the engine's own metric names.
    bench_json
        Write a result file with the keys of the engine's benchmark.
    """
    from kvsim.errors import ConfigError

    if is_run_directory(source):
        files = _report_run(Path(source), output, figures, timeline, metrics, bench_json)
    else:
        if timeline or metrics or bench_json:
            raise ConfigError(f"{source}: --timeline, --metrics and --bench-json need a run directory")
        files = _report_study(Path(source), output, figures)
    if json:
        emit_json({"files": [str(file) for file in files]})
    else:
        for file in files:
            emit(str(file))
    return 0


def _report_run(
    folder: Path, output: str | None, figures: str | None, timeline: str | None, metrics: str | None, bench: str | None
) -> list[Path]:
    from kvsim.config.load import load_data
    from kvsim.config.resolve import resolve
    from kvsim.cost.resolve import with_cost_notes
    from kvsim.record.store import read_run
    from kvsim.report.bench import write_bench_json
    from kvsim.report.html import write_report
    from kvsim.report.images import write_figures
    from kvsim.report.openmetrics import write_metrics
    from kvsim.report.perfetto import write_timeline

    recording, summary = read_run(folder)
    resolved = with_cost_notes(resolve(load_data(recording.resolved, [], str(folder / "scenario.yaml"))))
    files = [write_report(recording, summary, resolved, output or folder / "report.html")]
    if figures:
        files += write_figures(recording, summary, resolved, figures)
    if timeline:
        files.append(write_timeline(recording, timeline))
    if metrics:
        files.append(write_metrics(recording, metrics, resolved.capacity))
    if bench:
        files.append(write_bench_json(recording, summary, bench))
    return files


def _report_study(source: Path, output: str | None, figures: str | None) -> list[Path]:
    from kvsim.report.images import save
    from kvsim.report.study_figures import study_figures
    from kvsim.report.study_html import read_study, write_study_report

    study, base = read_study(source)
    target = Path(output) if output else (source / "report.html" if source.is_dir() else source.with_suffix(".html"))
    files = [write_study_report(study, target, base)]
    return files + (save(study_figures(study), figures) if figures else [])
