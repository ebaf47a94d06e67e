"""Figures of what a user waits for: latency with SLO lines, and where the time to the first token goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.measure.latency import Latencies
from kvsim.report.frames import PS, ecdf, edges, middles, sums, tidy
from kvsim.report.style import (
    BLUE,
    GREEN,
    PARTS,
    PURPLE,
    RED,
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
    from kvsim.record.recording import Recording

KINDS = {"TTFT": BLUE, "TPOT": GREEN, "E2E": PURPLE}
GROUPS = ((0.0, 0.5, "fastest half"), (0.5, 0.9, "50-90 %"), (0.9, 0.99, "90-99 %"), (0.99, 1.0, "slowest 1 %"))


def latency_distributions(recording: Recording, summary: dict[str, Any]) -> Figure:
    """Return the cumulative distributions of TTFT, TPOT and E2E with a rule at each SLO bound."""
    alt = altair()
    latencies = Latencies(recording)
    series = {"TTFT": latencies.ttft, "TPOT": latencies.tpot, "E2E": latencies.e2e}
    data = [
        {"kind": kind, "seconds": tidy(max(value, 1e-9)), "percent": tidy(100 * share)}
        for kind, values in series.items()
        for value, share in ecdf(values)
    ]
    lines = (
        alt.Chart(rows_of(data))
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(
            x=alt.X("seconds:Q", scale=alt.Scale(type="log"), title="latency (s, log scale)", axis=alt.Axis(format="~g")),
            y=alt.Y("percent:Q", scale=alt.Scale(domain=[0, 100]), title="requests not slower (%)"),
            color=alt.Color("kind:N", scale=scale(KINDS), title=None),
            strokeDash=alt.StrokeDash("kind:N", scale=dashes(KINDS), title=None),
            tooltip=[
                alt.Tooltip("kind:N"),
                alt.Tooltip("seconds:Q", format=".4g", title="latency (s)"),
                alt.Tooltip("percent:Q", format=".4g", title="requests (%)"),
            ],
        )
    )
    bounds = slo_bounds(summary)
    return Figure(
        "latency",
        "Latency",
        _latency_caption(summary),
        finish(_with_bounds(lines, bounds), description="Cumulative latency distributions"),
        _percentile_table(summary),
    )


def slo_bounds(summary: dict[str, Any]) -> dict[str, float]:
    """Return the SLO's bounds in seconds by kind of latency; empty without an SLO."""
    slo = summary.get("slo") or {}
    pairs = {"TTFT": slo.get("ttft_s"), "TPOT": slo.get("tpot_s"), "E2E": slo.get("e2e_s")}
    return {kind: float(value) for kind, value in pairs.items() if value is not None}


def _with_bounds(lines: Any, bounds: dict[str, float]) -> Any:
    if not bounds:
        return lines
    alt = altair()
    data = rows_of([{"seconds": value, "kind": kind, "label": f"SLO {kind} {value:g} s"} for kind, value in bounds.items()])
    rule = alt.Chart(data).mark_rule(color=RED, strokeDash=[2, 2]).encode(x="seconds:Q")
    text = (
        alt.Chart(data)
        .mark_text(align="left", dx=4, dy=3, angle=270, baseline="top", color=RED, fontSize=11)
        .encode(x="seconds:Q", y=alt.datum(4), text="label:N")
    )
    return lines + rule + text


def _latency_caption(summary: dict[str, Any]) -> str:
    return (
        "TTFT runs from arrival at the server to the first token; TPOT is a request's "
        "mean time per output token after the first; "
        "E2E runs to the last token. Requests that never got there are not in the "
        "curves but count as misses of the SLO."
    )


def _percentile_table(summary: dict[str, Any]) -> DataTable:
    names = (
        ("TTFT", "ttft_s"),
        ("queue", "ttft_queue_s"),
        ("load (exposed)", "ttft_load_s"),
        ("prefill", "ttft_prefill_s"),
        ("TPOT", "tpot_s"),
        ("ITL", "itl_s"),
        ("E2E", "e2e_s"),
    )
    rows = []
    for label, key in names:
        values = summary.get(key)
        if values:
            rows.append(
                (
                    label,
                    *(number(values.get(name)) for name in ("mean", "half_width", "p50", "p90", "p95", "p99", "max")),
                    number(values["count"]),
                )
            )
    return DataTable(("latency (s)", "mean", "± 95 %", "p50", "p90", "p95", "p99", "max", "n"), tuple(rows))


def ttft_split(recording: Recording) -> Figure:
    """Return the mean TTFT of fast and slow requests, split into queue, load and prefill."""
    alt = altair()
    groups = _grouped(recording)
    data = [
        {"group": group, "part": part, "order": order, "seconds": tidy(seconds), "requests": count}
        for group, count, means in groups
        for order, (part, seconds) in enumerate(means.items())
    ]
    chart = (
        alt.Chart(rows_of(data))
        .mark_bar()
        .encode(
            y=alt.Y("group:N", sort=[name for *_, name in GROUPS], title="requests by TTFT"),
            x=alt.X("seconds:Q", stack="zero", title="mean TTFT (s)"),
            color=alt.Color("part:N", scale=scale(PARTS), title=None),
            order=alt.Order("order:Q"),
            tooltip=["group:N", "part:N", alt.Tooltip("seconds:Q", format=".4g"), "requests:Q"],
        )
    )
    table = DataTable(
        ("requests", "n", "queue (s)", "load (s)", "prefill (s)", "TTFT (s)"),
        tuple((group, number(count), *(number(v) for v in means.values()), number(sum(means.values()))) for group, count, means in groups),
    )
    caption = (
        "Queue: arrival to first admission. Load: the exposed wait for host-to-device copies. Prefill: the rest. The three add up exactly."
    )
    return Figure(
        "ttft-split",
        "Where the first token's time goes",
        caption,
        finish(chart, height=160, description="TTFT by part"),
        table,
    )


def _grouped(recording: Recording) -> list[tuple[str, int, dict[str, float]]]:
    rows = sorted(
        (row.first_token_ps - row.arrival_ps, row.admitted_ps - row.arrival_ps, row.load_wait_ps)
        for row in recording.requests
        if row.first_token_ps is not None and row.admitted_ps is not None
    )
    out = []
    for low, high, name in GROUPS:
        part = rows[int(low * len(rows)) : int(high * len(rows)) if high < 1 else len(rows)]
        if part:
            n = len(part) / PS
            queue, load = sum(r[1] for r in part) / n, sum(r[2] for r in part) / n
            out.append((name, len(part), {"queue": queue, "load": load, "prefill": sum(r[0] for r in part) / n - queue - load}))
    return out


def ttft_over_time(recording: Recording) -> Figure:
    """Return the mean TTFT by time of arrival, split into queue, load and prefill."""
    alt = altair()
    at = edges(recording, 80)
    rows = [row for row in recording.requests if row.first_token_ps is not None and row.admitted_ps is not None]
    when = [row.arrival_ps for row in rows]
    count = sums(when, [1.0] * len(rows), at)
    queue = sums(when, ((row.admitted_ps or 0) - row.arrival_ps for row in rows), at)
    load = sums(when, (row.load_wait_ps for row in rows), at)
    total = sums(when, ((row.first_token_ps or 0) - row.arrival_ps for row in rows), at)
    data: list[dict[str, Any]] = []
    for i, middle in enumerate(middles(at)):
        if count[i]:
            parts = {"queue": queue[i], "load": load[i], "prefill": total[i] - queue[i] - load[i]}
            data += [
                {"time": tidy(middle), "part": part, "order": order, "seconds": tidy(value * PS / count[i])}
                for order, (part, value) in enumerate(parts.items())
            ]
    width = float(at[1] - at[0]) * PS
    chart = (
        alt.Chart(rows_of([{**row, "start": tidy(row["time"] - width / 2), "stop": tidy(row["time"] + width / 2)} for row in data]))
        .mark_bar()
        .encode(
            x=alt.X("start:Q", bin="binned", title="time of arrival (s)"),
            x2="stop:Q",
            y=alt.Y("seconds:Q", stack="zero", title="mean TTFT (s)"),
            color=alt.Color("part:N", scale=scale(PARTS), title=None),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("time:Q", format=".4g", title="arrival (s)"),
                "part:N",
                alt.Tooltip("seconds:Q", format=".4g"),
            ],
        )
    )
    times = sorted({row["time"] for row in data})
    by = {(row["time"], row["part"]): row["seconds"] for row in data}
    table = DataTable(
        ("arrival (s)", "queue (s)", "load (s)", "prefill (s)"),
        tuple((number(t), *(number(by[t, part]) for part in PARTS)) for t in times),
    )
    return Figure(
        "ttft-time",
        "Time to the first token over the run",
        "Mean over the requests that arrived in each slice of the run.",
        finish(chart, description="TTFT over time"),
        table,
    )
