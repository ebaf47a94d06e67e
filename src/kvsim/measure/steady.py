"""Honest means of one run: warm-up by MSER-5, batch means, t intervals, order-statistic intervals.

Requests of one run are not independent, so a half-width comes from means of batches that are. No scipy here: the t quantiles are a
small table, tested against scipy. Sources: White 1997 (MSER), Law, Simulation Modeling and Analysis (batch means).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

#: Student's t, 97.5 % quantile, by degrees of freedom.
T_975 = (
    12.7062,
    4.30265,
    3.18245,
    2.77645,
    2.57058,
    2.44691,
    2.36462,
    2.30600,
    2.26216,
    2.22814,
    2.20099,
    2.17881,
    2.16037,
    2.14479,
    2.13145,
    2.11991,
    2.10982,
    2.10092,
    2.09302,
    2.08596,
    2.07961,
    2.07387,
    2.06866,
    2.06390,
    2.05954,
    2.05553,
    2.05183,
    2.04841,
    2.04523,
    2.04227,
)
Z_975 = 1.959964
BATCHES = 20
MIN_FOR_BATCHES = 5 * BATCHES
GROUP = 5  # MSER-5: means of five
LAG_LIMIT = 0.2  # batches whose neighbours correlate more than this are too short


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % half-width (None: too few), how many values it used and how many warm-up ones were dropped."""

    mean: float
    half_width: float | None
    count: int
    warmup_dropped: int
    method: str


def t_975(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t; above 30 degrees by its expansion in 1/freedom (error < 1e-4)."""
    if freedom < 1:
        raise ValueError("a t interval needs at least one degree of freedom")
    if freedom <= len(T_975):
        return T_975[freedom - 1]
    z = Z_975
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def mser5(values: Sequence[float]) -> int:
    """Return how many leading values to drop: the cut (a multiple of five, at most half) that minimises the marginal standard error."""
    groups = [sum(values[i : i + GROUP]) / GROUP for i in range(0, len(values) - GROUP + 1, GROUP)]
    count = len(groups)
    if count < 10:
        return 0
    tail = list(accumulate(reversed(groups)))
    tail2 = list(accumulate(group * group for group in reversed(groups)))
    best, best_score = 0, math.inf
    for cut in range(count // 2 + 1):
        left = count - cut
        total, square = tail[left - 1], tail2[left - 1]
        score = max(square - total * total / left, 0.0) / (left * left)
        if score < best_score:
            best, best_score = cut, score
    return best * GROUP


def mean_with_halfwidth(values: Sequence[float], *, trim: bool = True) -> Estimate:
    """Return the mean of one run's values in order of time with a 95 % half-width from batch means.

    Warm-up is cut by MSER-5 (``trim``). The batches start at 20 and are merged until neighbours no longer correlate; below 100 values the
    half-width treats them as independent and says so, below 2 there is none.
    """
    dropped = mser5(values) if trim else 0
    kept = values[dropped:]
    count = len(kept)
    mean = math.fsum(kept) / count if count else math.nan
    if count < 2:
        return Estimate(mean, None, count, dropped, "too few values")
    if count < MIN_FOR_BATCHES:
        return Estimate(mean, _half_width(kept), count, dropped, "few values, taken as independent")
    half_width, label = batch_half_width(kept)
    return Estimate(mean, half_width, count, dropped, label)


def batch_half_width(values: Sequence[float]) -> tuple[float, str]:
    """Return the 95 % half-width of the mean of values in order of time (at least two), and how it was found.

    Twenty batches (or as many as there are values) are merged by two until neighbours no longer correlate.
    """
    batches = min(BATCHES, len(values))
    means = _batch_means(values, batches)
    while batches > 5 and _lag1(means) > LAG_LIMIT:
        batches //= 2
        means = _batch_means(values, batches)
    return _half_width(means), f"{batches} batch means" + (", still correlated" if batches > 2 and _lag1(means) > LAG_LIMIT else "")


def _batch_means(values: Sequence[float], batches: int) -> list[float]:
    count = len(values)
    edges = [count * i // batches for i in range(batches + 1)]
    return [math.fsum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def _half_width(values: Sequence[float]) -> float:
    count = len(values)
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return t_975(count - 1) * math.sqrt(variance / count)


def _lag1(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    spread = math.fsum((value - mean) ** 2 for value in values)
    if spread <= 0:
        return 0.0
    return math.fsum((a - mean) * (b - mean) for a, b in pairwise(values)) / spread


def replication_estimate(means: Sequence[float]) -> Estimate:
    """Return the mean over independent replications with a t interval."""
    count = len(means)
    if not count:
        return Estimate(math.nan, None, 0, 0, "no replications")
    return Estimate(math.fsum(means) / count, _half_width(means) if count > 1 else None, count, 0, f"{count} replications")


def within(low: float, high: float, *, least: float = 0.0, most: float = math.inf) -> tuple[float, float]:
    """Return an interval cut to what is possible: nothing below ``least``, nothing above ``most`` (a share: 1)."""
    return min(max(low, least), most), max(min(high, most), least)


def share_interval(share: float, half_width: float | None, count: int) -> tuple[float, float]:
    """Return a 95 % interval of a proportion over ``count`` requests, always within 0 and 1 (Wilson 1927).

    ``half_width``: of the mean from batches; where requests are correlated it is worth fewer of them, and Wilson's interval is that of so many.
    A share of exactly 0 or 1 has an interval too.
    """
    spread = share * (1 - share)
    worth = float(max(count, 1))
    if half_width and spread > 0:
        worth = max(1.0, min(worth, Z_975 * Z_975 * spread / (half_width * half_width)))
    z2 = Z_975 * Z_975 / worth
    middle = (share + z2 / 2) / (1 + z2)
    half = Z_975 * math.sqrt(spread / worth + z2 / (4 * worth)) / (1 + z2)
    return within(min(middle - half, share), max(middle + half, share), most=1.0)


def percentile(ordered: Sequence[float], p: float) -> float:
    """Return the p-th percentile (0..100) of ascending values, linear between order statistics."""
    if not ordered:
        return math.nan
    at = p / 100 * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def effective_share(values: Sequence[float], half_width: float | None) -> float:
    """Return how many independent values one correlated value is worth (0 to 1), judged by the half-width of their mean."""
    if half_width is None or len(values) < 2:
        return 1.0
    alone = _half_width(values)
    return min(1.0, (alone / half_width) ** 2) if half_width > 0 else 1.0


def percentile_interval(ordered: Sequence[float], p: float, *, effective: float = 1.0) -> tuple[float, float] | None:
    """Return a 95 % order-statistic interval of a percentile of ascending values, or None if there are too few.

    ``effective``: what one value is worth if they are correlated (``effective_share``); the interval is wider by its square root.
    """
    count, share = len(ordered), p / 100
    spread = Z_975 * math.sqrt(count * share * (1 - share) / effective)
    low, high = math.floor(count * share - spread), math.ceil(count * share + spread)
    if low < 1 or high > count:
        return None
    return ordered[low - 1], ordered[high - 1]
