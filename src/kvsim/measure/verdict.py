"""Whether a machine kept up with its load: overloaded, near the limit, below it or well below it, and why.

An overload is growth: the number of requests in the system rises all through the arrivals by more than its own noise. Twenty windows of
equal length give the increments; at exactly full load they are those of a reflected random walk, whose sum exceeds 2.5 standard errors in
about 1 % of runs. A busy GPU alone is no limit, because a batch may have room for more: near the limit somebody also waits.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kvsim.measure.steady import t_975

WINDOWS = 20
FEW = 20  # requests below which nothing is said
CRITICAL = 2.5  # standard errors of growth
FULL, WAITED = 0.9, 0.5  # near the limit: busy and waited for at least these shares of the time,
SATURATED, QUEUED = 0.95, 0.8  # or for these shares of
SHARE_OF_WINDOWS = 0.25  # this many windows
CALM, HARDLY = 0.7, 0.2  # well below: busy less than this, or hardly ever waited for
OVERLOADED, NEAR, BELOW, WELL_BELOW = "overloaded", "near the limit", "below the limit", "well below the limit"
UNKNOWN = "too few requests to tell"


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen between the first and the last arrival.

    ``busy``, ``waited``: shares of each window in which the GPUs worked, and in which they did while a request waited; ``level``: requests in
    the system at the windows' edges; ``count``: requests; ``unserved``: those without a first token at the end; ``drain``: time after the
    last arrival over the time before.
    """

    busy: Sequence[float]
    waited: Sequence[float]
    level: Sequence[int]
    count: int
    unserved: int
    drain: float


def levels(arrivals: Sequence[int], ends: Sequence[int], edges: Sequence[int]) -> list[int]:
    """Return how many requests are in the system at each edge, from ascending arrival and end times."""
    return [bisect_right(arrivals, edge) - bisect_right(ends, edge) for edge in edges]


def load_verdict(seen: Watched) -> dict[str, Any]:
    """Return ``state`` (one of the constants), ``overloaded``, ``reasons``, and the figures they rest on.

    ``utilisation_interval``: 95 %, over the windows. ``growth_per_100``: requests by which the system filled per 100 arrivals, with
    ``growth_half_width`` (2 standard errors).
    """
    busy, half = _mean(seen.busy)
    waited = sum(seen.waited) / len(seen.waited) if seen.waited else 0.0
    growth, error = _growth(seen)
    low, high = max(0.0, busy - half), min(1.0, busy + half)
    figures: dict[str, Any] = {
        "utilisation_while_arriving": round(busy, 6),
        "utilisation_interval": [round(low, 6), round(high, 6)],
        "waited_share": round(waited, 6),
        "growth_per_100": round(100 * growth, 4),
        "growth_half_width": round(200 * error, 4),
    }
    if seen.count < FEW or not seen.busy:
        return {"state": UNKNOWN, "overloaded": False, "reasons": [], **figures}
    reasons = _overload(seen, busy, growth, error)
    state = OVERLOADED if reasons else _below(seen, busy, waited, reasons)
    reasons.append(
        f"GPU busy {100 * busy:.0f} % [{100 * low:.0f}, {100 * high:.0f}] while requests arrived, "
        f"somebody waited in {100 * waited:.0f} % of that time"
    )
    if state in (NEAR, OVERLOADED):
        reasons.append(f"requests in the system grew by {100 * growth:.2g} ± {200 * error:.2g} per 100 arrivals")
    return {"state": state, "overloaded": state == OVERLOADED, "reasons": reasons, **figures}


def _mean(values: Sequence[float]) -> tuple[float, float]:
    count = len(values)
    if not count:
        return 0.0, 0.0
    mean = math.fsum(values) / count
    if count < 2:
        return mean, 0.0
    spread = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return mean, t_975(count - 1) * math.sqrt(spread / count)


def _growth(seen: Watched) -> tuple[float, float]:
    """Return the growth of the number in the system per arrival, and its standard error."""
    steps = [after - before for before, after in pairwise(seen.level)]
    if len(steps) < 2 or not seen.count:
        return 0.0, 0.0
    mean = sum(steps) / len(steps)
    spread = math.fsum((step - mean) ** 2 for step in steps) / (len(steps) - 1)
    return sum(steps) / seen.count, math.sqrt(spread * len(steps)) / seen.count


def _overload(seen: Watched, busy: float, growth: float, error: float) -> list[str]:
    later = seen.busy[len(seen.busy) // 4 :]
    full = busy >= SATURATED or (bool(later) and sum(later) / len(later) >= SATURATED)
    if not full:
        return []
    reasons = []
    if growth * seen.count >= max(10, 0.01 * seen.count) and growth > CRITICAL * error:
        middle = seen.level[len(seen.level) // 2]
        reasons.append(
            f"the queue grows: {seen.level[0]:,}, {middle:,}, {seen.level[-1]:,} requests in the system at the first, the middle and "
            "the last arrival, more than its noise explains"
        )
    if seen.unserved >= max(10, 0.05 * seen.count):
        reasons.append(f"{seen.unserved:,} of {seen.count:,} requests were never served")
    if seen.drain > 0.1 and seen.level[-1] >= 0.05 * seen.count:
        reasons.append(f"after the last arrival it worked on for {100 * seen.drain:.0f} % of the time before")
    return reasons


def _below(seen: Watched, busy: float, waited: float, reasons: list[str]) -> str:
    """Return the state of a machine that is not overloaded; a reason is added where the mean does not show it."""
    full = sum(1 for b, w in zip(seen.busy, seen.waited, strict=True) if b >= SATURATED and w >= QUEUED)
    if busy >= FULL and waited >= WAITED:
        return NEAR
    if full >= SHARE_OF_WINDOWS * len(seen.busy):
        reasons.append(f"fully busy with a queue in {full} of {len(seen.busy)} parts of the run")
        return NEAR
    return WELL_BELOW if not full and (busy < CALM or waited < HARDLY) else BELOW
