"""Small series for figures out of large recordings: binned, exact in each bin, whatever the number of requests.

Everything here reduces: the result has at most a few hundred rows. Times in are integer picoseconds, times out seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    import numpy.typing as npt

    from kvsim.record.recording import Recording

    Floats = npt.NDArray[np.float64]

PS = 1e-12
BINS = 200
Row = dict[str, Any]


def span_ps(recording: Recording) -> int:
    """Return the length of the run in ps: the manifest's end, or the last fact."""
    end = int(recording.manifest.get("end_ps") or 0)
    last = max((row[3] for row in recording.steps), default=0)
    return max(end, last, max((row.end_ps or 0 for row in recording.requests), default=0), 1)


def edges(recording: Recording, bins: int = BINS) -> Floats:
    """Return ``bins`` + 1 equally spaced bin edges over the run, in ps."""
    import numpy as np

    return np.linspace(0, span_ps(recording), bins + 1)


def level(changes: Iterable[tuple[Any, Any]], at: Floats) -> tuple[Floats, Floats]:
    """Return mean and maximum per bin of a level given as (times, differences) arrays, summed over the pairs.

    The level is 0 before its first change and keeps its last value. The mean is the exact time average within the bin.
    """
    import numpy as np

    pairs = [(np.asarray(t, dtype=np.float64), np.asarray(d, dtype=np.float64)) for t, d in changes if len(t)]
    if not pairs:
        return np.zeros(len(at) - 1), np.zeros(len(at) - 1)
    times = np.concatenate([t for t, _ in pairs])
    order = np.argsort(times, kind="stable")
    times = times[order]
    values = np.cumsum(np.concatenate([d for _, d in pairs])[order])
    area = np.concatenate([[0.0], np.cumsum(values[:-1] * np.diff(times))])
    bounded = np.clip(at, times[0], None)
    whole = np.interp(bounded, times, area) + np.clip(bounded - times[-1], 0, None) * values[-1]
    mean = np.diff(whole) / np.diff(at)
    held = np.searchsorted(times, at[:-1], side="right") - 1
    peak = np.where(held >= 0, values[np.maximum(held, 0)], 0.0)
    inside = np.clip(np.searchsorted(at, times, side="right") - 1, 0, len(at) - 2)
    last_of_instant = np.append(np.diff(times) > 0, True)
    np.maximum.at(peak, inside[last_of_instant], values[last_of_instant])
    return mean, peak


def step_level(recording: Recording, column: int, at: Floats) -> tuple[Floats, Floats]:
    """Return mean and maximum per bin of a column of the steps table that holds at ``end_ps``, summed over replicas."""
    import numpy as np

    by_replica: dict[int, tuple[list[int], list[int]]] = {}
    for row in recording.steps:
        times, values = by_replica.setdefault(row[0], ([], []))
        times.append(row[3])
        values.append(row[column])
    return level(((t, np.diff(np.asarray(v), prepend=0)) for t, v in by_replica.values()), at)


def busy(intervals: Sequence[tuple[int, int]], at: Floats) -> Floats:
    """Return the share of each bin covered by the intervals (overlaps counted as often as they occur)."""
    import numpy as np

    if not intervals:
        return np.zeros(len(at) - 1)
    bounds = np.asarray(intervals, dtype=np.float64)
    return level([(bounds[:, 0], np.ones(len(bounds))), (bounds[:, 1], -np.ones(len(bounds)))], at)[0]


def presence(recording: Recording, at: Floats) -> dict[str, tuple[Floats, Floats]]:
    """Return requests running and waiting (mean, maximum per bin), exact from the requests' own times."""
    import numpy as np

    end = span_ps(recording)
    waiting = [
        (r.arrival_ps, r.admitted_ps if r.admitted_ps is not None else (r.end_ps if r.end_ps is not None else end))
        for r in recording.requests
    ]
    running = [(r.admitted_ps, r.end_ps if r.end_ps is not None else end) for r in recording.requests if r.admitted_ps is not None]

    def changes(pairs: list[Any]) -> list[tuple[Any, Any]]:
        if not pairs:
            return []
        bounds = np.asarray(pairs, dtype=np.float64)
        ones = np.ones(len(bounds))
        return [(bounds[:, 0], ones), (bounds[:, 1], -ones)]

    return {"running": level(changes(running), at), "waiting": level(changes(waiting), at)}


def ecdf(values: Iterable[float], points: int = 240) -> list[tuple[float, float]]:
    """Return (value, share of values not larger) at up to ``points`` quantiles, the upper tail denser; every value if
    there are few.
    """
    import numpy as np

    data = np.sort(np.asarray(list(values), dtype=np.float64))
    n = len(data)
    if n == 0:
        return []
    if n <= points:
        picked = np.arange(n)
    else:
        body = np.linspace(0, 0.98, points * 2 // 3)
        tail = 1 - np.geomspace(0.02, 1 / n, points - len(body))
        picked = np.unique(np.append(np.round(np.concatenate([body, tail]) * n - 1).clip(0, n - 1).astype(int), n - 1))
    return [(float(data[i]), float((i + 1) / n)) for i in picked]


def sums(times: Iterable[int], weights: Iterable[float], at: Floats) -> Floats:
    """Return the sum of weights whose time falls into each bin (the last edge belongs to the last bin)."""
    import numpy as np

    t = np.fromiter(times, dtype=np.float64)
    w = np.fromiter(weights, dtype=np.float64)
    return np.histogram(t, bins=at, weights=w)[0]


def middles(at: Floats) -> list[float]:
    """Return the middle of each bin in seconds."""
    return [float(x) for x in (at[:-1] + at[1:]) / 2 * PS]


def tidy(value: float) -> float:
    """Return a number with six significant digits: what a picture needs, at half the bytes."""
    return float(f"{value:.6g}")
