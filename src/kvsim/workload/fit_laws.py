"""Laws of lengths and times from values: maximum likelihood (scipy), the law by AIC, and the values' own bins where no law fits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

SHARES = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
#: A law is kept if its mean is this near and its quantiles are (relative, on average).
MEAN_NEAR, QUANTILES_NEAR = 0.03, 0.08
BINS = 50
SAMPLE = 20_000


def quantiles(ordered: Sequence[float], shares: Sequence[float] = SHARES) -> list[float]:
    """Return quantiles (nearest rank below) of ascending values."""
    return [float(ordered[int(share * (len(ordered) - 1))]) for share in shares]


def fitted_law(values: Sequence[float], *, low: float | None = 1) -> dict[str, Any]:
    """Return a law block: constant, or the best by AIC of lognormal, gamma, exponential and uniform, or ``empirical`` if that is off.

    Off: its mean by more than 3 %, or its quantiles by more than 8 % on average. ``low``: the smallest value drawn (None: zero).
    """
    ordered = sorted(max(float(value), low if low is not None else 0.0) for value in values)
    mean = sum(ordered) / len(ordered)
    if ordered[0] == ordered[-1]:
        return {"dist": "constant", "mean": ordered[0]} if ordered[0] > 0 else {"dist": "empirical", "values": [0]}
    bound = {} if low is None else {"low": low}
    best: tuple[float, dict[str, Any]] | None = None
    if ordered[0] > 0:
        for aic, law, points in _candidates(ordered, mean):
            near = abs(law["mean"] / mean - 1) <= MEAN_NEAR if "mean" in law else True
            if (best is None or aic < best[0]) and near and _distance(points, quantiles(ordered), mean) <= QUANTILES_NEAR:
                best = (aic, {**law, **bound} if law["dist"] != "uniform" else law)
    return best[1] if best is not None else binned(ordered)


def _candidates(ordered: list[float], mean: float) -> list[tuple[float, dict[str, Any], list[float]]]:
    """Return (AIC, law, quantiles) of every law."""
    from scipy import stats

    step = max(len(ordered) // SAMPLE, 1)
    sample = ordered[step // 2 :: step]
    sigma, _, scale = stats.lognorm.fit(sample, floc=0)
    shape, _, theta = stats.gamma.fit(sample, floc=0)
    made = [
        (2, stats.lognorm(sigma, 0, scale), {"dist": "lognormal", "mean": scale * math.exp(sigma**2 / 2), "cv": math.sqrt(math.expm1(min(sigma**2, 50.0)))}),
        (2, stats.gamma(shape, 0, theta), {"dist": "gamma", "mean": shape * theta, "cv": 1 / math.sqrt(shape)}),
        (1, stats.expon(0, mean), {"dist": "exponential", "mean": mean}),
        (2, stats.uniform(ordered[0], ordered[-1] - ordered[0]), {"dist": "uniform", "low": ordered[0], "high": ordered[-1]}),
    ]
    out = []
    for parameters, law, block in made:
        aic = 2 * parameters - 2 * float(law.logpdf(sample).sum())
        out.append((aic, {key: float(round(value, 4)) if isinstance(value, float) else value for key, value in block.items()}, [float(law.ppf(q)) for q in SHARES]))
    return [row for row in out if math.isfinite(row[0])]


def _distance(points: list[float], wanted: list[float], mean: float) -> float:
    return sum(abs(a - b) / max(b, 0.05 * mean) for a, b in zip(points, wanted, strict=True)) / len(wanted)


def binned(ordered: Sequence[float]) -> dict[str, Any]:
    """Return an ``empirical`` law: up to 50 values with their shares, or the means of 50 bins of equally many values (the mean stays exact)."""
    counts = Counter(ordered)
    if len(counts) <= BINS:
        values = sorted(counts)
        law: dict[str, Any] = {"dist": "empirical", "values": [_short(value) for value in values]}
        if len(set(counts.values())) > 1:
            law["weights"] = [counts[value] for value in values]
        return law
    edges = [len(ordered) * i // BINS for i in range(BINS + 1)]
    pieces = [ordered[a:b] for a, b in pairwise(edges) if b > a]
    return {"dist": "empirical", "values": [_short(sum(piece) / len(piece)) for piece in pieces]}


def _short(value: float) -> int | float:
    return int(value) if value == int(value) else float(f"{value:.5g}")


def zipf_exponent(counts: Sequence[int]) -> float:
    """Return the Zipf exponent (0 to 5) of popularities by maximum likelihood: item k is as popular as 1 / k^s."""
    from scipy.optimize import minimize_scalar

    ordered = sorted(counts, reverse=True)
    logs = [math.log(rank) for rank in range(1, len(ordered) + 1)]
    total = sum(ordered)
    drawn = sum(count * log for count, log in zip(ordered, logs, strict=True))

    def cost(exponent: float) -> float:
        return exponent * drawn + total * math.log(sum(math.exp(-exponent * log) for log in logs))

    return 0.0 if len(ordered) < 2 else float(minimize_scalar(cost, bounds=(0.0, 5.0), method="bounded").x)
