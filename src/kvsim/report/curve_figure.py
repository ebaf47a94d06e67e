"""The hit rate of every cache size as a figure, with the two tiers of a machine marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.report.frames import tidy
from kvsim.report.style import BLUE, TIERS, DataTable, Figure, altair, finish, rows_of, scale

if TYPE_CHECKING:
    from kvsim.config.resolved import Capacity
    from kvsim.measure.curve import Curve

POINTS = 160


def curve_figure(curve: Curve, capacity: Capacity | None = None) -> Figure:
    """Return hit rate against capacity (LRU, everybody served at once), the sizes of device and host as rules."""
    import numpy as np

    alt = altair()
    marks = (
        []
        if capacity is None
        else [("device", capacity.device_tokens), *([("host", capacity.host_tokens)] if capacity.host_tokens else [])]
    )
    low = max(int(curve.need[0]), 1) if len(curve.need) else 1
    high = max([int(curve.need[-1]) if len(curve.need) else 1, *(tokens for _, tokens in marks), low + 1])
    sizes = np.unique(np.geomspace(low, high, POINTS).round())
    data = [{"tokens": tidy(float(size)), "percent": tidy(100 * curve.rate(float(size)))} for size in sizes]
    x = alt.X("tokens:Q", scale=alt.Scale(type="log", nice=False), title="cache size (tokens, log scale)", axis=alt.Axis(format="~s"))
    line = (
        alt.Chart(rows_of(data))
        .mark_line(interpolate="step-after", color=BLUE, strokeWidth=2)
        .encode(x=x, y=alt.Y("percent:Q", title="hit rate (%)", scale=alt.Scale(domain=[0, 100])), tooltip=["tokens:Q", "percent:Q"])
    )
    layers = [line]
    if marks:
        colours = {tier: colour for tier, colour in TIERS.items() if tier != "miss"}
        rules = rows_of([{"tier": tier, "tokens": tokens} for tier, tokens in marks])
        layers.append(
            alt.Chart(rules)
            .mark_rule(strokeDash=[6, 4], strokeWidth=2)
            .encode(x=x, color=alt.Color("tier:N", scale=scale(colours), title=None))
        )
    rows = [(name, f"{tokens:,}", f"{100 * curve.rate(tokens):.1f} %") for name, tokens in marks]
    rows += [("working set (99 % of all reuse)", f"{curve.working_set():,}", f"{100 * curve.rate(curve.working_set()):.1f} %")]
    rows += [("without limit", "-", f"{100 * curve.ceiling:.1f} %")]
    words = "One pass over the load, no simulation: LRU, everybody served at once. Dashed rules: the sizes of device and host pool."
    return Figure(
        "hit-curve",
        "Hit rate of every cache size",
        words,
        finish(alt.layer(*layers), description="Hit rate against cache size"),
        DataTable(("size", "tokens", "hit rate"), tuple(rows)),
    )
