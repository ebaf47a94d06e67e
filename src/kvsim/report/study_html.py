"""The report of a study as one HTML file, and reading a study back from it or from study.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import ConfigError, KvsimError
from kvsim.record.store import provenance_of
from kvsim.report.embed import read_block, script_safe
from kvsim.report.figures import memory_pictures
from kvsim.report.html import Page, Section, as_yaml, limits_section, memory_section, write_page
from kvsim.report.names import title_of
from kvsim.report.study_figures import axis_title, name_of, study_figures
from kvsim.report.style import DataTable, number

if TYPE_CHECKING:
    from kvsim.config.resolved import Resolved
    from kvsim.study.sweep import Study

FILE = "study.json"


def study_data(study: Study, base: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a study as plain data: what study.json and the block of its report hold.

    ``base``: the resolved scenario whose settings were varied.
    """
    results = [
        {
            "point": result.point,
            "replication": result.replication,
            "digest": result.digest,
            "summary": result.summary,
            "capacity": result.capacity,
            "reason": result.reason,
        }
        for result in study.results
    ]
    return {"scenario": study.scenario, "axes": study.axes, "base": base, "results": results}


def study_of(data: dict[str, Any], origin: str) -> Study:
    """Return the study in plain data. Raises ConfigError naming ``origin``."""
    from kvsim.study.sweep import Result, Study

    try:
        results = [Result(**row) for row in data["results"]]
        return Study(data["scenario"], data["axes"], results)
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{origin}: holds no study: {error}") from None


def write_study(study: Study, folder: str | Path, base: dict[str, Any] | None = None) -> Path:
    """Write study.json into a folder and return it."""
    target = Path(folder) / FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(study_data(study, base), allow_nan=False, default=str) + "\n", "utf-8")
    return target


def read_study(source: str | Path) -> tuple[Study, dict[str, Any] | None]:
    """Return the study of a folder with study.json, of such a file, or of a study's report, and its base scenario.

    Raises ConfigError if there is none.
    """
    path = Path(source)
    path = path / FILE if path.is_dir() else path
    if path.suffix in (".html", ".htm"):
        block = read_block(path)
        return study_of(block.get("study") or {}, str(path)), block["resolved"] or None
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{source}: neither a run directory (manifest.json) nor a study ({FILE})") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: holds no study")
    return study_of(data, str(path)), data.get("base")


def write_study_report(study: Study, path: str | Path, base: dict[str, Any] | None = None, sentence: str = "") -> Path:
    """Write the report of a study and return its path.

    ``base``: the resolved scenario whose settings were varied; ``sentence``: the answer in words (else the advice on
    ratios).
    """
    return write_page(study_page(study, base, sentence), path)


def study_page(study: Study, base: dict[str, Any] | None = None, sentence: str = "") -> Page:
    """Return the page of a study."""
    resolved = _resolved(study, base)
    figures = study_figures(study)
    groups = (
        ("curves", "What the settings change", "curve-"),
        ("differences", "Paired differences", "differences"),
        ("cost", "What it costs", "pareto"),
    )
    sections = [Section("points", "Every point", tables=(("Results", points_table(study)),))]
    if resolved is not None:
        sections.insert(0, memory_section(resolved, memory_pictures(resolved.capacity)))
    for key, title, start in groups:
        chosen = tuple(figure for figure in figures if figure.key.startswith(start))
        if chosen:
            sections.insert(len(sections) - 1, Section(key, title, figures=chosen))
    data = resolved.data if resolved is not None else {}
    versions = {**provenance_of(data), "runs": len(study.results)} if data else {}
    if resolved is not None:
        sections.append(limits_section(resolved))
    return Page(
        title=f"{title_of(data)}: {axis_title(study)}",
        verdict=sentence or _advice(study),
        sections=sections,
        block=script_safe({"resolved": data, "manifest": versions, "study": study_data(study, data or None)}),
        scenario=as_yaml(data) if data else "",
        versions=tuple((key, str(value)) for key, value in versions.items()),
        again="kvsim sweep --from" if data else "",
    )


def points_table(study: Study) -> DataTable:
    """Return one row per point and replication with the headline figures, infeasible ones with their reason."""
    from kvsim.study.sweep import headline

    rows = []
    for result in study.results:
        figures = headline(result)
        rate = figures.get("hit_rate")
        rows.append(
            (
                name_of(result.point),
                str(result.replication),
                f"{figures['host_bytes_total'] / 1e9:,.0f}",
                "-" if rate is None else f"{100 * rate:.1f}",
                number(figures.get("ttft_mean_s")),
                number(figures.get("ttft_p99_s")),
                number(figures.get("output_tokens_per_s")),
                "yes" if figures.get("overloaded") else "no",
                result.reason or "yes",
            )
        )
    headers = (
        axis_title(study),
        "replication",
        "host RAM (GB)",
        "hit rate (%)",
        "TTFT mean (s)",
        "TTFT p99 (s)",
        "output tok/s",
        "overloaded",
        "feasible",
    )
    return DataTable(headers, tuple(rows))


def _resolved(study: Study, base: dict[str, Any] | None) -> Resolved | None:
    """Return the study's scenario, resolved: the given data, else what can be found under its name, else None."""
    from kvsim.api import load, resolve
    from kvsim.config.load import load_data

    try:
        found: Resolved = resolve(load_data(base, [], "study") if base else load(study.scenario))
    except KvsimError:
        return None
    return found


def _advice(study: Study) -> str:
    if "engine.hicache.ratio" in study.axes:
        from kvsim.study.advice import ratio_advice

        return ratio_advice(study)
    feasible = sum(1 for result in study.results if result.summary is not None)
    return f"{len(study.results)} runs over {axis_title(study)}: {feasible} feasible."
