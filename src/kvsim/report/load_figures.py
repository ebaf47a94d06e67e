"""Figures of the machine over time: memory of both tiers, queue and running requests, hits by tier, links, what the GPU
did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.record.recording import STEP_COLUMNS
from kvsim.report.frames import PS, busy, edges, middles, presence, step_level, sums, tidy
from kvsim.report.style import (
    BLUE,
    LINKS,
    PURPLE,
    TIERS,
    WORK,
    DataTable,
    Figure,
    altair,
    dashes,
    finish,
    number,
    rows_of,
    scale,
)

if TYPE_CHECKING:
    from kvsim.config.resolved import Capacity
    from kvsim.record.recording import Recording

DEVICE_USED, HOST_USED = STEP_COLUMNS.index("device_used"), STEP_COLUMNS.index("host_used")
TABLE_ROWS = 25


def _every(rows: list[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return at most TABLE_ROWS rows, evenly picked, the last one always: a table for people, not a data file."""
    if len(rows) <= TABLE_ROWS:
        return tuple(rows)
    return tuple(rows[round(i * (len(rows) - 1) / (TABLE_ROWS - 1))] for i in range(TABLE_ROWS))


def occupancy(recording: Recording, capacity: Capacity, replicas: int = 1) -> Figure:
    """Return tokens held by device and host over time (mean per slice), each with its capacity as a rule."""
    alt = altair()
    at = edges(recording)
    device, host = step_level(recording, DEVICE_USED, at), step_level(recording, HOST_USED, at)
    times = middles(at)
    data = [
        {"time": tidy(t), "tier": tier, "tokens": tidy(mean[i]), "peak": tidy(peak[i])}
        for tier, (mean, peak) in (("device", device), ("host", host))
        for i, t in enumerate(times)
        if tier == "device" or capacity.host_tokens
    ]
    colours = {tier: colour for tier, colour in TIERS.items() if tier != "miss"}
    lines = (
        alt.Chart(rows_of(data))
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("time:Q", scale=alt.Scale(nice=False), title="simulated time (s)"),
            y=alt.Y("tokens:Q", title="tokens held", axis=alt.Axis(format="~s")),
            color=alt.Color("tier:N", scale=scale(colours), title=None),
            strokeDash=alt.StrokeDash("tier:N", scale=dashes(colours), title=None),
            tooltip=[
                alt.Tooltip("time:Q", format=".4g"),
                "tier:N",
                alt.Tooltip("tokens:Q", format=",.0f"),
                alt.Tooltip("peak:Q", format=",.0f"),
            ],
        )
    )
    pools = replicas * capacity.extra.get("dp", 1)
    limits = [{"tier": "device", "tokens": capacity.device_tokens * pools}]
    if capacity.host_tokens:
        limits.append({"tier": "host", "tokens": capacity.host_tokens * pools})
    rules = (
        alt.Chart(rows_of([{**row, "label": f"{row['tier']} capacity"} for row in limits]))
        .mark_rule(strokeDash=[6, 4])
        .encode(
            y="tokens:Q",
            color=alt.Color("tier:N", scale=scale(colours), title=None),
            tooltip=["label:N", alt.Tooltip("tokens:Q", format=",.0f")],
        )
    )
    table = _every(
        [
            (number(t), f"{device[0][i]:,.0f}", f"{device[1][i]:,.0f}", f"{host[0][i]:,.0f}", f"{host[1][i]:,.0f}")
            for i, t in enumerate(times)
        ]
    )
    return Figure(
        "occupancy",
        "Memory of both tiers",
        "Tokens held, running and cached together; dashed rules are the capacities. A tier at its capacity evicts.",
        finish(lines + rules, description="Tokens held by each tier over time"),
        DataTable(("time (s)", "device mean", "device peak", "host mean", "host peak"), table),
    )


def queue(recording: Recording) -> Figure:
    """Return requests running and waiting over time."""
    alt = altair()
    at = edges(recording)
    series = presence(recording, at)
    times = middles(at)
    data = [
        {"time": tidy(t), "state": state, "requests": tidy(mean[i]), "peak": tidy(peak[i])}
        for state, (mean, peak) in series.items()
        for i, t in enumerate(times)
    ]
    colours = {"running": BLUE, "waiting": PURPLE}
    chart = (
        alt.Chart(rows_of(data))
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("time:Q", scale=alt.Scale(nice=False), title="simulated time (s)"),
            y=alt.Y("requests:Q", title="requests"),
            color=alt.Color("state:N", scale=scale(colours), title=None),
            strokeDash=alt.StrokeDash("state:N", scale=dashes(colours), title=None),
            tooltip=[
                alt.Tooltip("time:Q", format=".4g"),
                "state:N",
                alt.Tooltip("requests:Q", format=".4g", title="mean"),
                alt.Tooltip("peak:Q", format=".4g"),
            ],
        )
    )
    run, wait = series["running"], series["waiting"]
    table = _every(
        [(number(t), number(run[0][i], 3), f"{run[1][i]:.0f}", number(wait[0][i], 3), f"{wait[1][i]:.0f}") for i, t in enumerate(times)]
    )
    return Figure(
        "queue",
        "Running and waiting",
        "Waiting: before the first admission. A queue that keeps growing is an overload: its latencies grow with the run.",
        finish(chart, description="Requests running and waiting over time"),
        DataTable(("time (s)", "running mean", "running peak", "waiting mean", "waiting peak"), table),
    )


def hits_over_time(recording: Recording) -> Figure:
    """Return prompt tokens by where they were found, by time of arrival."""
    at = edges(recording, 60)
    rows = [row for row in recording.requests if row.admitted_ps is not None]
    when = [row.arrival_ps for row in rows]
    device, host = sums(when, (r.device_hit for r in rows), at), sums(when, (r.host_hit for r in rows), at)
    miss = sums(when, (r.prompt_tokens - r.device_hit - r.host_hit for r in rows), at)
    width = float(at[1] - at[0]) * PS
    data, table = [], []
    for i, middle in enumerate(middles(at)):
        values = {"device": device[i], "host": host[i], "miss": miss[i]}
        if sum(values.values()):
            table.append((number(middle), *(f"{v:,.0f}" for v in values.values())))
            data += [
                {
                    "start": tidy(middle - width / 2),
                    "stop": tidy(middle + width / 2),
                    "tier": tier,
                    "order": order,
                    "tokens": int(value),
                }
                for order, (tier, value) in enumerate(values.items())
            ]
    chart = _hit_bars(data, altair().X("start:Q", bin="binned", title="time of arrival (s)"), stop="stop:Q")
    return Figure(
        "hits-time",
        "Prompt tokens by tier over time",
        "Tokens served from device, from host, and computed (miss), at each request's first admission.",
        finish(chart, description="Hit tokens by tier over time"),
        DataTable(("arrival (s)", "device", "host", "miss"), _every(table)),
    )


def hits_by_turn(recording: Recording, most: int = 12) -> Figure:
    """Return prompt tokens by where they were found, by turn of the session (later turns together)."""
    by_turn: dict[int, list[int]] = {}
    for row in recording.requests:
        if row.admitted_ps is not None:
            cell = by_turn.setdefault(min(row.turn, most), [0, 0, 0, 0])
            for i, value in enumerate((row.device_hit, row.host_hit, row.prompt_tokens - row.device_hit - row.host_hit, 1)):
                cell[i] += value
    names = {turn: f"{turn + 1}" if turn < most else f"{most + 1}+" for turn in sorted(by_turn)}
    data = [
        {"turn": names[turn], "tier": tier, "order": order, "tokens": by_turn[turn][order]}
        for turn in names
        for order, tier in enumerate(TIERS)
    ]
    chart = _hit_bars(
        data,
        altair().X("turn:O", sort=list(names.values()), title="turn of the session", axis=altair().Axis(labelAngle=0)),
        share=True,
    )
    table = tuple(
        (name, number(by_turn[turn][3]), *(f"{v:,}" for v in by_turn[turn][:3]), _share(by_turn[turn])) for turn, name in names.items()
    )
    return Figure(
        "hits-turn",
        "Prompt tokens by tier and turn",
        "Share of prompt tokens. A later turn repeats the conversation so far; what it still finds is the value of the cache.",
        finish(chart, description="Hit tokens by tier and turn"),
        DataTable(("turn", "requests", "device", "host", "miss", "hit rate"), table),
    )


def _share(cell: list[int]) -> str:
    total = sum(cell[:3])
    return f"{100 * (cell[0] + cell[1]) / total:.1f} %" if total else "-"


def _hit_bars(data: list[dict[str, Any]], x: Any, *, stop: str | None = None, share: bool = False) -> Any:
    alt = altair()
    y = alt.Y(
        "tokens:Q",
        stack="normalize" if share else "zero",
        title="share of prompt tokens" if share else "prompt tokens",
        axis=alt.Axis(format="%" if share else "~s"),
    )
    more = {"x2": stop} if stop else {}
    return (
        alt.Chart(rows_of(data))
        .mark_bar()
        .encode(
            x=x,
            y=y,
            color=alt.Color("tier:N", scale=scale(TIERS), title=None),
            order=alt.Order("order:Q"),
            tooltip=["tier:N", alt.Tooltip("tokens:Q", format=",")],
            **more,
        )
    )


def links(recording: Recording, replicas: int = 1) -> Figure:
    """Return the share of time each direction of the host link was copying."""
    alt = altair()
    at = edges(recording)
    by = {
        name: busy([(r[3], r[4]) for r in recording.transfers if r[1] == code], at) / replicas
        for name, code in zip(LINKS, ("h2d", "d2h"), strict=True)
    }
    times = middles(at)
    data = [
        {"time": tidy(t), "direction": name, "percent": tidy(min(100.0, 100 * float(shares[i])))}
        for name, shares in by.items()
        for i, t in enumerate(times)
    ]
    chart = (
        alt.Chart(rows_of(data))
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("time:Q", scale=alt.Scale(nice=False), title="simulated time (s)"),
            y=alt.Y("percent:Q", title="link busy (% of time)", scale=alt.Scale(domainMin=0)),
            color=alt.Color("direction:N", scale=scale(LINKS), title=None),
            strokeDash=alt.StrokeDash("direction:N", scale=dashes(LINKS), title=None),
            tooltip=[
                alt.Tooltip("time:Q", format=".4g"),
                "direction:N",
                alt.Tooltip("percent:Q", format=".3g", title="busy (%)"),
            ],
        )
    )
    names = list(LINKS)
    table = _every([(number(t), *(f"{min(100.0, 100 * float(by[name][i])):.2f}" for name in names)) for i, t in enumerate(times)])
    return Figure(
        "links",
        "Links to host RAM",
        "Share of time each direction of a GPU's host link was copying KV.",
        finish(chart, height=200, description="Link utilisation over time"),
        DataTable(("time (s)", "h2d busy (%)", "d2h busy (%)"), table),
    )


def gpu(recording: Recording, replicas: int = 1) -> Figure:
    """Return what the GPUs did over time: prefill, mixed, decode, idle, as shares of time."""
    alt = altair()
    at = edges(recording, 80)
    shares = {kind: busy([(r[2], r[3]) for r in recording.steps if r[1] == kind], at) / replicas for kind in WORK if kind != "idle"}
    width = float(at[1] - at[0]) * PS
    data, table = [], []
    for i, middle in enumerate(middles(at)):
        values = {kind: min(1.0, max(0.0, float(share[i]))) for kind, share in shares.items()}
        values["idle"] = max(0.0, 1 - sum(values.values()))
        table.append((number(middle), *(f"{100 * v:.1f}" for v in values.values())))
        data += [
            {
                "start": tidy(middle - width / 2),
                "stop": tidy(middle + width / 2),
                "kind": kind,
                "order": order,
                "percent": tidy(100 * value),
            }
            for order, (kind, value) in enumerate(values.items())
            if value or kind != "mixed"
        ]
    chart = (
        alt.Chart(rows_of(data))
        .mark_bar()
        .encode(
            x=alt.X("start:Q", bin="binned", title="simulated time (s)"),
            x2="stop:Q",
            y=alt.Y("percent:Q", stack="zero", title="time (%)", scale=alt.Scale(domain=[0, 100])),
            color=alt.Color("kind:N", scale=scale(WORK), title=None),
            order=alt.Order("order:Q"),
            tooltip=["kind:N", alt.Tooltip("percent:Q", format=".3g", title="time (%)")],
        )
    )
    return Figure(
        "gpu",
        "What the GPU did",
        "Shares of time. Decode waits while a prefill step runs.",
        finish(chart, height=200, description="GPU time by kind of step"),
        DataTable(("time (s)", "prefill (%)", "mixed (%)", "decode (%)", "idle (%)"), _every(table)),
    )
