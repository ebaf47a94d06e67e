"""Pictures of one frame of a small world: the radix tree with residence, both pools, the requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.report.style import BLUE, GREEN, ORANGE, DataTable, altair, finish, rows_of, scale

if TYPE_CHECKING:
    from kvsim.web.world import Frame, NodeView

WHERE = {"device": BLUE, "device and host": GREEN, "host": ORANGE}


def rows_of_tree(nodes: tuple[NodeView, ...]) -> dict[int, tuple[float, float]]:
    """Return for each node (by id) the band of rows it spans: leaves one row each, parents over their children."""
    children: dict[int, list[int]] = {}
    for node in nodes:
        children.setdefault(node.parent, []).append(node.id)
    bands: dict[int, tuple[float, float]] = {}
    row = 0.0
    for node in nodes:  # depth first: leaves come in order
        if node.id not in children:
            bands[node.id] = (row, row + 1)
            row += 1
    for node in reversed(nodes):
        if node.id in children:
            spans = [bands[child] for child in children[node.id]]
            bands[node.id] = (min(low for low, _ in spans), max(high for _, high in spans))
    return bands


def tree_chart(frame: Frame) -> Any:
    """Return the radix tree as nested bars: a bar's length is its tokens, its colour where its KV is, a thick edge a
    lock.
    """
    alt = altair()
    bands = rows_of_tree(frame.nodes)
    data = [
        {
            "label": node.label,
            "where": node.where,
            "locked": "locked" if node.locked else "free",
            "tokens": node.tokens,
            "start": node.start,
            "stop": node.start + node.tokens,
            "middle": node.start + node.tokens / 2,
            "top": bands[node.id][0] + 0.06,
            "bottom": bands[node.id][1] - 0.06,
            "height": sum(bands[node.id]) / 2,
        }
        for node in frame.nodes
    ]
    rows = max((band[1] for band in bands.values()), default=1)
    y = alt.Y("top:Q", axis=None, scale=alt.Scale(domain=[0, max(rows, 1)], reverse=True))
    base = alt.Chart(rows_of(data))
    bars = base.mark_rect(stroke="#ffffff").encode(
        x=alt.X("start:Q", title="tokens from the beginning of the prompt"),
        x2="stop:Q",
        y=y,
        y2="bottom:Q",
        color=alt.Color("where:N", scale=scale(WHERE), title=None),
        stroke=alt.condition("datum.locked == 'locked'", alt.value("#222222"), alt.value("#ffffff")),
        strokeWidth=alt.condition("datum.locked == 'locked'", alt.value(3), alt.value(1)),
        tooltip=["label:N", "tokens:Q", "where:N", "locked:N"],
    )
    text = base.mark_text(color="#ffffff", fontSize=12, fontWeight="bold", limit=160).encode(
        x="middle:Q",
        y=alt.Y("height:Q", axis=None, scale=alt.Scale(domain=[0, max(rows, 1)], reverse=True)),
        text="label:N",
    )
    return finish(bars + text, height=int(60 + 34 * max(rows, 1)), description="Radix tree: nodes by residence")


def pools_chart(frame: Frame) -> Any:
    """Return how full both pools are, as bars with their capacity."""
    alt = altair()
    data = [{"pool": "device", "used": frame.device_used, "capacity": frame.device_tokens}]
    if frame.host_tokens:
        data.append({"pool": "host", "used": frame.host_used, "capacity": frame.host_tokens})
    base = alt.Chart(rows_of(data)).encode(y=alt.Y("pool:N", title=None))
    full = base.mark_bar(color="#e6e6e6").encode(x=alt.X("capacity:Q", title="tokens"))
    used = base.mark_bar(height=14).encode(
        x="used:Q", color=alt.Color("pool:N", scale=scale({"device": BLUE, "host": ORANGE}), legend=None)
    )
    return finish(full + used, height=70 if len(data) > 1 else 40, description="Pools")


def request_table(frame: Frame) -> DataTable:
    """Return the requests that have arrived, as a table."""
    rows = tuple(
        (
            view.id,
            view.state,
            str(view.prompt_tokens),
            str(view.device_hit),
            str(view.host_hit),
            f"{view.output_done} of {view.output_tokens}",
        )
        for view in frame.requests
    )
    return DataTable(("request", "state", "prompt", "device hit", "host hit", "output"), rows)
