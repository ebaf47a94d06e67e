"""Decode time as integer straight pieces per batch size: one function for single steps and for whole runs.

For each batch size the step time is a chain of pieces ``value + slope * (context - start)`` with integer picoseconds,
so a run of n steps is a sum of arithmetic series: exact to the picosecond, at a cost per piece touched (one or two as
a rule). A vectorised cumulative sum over the formula was measured as the alternative: 82 us for 200 steps and 700 us
for 5,000 (numpy), against 1.1 and 4.7 us here, and bit equality would then rest on the order of float additions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import isqrt

PS_PER_S = 1e12
#: Largest error of a straight piece to the formula, relative to the step (0.2 % is what the documentation promises).
TOLERANCE = 0.001
FARTHEST_CONTEXT = 1 << 27
NARROWEST = 64

#: (starts, values, slopes): piece j holds for contexts in [starts[j], starts[j + 1]), the last one without end.
Curve = tuple[list[int], list[int], list[int]]


class PiecewiseDecode:
    """The decode half of ``StepTime``: a subclass supplies ``_make_curve(batch)``, made once per batch size."""

    def __init__(self) -> None:
        self._curves: dict[int, Curve] = {}

    def _make_curve(self, batch: int) -> Curve:
        raise NotImplementedError

    def _curve(self, batch: int) -> Curve:
        curve = self._curves.get(batch)
        if curve is None:
            curve = self._curves[batch] = self._make_curve(batch)
        return curve

    def decode_ps(self, batch: int, sum_context: int) -> int:
        """Return the time of one decode step in ps."""
        starts, values, slopes = self._curves.get(batch) or self._curve(batch)
        j = bisect_right(starts, sum_context) - 1
        return values[j] + slopes[j] * (sum_context - starts[j])

    def decode_segments(self, batch: int, sum_context: int, steps: int) -> list[tuple[int, int, int]]:
        """Return the run's step lengths as (count, first_ps, slope_ps per step) pieces, in order and exact."""
        starts, values, slopes = self._curves.get(batch) or self._curve(batch)
        pieces: list[tuple[int, int, int]] = []
        j, last, context, left = bisect_right(starts, sum_context) - 1, len(starts) - 1, sum_context, steps
        while left > 0:
            while j < last and starts[j + 1] <= context:
                j += 1
            count = left if j == last else min(left, -((context - starts[j + 1]) // batch))
            pieces.append((count, values[j] + slopes[j] * (context - starts[j]), slopes[j] * batch))
            left -= count
            context += count * batch
        return pieces

    def decode_run_ps(self, batch: int, sum_context: int, steps: int) -> int:
        """Return the time of ``steps`` decode steps in ps: the exact sum of its steps."""
        total = 0
        for count, first, slope in self.decode_segments(batch, sum_context, steps):
            total += count * first + slope * (count * (count - 1) >> 1)
        return total

    def decode_steps_until(self, batch: int, sum_context: int, steps: int, elapsed_ps: int) -> int:
        """Return the smallest k <= steps whose run takes at least ``elapsed_ps`` (``steps`` if none does)."""
        if elapsed_ps <= 0:
            return 0
        done, left = 0, elapsed_ps
        for count, first, slope in self.decode_segments(batch, sum_context, steps):
            whole = count * first + slope * (count * (count - 1) >> 1)
            if whole >= left:
                return done + _fewest(first, slope, left)
            left -= whole
            done += count
        return steps


def _fewest(first: int, slope: int, target: int) -> int:
    """Return the smallest k with k*first + slope*k*(k-1)/2 >= target (> 0); first > 0 or slope > 0, none negative."""
    if slope == 0:
        return -(-target // first)
    b = 2 * first - slope
    k = max(0, (isqrt(b * b + 8 * slope * target) - b) // (2 * slope))
    while k * first + slope * (k * (k - 1) >> 1) < target:
        k += 1
    while k > 1 and (k - 1) * first + slope * ((k - 1) * (k - 2) >> 1) >= target:
        k -= 1
    return k


def straight_pieces(formula: Callable[[float], float], batch: int, kinks: Sequence[int] = ()) -> Curve:
    """Return a formula of the summed context (seconds) as integer pieces, each within the tolerance; the last goes on
    for ever.

    ``kinks``: contexts at which the formula bends. Slopes are rounded down, so pieces of a non-decreasing formula
    never fall.
    """
    starts = {0, batch, FARTHEST_CONTEXT, *(kink for kink in kinks if kink > 0)}
    starts |= {batch * 4**k for k in range(3, 14) if batch * 4**k < FARTHEST_CONTEXT}
    points = [0]
    for left, right in pairwise(sorted(starts)):
        _refine(formula, left, right, points)
    values = [int(formula(context) * PS_PER_S + 0.5) for context in points]
    slopes = [(v1 - v0) // (s1 - s0) for (s0, v0), (s1, v1) in pairwise(zip(points, values, strict=True))]
    return points, values, [*slopes, slopes[-1]]


def _refine(formula: Callable[[float], float], left: int, right: int, points: list[int]) -> None:
    """Append the ends of straight pieces over (left, right] that stay within the tolerance."""
    low, high = formula(left), formula(right)
    for part in (0.25, 0.5, 0.75):
        exact = formula(left + (right - left) * part)
        if abs(low + (high - low) * part - exact) > TOLERANCE * exact and right - left > NARROWEST:
            middle = (left + right) // 2
            _refine(formula, left, middle, points)
            _refine(formula, middle, right, points)
            return
    points.append(right)
