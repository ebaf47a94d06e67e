"""How figures look: one palette that survives colour blindness, one theme, and what a figure is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvsim.errors import MissingExtra

#: Okabe and Ito's palette (2008): distinguishable with any colour vision, and in grey by lightness.
BLUE, ORANGE, GREEN, PURPLE, SKY, RED, YELLOW, BLACK, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#222222",
    "#9A9A9A",
)

TIERS = {"device": BLUE, "host": ORANGE, "miss": GREY}
PARTS = {"queue": PURPLE, "load": ORANGE, "prefill": BLUE}
WORK = {"prefill": BLUE, "mixed": SKY, "decode": GREEN, "idle": "#DDDDDD"}
LINKS = {"host to device (load back)": ORANGE, "device to host (back up)": BLUE}


@dataclass(frozen=True, slots=True)
class DataTable:
    """A small table of text: what stands behind a chart, and what a screen reader reads instead of it."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def wordy(self) -> bool:
        """Whether a cell is a sentence: such a table is shown row by row where it would not fit across (phones)."""
        return any(len(cell) > 40 for row in self.rows for cell in row)


@dataclass(frozen=True, slots=True)
class Figure:
    """One chart with its words. ``key``: its name in files and anchors; ``chart``: an altair chart; ``table``: the same
    as text.
    """

    key: str
    title: str
    caption: str
    chart: Any
    table: DataTable
    notes: tuple[str, ...] = field(default=())

    def spec(self) -> dict[str, Any]:
        """Return the Vega-Lite specification as plain data, without the address of its schema."""
        spec: dict[str, Any] = self.chart.to_dict()
        spec.pop("$schema", None)
        return spec


def altair() -> Any:
    """Return the altair module. Raises MissingExtra where it is not installed."""
    try:
        import altair as alt
    except ImportError:
        raise MissingExtra("drawing figures", "report") from None
    return alt


def scale(colours: dict[str, str]) -> Any:
    """Return a colour scale with fixed colours, so that a thing has one colour in all figures."""
    return altair().Scale(domain=list(colours), range=list(colours.values()))


def dashes(colours: dict[str, str]) -> Any:
    """Return a dash scale over the same things, so that lines are told apart without colour."""
    return altair().Scale(domain=list(colours), range=[[1, 0], [6, 3], [2, 2], [8, 2, 2, 2]][: len(colours)])


def rows_of(values: list[dict[str, Any]]) -> Any:
    """Return inline data for a chart."""
    return altair().Data(values=values)


def finish(chart: Any, *, height: int = 260, description: str = "") -> Any:
    """Return the chart with the common size, fonts and grid; it takes the width of its container."""
    if description:
        chart = chart.properties(description=description)
    return (
        chart.properties(width="container", height=height, autosize={"type": "fit-x", "contains": "padding"})
        .configure(font="system-ui, sans-serif", background="#ffffff")
        .configure_view(stroke="#dddddd")
        .configure_axis(gridColor="#eeeeee", labelFontSize=12, titleFontSize=12, titleFontWeight="normal", labelOverlap=True)
        .configure_legend(orient="top", labelFontSize=12, titleFontSize=12, labelLimit=320, columns=3, title=None)
    )


def number(value: float | int | None, digits: int = 4) -> str:
    """Return a number as people read it: integers with separators, others with ``digits`` significant digits."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    if value and abs(value) >= 10**digits:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def gib(value: float) -> float:
    """Return bytes as GiB (2^30)."""
    return value / 2**30
