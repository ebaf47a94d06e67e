"""When requests or sessions begin: Poisson, burstier gaps, a switching rate, a rate by the clock, or the times of a trace."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Any


def arrival_times(process: Any, rate_per_s: float, rng: Random) -> Iterator[float]:
    """Yield ascending times in seconds with the long-run mean rate ``rate_per_s``. ``process``: an ``Arrivals`` block, or None for Poisson."""
    if process is None or process.process == "poisson":
        return _gaps(lambda: rng.expovariate(rate_per_s))
    if process.process == "gamma":
        shape = 1 / process.cv**2
        return _gaps(lambda: rng.gammavariate(shape, 1 / (shape * rate_per_s)))
    if process.process == "weibull":
        form = weibull_shape(process.cv)
        scale = 1 / (rate_per_s * math.gamma(1 + 1 / form))
        return _gaps(lambda: rng.weibullvariate(scale, form))
    if process.process == "mmpp":
        return _by_rate(_switching(process, rate_per_s, rng), rng)
    if process.process == "piecewise":
        return _by_rate(_clocked(process.steps, process.period, rate_per_s), rng)
    return _recorded(process.trace, rate_per_s)


def _gaps(draw: Any) -> Iterator[float]:
    at = 0.0
    while True:
        at += draw()
        yield at


def weibull_shape(cv: float) -> float:
    """Return the Weibull shape k whose coefficient of variation is ``cv``: cv^2 = G(1 + 2/k) / G(1 + 1/k)^2 - 1, by bisection."""
    low, high = 0.1, 100.0
    for _ in range(80):
        middle = math.sqrt(low * high)
        spread = math.exp(math.lgamma(1 + 2 / middle) - 2 * math.lgamma(1 + 1 / middle)) - 1
        low, high = (middle, high) if spread > cv * cv else (low, middle)
    return low


def _by_rate(pieces: Iterator[tuple[float, float]], rng: Random) -> Iterator[float]:
    """Yield a Poisson process whose rate is constant on pieces (seconds, rate per s), by the time change: exact, no thinning."""
    at, wanted = 0.0, rng.expovariate(1.0)
    for length, rate in pieces:
        left = length
        while rate > 0 and wanted <= rate * left:
            step = wanted / rate
            at += step
            left -= step
            yield at
            wanted = rng.expovariate(1.0)
        wanted -= rate * left
        at += left


def _switching(process: Any, rate_per_s: float, rng: Random) -> Iterator[tuple[float, float]]:
    """Yield the pieces of a two-state MMPP: bursts take ``burst_share`` of the time at ``burst`` times the rate between them."""
    share = process.burst_share
    quiet = rate_per_s / (1 - share + share * process.burst)
    means = (process.burst_s * (1 - share) / share, process.burst_s)
    busy = rng.random() < share
    while True:
        yield rng.expovariate(1 / means[busy]), quiet * (process.burst if busy else 1.0)
        busy = not busy


def _clocked(steps: list[tuple[float, float]], period: float | None, rate_per_s: float) -> Iterator[tuple[float, float]]:
    """Yield (seconds, rate) of (start, factor) steps; they repeat after ``period``, or the last one lasts."""
    while True:
        for (start, factor), (end, _) in zip(steps, [*steps[1:], (period if period is not None else math.inf, 0.0)], strict=True):
            yield end - start, factor * rate_per_s


def _recorded(trace: str, rate_per_s: float) -> Iterator[float]:
    """Yield the arrival times of a trace, stretched to the mean rate; ends with the trace."""
    from array import array

    from kvsim.workload.read import open_trace

    times = array("d", (spec.arrival_ps * 1e-12 for spec in open_trace(trace, zero_outputs="prefill_only")))
    span = times[-1] - times[0]
    stretch = (len(times) - 1) / span / rate_per_s if span > 0 else 1.0
    for at in times:
        yield (at - times[0]) * stretch
