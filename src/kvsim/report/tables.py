"""Tables of text, once for all surfaces: the summary key by key, the slowest requests, and any for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.report.frames import PS
from kvsim.report.style import DataTable, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from kvsim.record.recording import Recording


def flatten(data: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of every leaf of plain data, in order; list items are numbered from 0."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(data, list):
        for i, value in enumerate(data):
            yield from flatten(value, f"{prefix}.{i}")
    else:
        yield prefix, data


def summary_rows(summary: dict[str, Any]) -> list[tuple[str, Any, str]]:
    """Return every number of a summary as (key, value, text for people)."""
    rows = []
    for key, value in flatten({name: part for name, part in summary.items() if name != "definitions"}):
        text = (
            number(value, 5) if isinstance(value, int | float) and not isinstance(value, bool) else ("-" if value is None else str(value))
        )
        rows.append((key, value, text))
    return rows


def slowest(recording: Recording, most: int = 10) -> DataTable:
    """Return the requests with the longest time to the first token, and where it went."""
    rows = sorted(
        (row for row in recording.requests if row.first_token_ps is not None),
        key=lambda r: (r.arrival_ps - (r.first_token_ps or 0), r.id),
    )
    table = []
    for row in rows[:most]:
        ttft, waited = (row.first_token_ps or 0) - row.arrival_ps, (row.admitted_ps or 0) - row.arrival_ps
        prefill = ttft - waited - row.load_wait_ps
        table.append(
            (
                row.id,
                number(row.arrival_ps * PS),
                f"{row.prompt_tokens:,}",
                f"{row.device_hit:,}",
                f"{row.host_hit:,}",
                *(number(part * PS) for part in (waited, row.load_wait_ps, prefill, ttft)),
                str(row.retractions),
            )
        )
    return DataTable(
        (
            "id",
            "arrival (s)",
            "prompt",
            "device hit",
            "host hit",
            "queue (s)",
            "load (s)",
            "prefill (s)",
            "TTFT (s)",
            "retractions",
        ),
        tuple(table),
    )


def not_served(recording: Recording, most: int = 10) -> DataTable:
    """Return requests that were refused, aborted or left unfinished, with the reason; the first ones only."""
    rows = [row for row in recording.requests if row.status != "finished"]
    rows.sort(key=lambda row: (row.arrival_ps, row.id))
    return DataTable(
        ("id", "status", "prompt", "reason"),
        tuple((row.id, row.status, f"{row.prompt_tokens:,}", row.reason) for row in rows[:most]),
    )


def missed(misses: dict[str, Any]) -> DataTable:
    """Return why prompt tokens missed the cache (``summary["misses"]``), a cause per row with its remedy."""
    causes = misses.get("causes") or []
    total = sum(cause["tokens"] for cause in causes) or 1
    rows = tuple(
        (cause["cause"], f"{cause['tokens']:,}", f"{100 * cause['tokens'] / total:.1f} %", cause.get("remedy") or "-") for cause in causes
    )
    return DataTable(("cause", "tokens", "share", "remedy"), rows)


def to_rich(table: DataTable, title: str | None = None) -> Table:
    """Return a table for the terminal; text columns left, numbers right; long text folds."""
    from rich.markup import escape
    from rich.table import Table as RichTable

    out = RichTable(title=title, pad_edge=False)
    for i, header in enumerate(table.headers):
        numeric = all(_numeric(row[i]) for row in table.rows) and bool(table.rows)
        out.add_column(escape(header), justify="right" if numeric else "left", overflow="fold")
    for row in table.rows:
        out.add_row(*(escape(cell) for cell in row))
    return out


def _numeric(text: str) -> bool:
    return (
        text.replace(",", "").replace(".", "").replace("%", "").replace("-", "").replace("+", "").replace("e", "").strip().isdigit()
        or text == "-"
    )
