"""Figures as files: SVG for papers, PNG for pages. Drawn without a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import ConfigError, MissingExtra
from kvsim.report.figures import run_figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.config.resolved import Resolved
    from kvsim.record.recording import Recording
    from kvsim.report.style import Figure

WIDTH = 720


def write_figures(recording: Recording, summary: dict[str, Any], resolved: Resolved, folder: str | Path) -> list[Path]:
    """Write every figure of a run as SVG and PNG into a folder and return the files."""
    return save(run_figures(recording, summary, resolved.capacity), folder)


def save(figures: Sequence[Figure], folder: str | Path) -> list[Path]:
    """Write figures as ``KEY.svg`` and ``KEY.png`` and return the files. Raises MissingExtra without vl-convert."""
    try:
        import vl_convert
    except ImportError:
        raise MissingExtra("drawing SVG and PNG", "report") from None
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target}: is a file, not a folder to write figures into")
    target.mkdir(parents=True, exist_ok=True)
    files = []
    for figure in figures:
        spec = {**figure.spec(), "width": WIDTH, "title": figure.title}
        svg, png = target / f"{figure.key}.svg", target / f"{figure.key}.png"
        svg.write_text(vl_convert.vegalite_to_svg(spec), "utf-8")
        png.write_bytes(vl_convert.vegalite_to_png(spec, scale=2))
        files += [svg, png]
    return files
