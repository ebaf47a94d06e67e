"""A study for the terminal: one row per point, within 100 columns; narrower ones lose the column that follows from another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from kvsim.report.terminal import seconds

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from kvsim.study.sweep import Study

COLUMNS = (
    "GB of\nRAM/rank",
    "GB in\ntotal",
    "device\nhits",
    "host\nhits",
    "TTFT\np50",
    "TTFT\np99",
    "\nTPOT",
    "out\ntok/s",
    "good\nreq/s",
    "re-\ntr.",
    "",
)
#: Below this width the RAM per rank is left out (it is the total divided by the ranks).
WIDE = 90


class SweepTable:
    """A study's table that fits the width it is printed in."""

    def __init__(self, study: Study) -> None:
        self.study = study

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table for this width."""
        yield table_of(self.study, per_rank=options.max_width >= WIDE)


def sweep_table(study: Study) -> SweepTable:
    """Return the table; figures are means over replications, GB are 1e9 bytes, hits are prompt tokens."""
    return SweepTable(study)


def table_of(study: Study, *, per_rank: bool = True) -> Table:
    """Return the table with or without the RAM of one rank."""
    from kvsim.study.sweep import headline

    table = Table(pad_edge=False, padding=(0, 0), box=box.SIMPLE_HEAD, show_edge=False)
    for key in study.axes:
        table.add_column(key.rpartition(".")[2].replace("+", " "), justify="right", overflow="fold")
    for name in COLUMNS if per_rank else COLUMNS[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for point, results in study.points():
        label = [_label(point.get(name)) for key in study.axes for name in (key.split("+")[0],)]
        cells = _cells([headline(result) for result in results])
        table.add_row(*label, *(cells if per_rank else cells[1:]))
    return table


def _cells(rows: list[dict[str, Any]]) -> list[str]:
    first = rows[0]
    memory = [f"{first['host_bytes_per_rank'] / 1e9:,.2f}", f"{first['host_bytes_total'] / 1e9:,.1f}"]
    if any("reason" in row for row in rows):
        return [*memory, *["-"] * 8, "infeasible"]

    def mean(name: str) -> float | None:
        values = [row[name] for row in rows if row[name] is not None]
        return sum(values) / len(values) if values else None

    states = [row.get("load_state") for row in rows]
    marks = "overloaded" if any(row["overloaded"] for row in rows) else "near limit" if "near the limit" in states else ""
    return [
        *memory,
        _tokens(mean("device_hit_tokens")),
        _tokens(mean("host_hit_tokens")),
        *(_time(mean(name)) for name in ("ttft_p50_s", "ttft_p99_s", "tpot_mean_s")),
        _number(mean("output_tokens_per_s")),
        _number(mean("goodput_requests_per_s")),
        _number(mean("retractions")),
        marks,
    ]


def _label(value: Any) -> str:
    return "off" if (value in (False, 0, "off") and not isinstance(value, str)) or value == "off" else str(value)


def _tokens(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1e6:.2f} M" if value >= 1e6 else f"{value / 1e3:.0f} k" if value >= 1e4 else f"{value:.0f}"


def _time(value: float | None) -> str:
    return "-" if value is None else seconds(value)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
