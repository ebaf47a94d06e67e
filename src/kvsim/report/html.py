"""The report: one HTML file with everything in it, that opens offline years later.

Charts are Vega-Lite specifications drawn by a runtime inlined once; every chart has its table. Everything that comes
from a trace or scenario is escaped: in HTML by the template, in scripts by ``script_safe``. The page forbids itself any
network access (Content-Security-Policy).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import ConfigError, MissingExtra
from kvsim.report.embed import block, script_safe
from kvsim.report.figures import memory_pictures, run_figures
from kvsim.report.limits import NOT_MODELLED
from kvsim.report.names import title_of
from kvsim.report.style import DataTable, Figure
from kvsim.report.tables import missed, not_served, slowest, summary_rows
from kvsim.report.terminal import verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.config.resolved import Resolved
    from kvsim.record.recording import Recording


@dataclass
class Section:
    """One part of a page: a heading, words, figures, tables."""

    key: str
    title: str
    text: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[tuple[str, DataTable], ...] = ()


@dataclass
class Page:
    """What a page shows. ``block``: the content of the machine-readable script element, already safe."""

    title: str
    verdict: str
    sections: list[Section]
    block: str
    good: bool | None = None
    scenario: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    summary: list[tuple[str, Any, str]] = field(default_factory=list)
    definitions: tuple[tuple[str, str], ...] = ()
    again: str = ""


def write_report(recording: Recording, summary: dict[str, Any], resolved: Resolved, path: str | Path) -> Path:
    """Write the report of one run and return its path. Raises MissingExtra without altair and vl-convert."""
    return write_page(run_page(recording, summary, resolved), path)


def run_page(recording: Recording, summary: dict[str, Any], resolved: Resolved) -> Page:
    """Return the page of one run."""
    capacity = resolved.capacity
    figures = run_figures(recording, summary, capacity)
    memory = memory_pictures(capacity)
    keys = {figure.key for figure in memory}
    later = [figure for figure in figures if figure.key not in keys]
    sections = [memory_section(resolved, memory)]
    for key, title, names in (
        ("latency", "What users wait for", ("latency", "ttft-split", "ttft-time")),
        ("load", "Memory and load over time", ("occupancy", "queue")),
        ("hits", "What the cache served", ("hits-time", "hits-turn")),
        ("machine", "Links and GPUs", ("links", "gpu")),
    ):
        chosen = tuple(figure for figure in later if figure.key in names)
        if chosen:
            sections.append(Section(key, title, figures=chosen))
    if summary.get("misses"):
        sections.append(Section("misses", "Why prompt tokens missed", tables=(("Causes", missed(summary["misses"])),)))
    tables = [("Slowest first tokens", slowest(recording)), ("Not served", not_served(recording))]
    sections.append(Section("requests", "Single requests", tables=tuple((name, table) for name, table in tables if table.rows)))
    sections.append(limits_section(resolved))
    slo = summary.get("slo")
    return Page(
        title=title_of(resolved.data),
        verdict=verdict(summary),
        sections=[s for s in sections if s.text or s.figures or s.tables],
        block=block(recording, summary),
        good=None if slo is None else bool(slo["met"]) and not summary["overload"]["overloaded"],
        scenario=as_yaml(recording.resolved),
        versions=versions_of(recording),
        summary=summary_rows(summary),
        definitions=tuple((summary.get("definitions") or {}).items()),
        again="kvsim run --from",
    )


def memory_section(resolved: Resolved, figures: Sequence[Figure]) -> Section:
    """Return the section that shows where the memory went."""
    from kvsim.report.memory_figures import arithmetic

    infeasible = tuple(f"Infeasible: {reason}" for reason in resolved.capacity.infeasible)
    return Section(
        "memory",
        "Where the memory goes",
        infeasible,
        tuple(figures),
        (("The arithmetic", arithmetic(resolved.capacity)),),
    )


def limits_section(resolved: Resolved) -> Section:
    """Return the section that says what was assumed and what is not modelled."""
    assumed = tuple((text,) for text in (*resolved.capacity.assumptions, *resolved.warnings))
    tables = [("What is not modelled", DataTable(("what", "meaning"), NOT_MODELLED))]
    if assumed:
        tables.insert(0, ("Assumptions and warnings of this scenario", DataTable(("assumption",), assumed)))
    return Section("limits", "What is assumed, and what is not modelled", tables=tuple(tables))


def versions_of(recording: Recording) -> tuple[tuple[str, str], ...]:
    """Return seeds, versions and digest as pairs."""
    from kvsim.record.store import provenance

    return tuple((key, str(value)) for key, value in provenance(recording).items())


def as_yaml(data: Any) -> str:
    """Return plain data as YAML for people to read."""
    import json

    import yaml

    text: str = yaml.safe_dump(json.loads(json.dumps(data, default=str)), sort_keys=False, allow_unicode=True, width=100)
    return text


def write_page(page: Page, path: str | Path) -> Path:
    """Write a page as one file and return its path."""
    target = Path(path)
    text = render(page)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written: {error.strerror}") from None
    return target


def render(page: Page) -> str:
    """Return a page as HTML text."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise MissingExtra("the HTML report", "report") from None
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("kvsim.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    specs = {figure.key: Markup(script_safe(figure.spec())) for section in page.sections for figure in section.figures}
    return environment.get_template("page.html.j2").render(
        page=page, specs=specs, block=Markup(page.block), runtime=Markup(runtime() if specs else ""), raw=raw_value
    )


def raw_value(value: Any) -> str:
    """Return a value exactly as JSON writes it: what a test or script reads from the summary table."""
    import json

    return json.dumps(value, allow_nan=False, default=str)


@cache
def runtime() -> str:
    """Return the chart runtime (vega, vega-lite, vega-embed) as one script without addresses to fetch from."""
    try:
        import vl_convert
    except ImportError:
        raise MissingExtra("the HTML report", "report") from None
    script: str = vl_convert.javascript_bundle("window.vegaEmbed=vegaEmbed;")
    return script.replace("https://vega.github.io/editor/", "about:blank").replace("</script", "<\\/script")
