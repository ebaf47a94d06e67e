"""A study for the terminal: one row per point, within 100 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from kvsim.report.terminal import seconds

if TYPE_CHECKING:
    from kvsim.study.sweep import Study

COLUMNS = ("RAM/rank", "RAM total", "device hits", "host hits", "TTFT p50", "p99", "TPOT", "out tok/s", "goodput", "retr.", "")


def sweep_table(study: Study) -> Table:
    """Return the table; figures are means over replications, GB are 1e9 bytes, hits are prompt tokens."""
    from kvsim.study.sweep import headline

    table = Table(pad_edge=False, padding=(0, 1, 0, 0))
    for key in study.axes:
        table.add_column(key.rpartition(".")[2].replace("+", " "), justify="right")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for point, results in study.points():
        rows = [headline(result) for result in results]
        label = [_label(point.get(name)) for key in study.axes for name in (key.split("+")[0],)]
        table.add_row(*label, *_cells(rows))
    return table


def _cells(rows: list[dict[str, Any]]) -> list[str]:
    first = rows[0]
    memory = [f"{first['host_bytes_per_rank'] / 1e9:,.2f} GB", f"{first['host_bytes_total'] / 1e9:,.1f} GB"]
    if any("reason" in row for row in rows):
        return [*memory, *[""] * 8, "infeasible"]

    def mean(name: str) -> float | None:
        values = [row[name] for row in rows if row[name] is not None]
        return sum(values) / len(values) if values else None

    marks = "overloaded" if any(row["overloaded"] for row in rows) else ""
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
    return "off" if value in (False, 0, "off") and not isinstance(value, str) or value == "off" else str(value)


def _tokens(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1e6:.2f} M" if value >= 1e6 else f"{value / 1e3:.0f} k" if value >= 1e4 else f"{value:.0f}"


def _time(value: float | None) -> str:
    return "-" if value is None else seconds(value)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
