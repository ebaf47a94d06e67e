"""The memory arithmetic as a picture: one GPU's card, and the host RAM per rank and in total."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.report.frames import tidy
from kvsim.report.style import BLUE, GREEN, GREY, ORANGE, DataTable, Figure, altair, finish, gib, rows_of, scale

if TYPE_CHECKING:
    from kvsim.config.resolved import Capacity

CARD = {"context and communication": GREY, "weights": GREEN, "KV pool": BLUE, "graphs, activations, tables": "#DDDDDD"}


def card_parts(capacity: Capacity) -> dict[str, int]:
    """Return one GPU's memory in bytes, part by part; the parts add up to the card unless they do not fit on it."""
    taken = capacity.card_bytes - capacity.free_before_bytes
    rest = capacity.free_before_bytes - capacity.weight_bytes - capacity.device_pool_bytes
    return dict(zip(CARD, (max(taken, 0), capacity.weight_bytes, capacity.device_pool_bytes, max(rest, 0)), strict=True))


def card(capacity: Capacity) -> Figure:
    """Return one GPU's memory as a stacked bar."""
    alt = altair()
    parts = card_parts(capacity)
    total = sum(parts.values()) or 1
    data, before = [], 0
    for part, value in parts.items():
        data.append({"bar": "one GPU", "part": part, "from": tidy(gib(before)), "to": tidy(gib(before + value)), "gib": tidy(gib(value))})
        before += value
    base = alt.Chart(rows_of(data)).encode(y=alt.Y("bar:N", axis=None))
    bars = base.mark_bar(stroke="#ffffff").encode(
        x=alt.X("from:Q", title="GiB (2^30 bytes) of one GPU"),
        x2="to:Q",
        color=alt.Color("part:N", scale=scale(CARD), legend=alt.Legend(columns=1)),
        tooltip=["part:N", alt.Tooltip("gib:Q", format=".4g", title="GiB")],
    )
    words = base.transform_filter(f"datum.gib > {0.08 * gib(total)}").transform_calculate(middle="(datum.from + datum.to) / 2")
    light = alt.condition("datum.part == 'weights' || datum.part == 'KV pool'", alt.value("#ffffff"), alt.value("#1c1c1c"))
    labels = words.mark_text(fontSize=12).encode(x="middle:Q", text=alt.Text("gib:Q", format=".3~g"), color=light)
    chart = bars + labels
    table = DataTable(
        ("part", "GiB", "share"),
        tuple((part, f"{gib(value):.2f}", f"{100 * value / total:.1f} %") for part, value in parts.items()),
    )
    tokens = f"The KV pool holds {capacity.device_tokens:,} tokens of {capacity.kv_bytes_per_token:,} bytes each (per rank)."
    return Figure(
        "card",
        "One GPU's memory",
        tokens,
        finish(chart, height=90, description="Stacked bar of one GPU's memory"),
        table,
    )


def host(capacity: Capacity) -> Figure | None:
    """Return host RAM of the cache per rank and in total as bars, or None without a host tier."""
    if not capacity.host_tokens:
        return None
    alt = altair()
    bars = {"per rank": capacity.host_bytes_per_rank, f"total ({capacity.ranks} ranks)": capacity.host_bytes_total}
    data = [{"bar": name, "gib": tidy(gib(value))} for name, value in bars.items()]
    base = alt.Chart(rows_of(data)).encode(
        y=alt.Y("bar:N", sort=list(bars), title=None),
        x=alt.X("gib:Q", title="GiB (2^30 bytes) of host RAM", scale=alt.Scale(domainMin=0, domainMax=1.2 * gib(max(bars.values())))),
    )
    chart = base.mark_bar(color=ORANGE) + base.mark_text(align="left", dx=4).encode(text=alt.Text("gib:Q", format=",.4~g"))
    table = DataTable(
        ("host RAM", "GiB", "GB"),
        tuple((name, f"{gib(value):,.1f}", f"{value / 1e9:,.1f}") for name, value in bars.items()),
    )
    times = f"{capacity.host_copies} time{'s' if capacity.host_copies != 1 else ''}"
    copies = (
        f"{capacity.host_tokens:,} distinct tokens; each is stored {times} in host RAM: "
        f"{capacity.host_bytes_total / 1e9:,.1f} GB (1e9 bytes) in total, {capacity.host_bytes_per_rank / 1e9:,.1f} GB per rank."
    )
    return Figure("host", "Host RAM of the cache", copies, finish(chart, height=110, description="Host RAM bars"), table)


def arithmetic(capacity: Capacity) -> DataTable:
    """Return the lines of arithmetic that led to the capacity."""
    rows = tuple((line.what, _value(line.value), line.unit, line.formula, line.source) for line in capacity.lines)
    return DataTable(("what", "value", "unit", "how", "source"), rows)


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return "-" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
