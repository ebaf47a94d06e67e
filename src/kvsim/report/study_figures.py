"""Figures of a study: the curve with intervals, infeasible points marked, paired differences, and what it costs
(Pareto).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.report.frames import tidy
from kvsim.report.style import BLUE, GREEN, ORANGE, PURPLE, RED, DataTable, Figure, altair, finish, number, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.study.design import Point
    from kvsim.study.sweep import Result, Study

#: key in the headline of a result -> (title with unit, factor)
CURVES: dict[str, tuple[str, float]] = {
    "hit_rate": ("hit rate (%)", 100.0),
    "ttft_mean_s": ("mean TTFT (s)", 1.0),
    "ttft_p99_s": ("TTFT p99 (s)", 1.0),
    "tpot_mean_s": ("mean TPOT (s)", 1.0),
    "goodput_requests_per_s": ("goodput (requests/s within the SLO)", 1.0),
    "output_tokens_per_s": ("output (tokens/s)", 1.0),
}
COLOURS = {
    "hit_rate": GREEN,
    "ttft_mean_s": PURPLE,
    "ttft_p99_s": RED,
    "tpot_mean_s": BLUE,
    "goodput_requests_per_s": BLUE,
    "output_tokens_per_s": ORANGE,
}


def study_figures(study: Study) -> list[Figure]:
    """Return every figure of a study in reading order; curves that have no value in any point are left out."""
    figures = [figure for key in CURVES if (figure := curve(study, key)) is not None]
    difference = differences(study)
    return [*figures, *([difference] if difference else []), *([front] if (front := pareto(study)) else [])]


def name_of(point: Point) -> str:
    """Return a point's settings as text: the value alone if there is one axis."""
    values = ["off" if value is False else f"{value:g}" if isinstance(value, float) else str(value) for value in point.values()]
    if len(values) == 1:
        return values[0]
    return ", ".join(f"{key.rsplit('.', 1)[-1]}={value}" for key, value in zip(point, values, strict=True))


def axis_title(study: Study) -> str:
    """Return the title of the axis that a study varies."""
    return " x ".join(study.axes) or "setting"


def estimate(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and 95 % half-width (Student's t over replications; None for fewer than two)."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, None
    from scipy import stats

    spread = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
    return mean, float(stats.t.ppf(0.975, len(values) - 1)) * spread / len(values) ** 0.5


def values_of(results: list[Result], key: str) -> list[float]:
    """Return one figure of each replication that has it."""
    from kvsim.study.sweep import headline

    found = [headline(result).get(key) for result in results if result.summary is not None]
    return [float(value) for value in found if value is not None]


def rows_of_curve(study: Study, key: str) -> list[dict[str, Any]]:
    """Return one row per point: its name, and mean, low and high of the figure, or why it is infeasible."""
    _, factor = CURVES[key]
    rows: list[dict[str, Any]] = []
    for point, results in study.points():
        reason = next((result.reason for result in results if result.summary is None), "")
        row: dict[str, Any] = {"point": name_of(point), "replications": len(results), "infeasible": reason}
        values = values_of(results, key)
        if values and not reason:
            mean, half = estimate(values)
            half = _within(results, key) if half is None else half
            row["value"] = tidy(mean * factor)
            row["half"] = None if half is None else tidy(half * factor)
            top = 100.0 if key == "hit_rate" else float("inf")
            row["low"] = tidy(max((mean - (half or 0)) * factor, 0.0))  # none of these can be negative
            row["high"] = tidy(min((mean + (half or 0)) * factor, top))
        rows.append(row)
    return rows


def _within(results: list[Result], key: str) -> float | None:
    """Return the half-width within one run (batch means), where the summary has one."""
    summary = results[0].summary or {}
    part = {"ttft_mean_s": "ttft_s", "tpot_mean_s": "tpot_s"}.get(key)
    half = (summary.get(part) or {}).get("half_width") if part else None
    return None if half is None else float(half)


def curve(study: Study, key: str) -> Figure | None:
    """Return one figure of a study against its points, with 95 % intervals; infeasible points are crosses without a
    value.
    """
    alt = altair()
    rows = rows_of_curve(study, key)
    fine = [row for row in rows if "value" in row]
    if not fine:
        return None
    title, _ = CURVES[key]
    order = [row["point"] for row in rows]
    x = alt.X(
        "point:N",
        sort=order,
        scale=alt.Scale(domain=order, type="point", padding=0.5),
        title=axis_title(study),
        axis=alt.Axis(labelAngle=0),
    )
    base = alt.Chart(rows_of(fine)).encode(x=x)
    line = base.mark_line(color=COLOURS[key], point=alt.OverlayMarkDef(size=60, color=COLOURS[key])).encode(
        y=alt.Y("value:Q", title=title),
        tooltip=["point:N", alt.Tooltip("value:Q", format=".4g", title=title), "replications:Q"],
    )
    bars = base.mark_errorbar(ticks={"size": 12}, color=COLOURS[key]).encode(y=alt.Y("low:Q", title=title), y2="high:Q")
    layers = [line, bars]
    bad = [row for row in rows if row["infeasible"]]
    if bad:
        layers.append(
            alt.Chart(rows_of(bad))
            .mark_text(text="infeasible \u2715", color=RED, fontSize=12, angle=270, align="right")
            .encode(x=x, y=alt.value(6), tooltip=["infeasible:N"])
        )
    table = DataTable(
        (axis_title(study), title, "± 95 %", "replications", "feasible"),
        tuple(
            (row["point"], number(row.get("value")), number(row.get("half")), str(row["replications"]), row["infeasible"] or "yes")
            for row in rows
        ),
    )
    return Figure(
        f"curve-{key}".replace("_", "-"),
        title[0].upper() + title[1:],
        _interval_words(rows),
        finish(alt.layer(*layers), description=title),
        table,
    )


def _interval_words(rows: list[dict[str, Any]]) -> str:
    if max(row["replications"] for row in rows) > 1:
        return "Mean and 95 % interval (Student's t) over replications with other seeds."
    if any(row.get("half") is not None for row in rows):
        return "One run per point: the 95 % interval comes from batch means within the run."
    return "One run per point: no interval for this figure. Replications (run.replications) give one."


def difference_rows(study: Study, key: str = "ttft_mean_s") -> list[dict[str, Any]]:
    """Return, for each feasible point after the first, its paired difference to the first: equal seeds are subtracted."""
    points = [(point, results) for point, results in study.points() if all(result.summary is not None for result in results)]
    if len(points) < 2:
        return []
    base = {result.replication: result for result in points[0][1]}
    rows = []
    for point, results in points[1:]:
        pairs = [(base[result.replication], result) for result in results if result.replication in base]
        gains = [b[0] - a[0] for one, other in pairs if (a := values_of([one], key)) and (b := values_of([other], key))]
        if gains:
            mean, half = estimate(gains)
            rows.append({"point": name_of(point), "against": name_of(points[0][0]), "difference": mean, "half": half, "pairs": len(gains)})
    return rows


def differences(study: Study) -> Figure | None:
    """Return the paired differences of the mean TTFT to the study's first feasible point."""
    alt = altair()
    rows = difference_rows(study)
    if not rows:
        return None
    data = [
        {
            **row,
            "difference": tidy(row["difference"]),
            "low": tidy(row["difference"] - (row["half"] or 0)),
            "high": tidy(row["difference"] + (row["half"] or 0)),
        }
        for row in rows
    ]
    order = [row["point"] for row in rows]
    base = alt.Chart(rows_of(data)).encode(y=alt.Y("point:N", sort=order, title=axis_title(study)))
    dots = base.mark_point(filled=True, size=80, color=PURPLE).encode(x=alt.X("difference:Q", title="difference of the mean TTFT (s)"))
    bars = base.mark_errorbar(ticks={"size": 12}, color=PURPLE).encode(
        x=alt.X("low:Q", title="difference of the mean TTFT (s)"), x2="high:Q"
    )
    zero = alt.Chart(rows_of([{"zero": 0}])).mark_rule(strokeDash=[4, 2]).encode(x="zero:Q")
    against = rows[0]["against"]
    words = f"Difference to {against}, run by run with the same seeds. "
    words += ("An interval that does not touch 0 is a difference.") if rows[0]["half"] is not None else "One pair only: no interval."
    table = DataTable(
        (axis_title(study), "difference (s)", "± 95 %", "pairs"),
        tuple((row["point"], number(row["difference"]), number(row["half"]), str(row["pairs"])) for row in rows),
    )
    return Figure(
        "differences",
        f"Against {against}",
        words,
        finish(zero + bars + dots, height=110 + 30 * len(rows), description="Paired differences"),
        table,
    )


def pareto_rows(study: Study) -> list[dict[str, Any]]:
    """Return cost and benefit of each feasible point: host RAM in GB, mean TTFT; ``front``: nothing is better in both."""
    rows = []
    for point, results in study.points():
        values = values_of(results, "ttft_mean_s")
        if values and all(result.summary is not None for result in results):
            rows.append(
                {"point": name_of(point), "ram_gb": results[0].capacity["host_bytes_total"] / 1e9, "ttft": sum(values) / len(values)}
            )
    for row in rows:
        row["front"] = not any(
            other["ram_gb"] <= row["ram_gb"]
            and other["ttft"] <= row["ttft"]
            and (other["ram_gb"] < row["ram_gb"] or other["ttft"] < row["ttft"])
            for other in rows
        )
    return rows


def pareto(study: Study) -> Figure | None:
    """Return host RAM against mean TTFT with the points that nothing beats in both; None if RAM does not vary."""
    alt = altair()
    rows = pareto_rows(study)
    if len({row["ram_gb"] for row in rows}) < 2:
        return None
    data = [
        {**row, "ram_gb": tidy(row["ram_gb"]), "ttft": tidy(row["ttft"]), "kind": "worth considering" if row["front"] else "beaten"}
        for row in rows
    ]
    base = alt.Chart(rows_of(data)).encode(
        x=alt.X("ram_gb:Q", title="host RAM in total (GB, 1e9 bytes)"), y=alt.Y("ttft:Q", title="mean TTFT (s)")
    )
    line = base.transform_filter("datum.front").mark_line(color=GREEN, strokeDash=[4, 3])
    dots = base.mark_point(size=90, filled=True).encode(
        color=alt.Color("kind:N", scale=alt.Scale(domain=["worth considering", "beaten"], range=[GREEN, "#9A9A9A"]), title=None),
        shape=alt.Shape("kind:N", scale=alt.Scale(domain=["worth considering", "beaten"], range=["circle", "cross"]), title=None),
        tooltip=["point:N", "ram_gb:Q", "ttft:Q"],
    )
    names = base.mark_text(dx=8, dy=-9, align="left").encode(text="point:N")
    table = DataTable(
        (axis_title(study), "host RAM (GB)", "mean TTFT (s)", "beaten in both"),
        tuple((row["point"], number(row["ram_gb"]), number(row["ttft"]), "no" if row["front"] else "yes") for row in rows),
    )
    return Figure(
        "pareto",
        "What it buys and what it costs",
        "Cheaper is left, faster is down. Crosses are beaten in both by another point.",
        finish(line + dots + names, description="Host RAM against TTFT"),
        table,
    )
