"""`kvsim options --static`: the table of what each option does to memory, within 100 columns."""

from __future__ import annotations

from typing import Any

from kvsim.cli.common import emit_json, show

COLUMNS = (
    ("option", "option"), ("device\ntokens", "device_tokens"), ("tokens in\nreach", "reach_tokens"), ("longest\nprompt", "longest_prompt"),
    ("at\nonce", "at_once"), ("slots", "max_running_requests"), ("RAM GB\ntotal", "host_bytes_total"), ("link B/\ntoken", "link_bytes"), ("cost, unknowns", "cost"),
)  # fmt: skip


def print_static(base: dict[str, Any], json: bool) -> int:
    """Print the memory of every option, by the capacity arithmetic alone; return 0."""
    from kvsim.study.static_options import static_rows

    rows = static_rows(base)
    if json:
        emit_json({"options": rows})
        return 0
    from rich.table import Table
    from rich.text import Text

    table = Table(title="options: memory only, nothing simulated", title_justify="left", pad_edge=False, padding=(0, 1, 0, 0), box=None)
    for name, key in COLUMNS:
        table.add_column(name, overflow="fold", justify="left" if key in ("option", "cost") else "right", no_wrap=key == "link_bytes")
    for row in rows:
        if row["infeasible"]:
            table.add_row(row["option"], *[""] * (len(COLUMNS) - 2), f"infeasible: {row['infeasible']}", style="dim")
        else:
            table.add_row(*(_cell(row, key) for _, key in COLUMNS))
    show(table, Text(_words(rows), style="dim"))
    return 0


def _cell(row: dict[str, Any], key: str) -> str:
    if key == "option":
        return str(row["option"])
    if key == "cost":
        said = row["cost"] or row["remark"]
        return f"{said} ({row['draft_bytes'] / 1e9:.2f} GB)" if row["draft_bytes"] else said
    if key == "host_bytes_total":
        return f"{row[key] / 1e9:,.1f}"
    return "" if row[key] is None else f"{row[key]:,}"


def _words(rows: list[dict[str, Any]]) -> str:
    first = next((row for row in rows if not row["infeasible"]), None)
    once = (
        "At once: requests of the workload's mean length that fit the device pool, nothing shared, at most the slots."
        if first and first["at_once"] is not None
        else "At once is blank: it needs the lengths of a recipe."
    )
    return (
        "Tokens in reach: the larger tier (the host tier is inclusive), so a ratio up to 1 buys nothing. "
        f"{once} Link B/token: what one reloaded token moves over all links together. A measured factor that is unknown is named, not guessed."
    )
