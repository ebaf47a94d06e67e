"""Intervals cover: on processes whose mean is known, 95 % intervals of seeded trials hold it in 92 to 98 % of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from scipy import stats

from kvsim.measure.compare import paired
from kvsim.measure.steady import mean_with_halfwidth, mser5, percentile, percentile_interval, replication_estimate, t_975


def mm1(rng: random.Random, count: int, load: float) -> list[float]:
    """Waits of an M/M/1 queue, service mean 1, from empty."""
    return lindley(rng, count, load, lambda: rng.expovariate(1.0))


def lindley(rng: random.Random, count: int, load: float, service: Callable[[], float]) -> list[float]:
    waits, wait = [], 0.0
    for _ in range(count):
        waits.append(wait)
        wait = max(0.0, wait + service() - rng.expovariate(load))
    return waits


def mg1(rng: random.Random, count: int, load: float) -> list[float]:
    """Waits of an M/G/1 queue with uniform service on [0, 2]."""
    return lindley(rng, count, load, lambda: rng.uniform(0.0, 2.0))


def ar1(rng: random.Random, count: int, phi: float = 0.8, start: float = 0.0) -> list[float]:
    values, x = [], start
    for _ in range(count):
        x = phi * x + rng.gauss(0, 1)
        values.append(10 + x)
    return values


#: name -> (sample, true mean): Pollaczek-Khinchine W = load E[S^2] / (2 (1 - load))
PROCESSES: dict[str, tuple[Callable[[random.Random], list[float]], float]] = {
    "M/M/1 at 0.5": (lambda rng: mm1(rng, 12_000, 0.5), 0.5 * 2 / (2 * 0.5)),
    "M/M/1 at 0.7": (lambda rng: mm1(rng, 30_000, 0.7), 0.7 * 2 / (2 * 0.3)),
    "M/G/1 at 0.6": (lambda rng: mg1(rng, 15_000, 0.6), 0.6 * (4 / 3) / (2 * 0.4)),
    "AR(1)": (lambda rng: ar1(rng, 4_000), 10.0),
    "AR(1) from far away": (lambda rng: ar1(rng, 4_000, start=30.0), 10.0),
}


def coverage(name: str, trials: int) -> float:
    sample, mean = PROCESSES[name]
    inside = 0
    for seed in range(trials):
        found = mean_with_halfwidth(sample(random.Random(seed)))
        assert found.half_width is not None
        inside += abs(found.mean - mean) <= found.half_width
    return inside / trials


@pytest.mark.long
@pytest.mark.parametrize("name", PROCESSES)
def test_intervals_of_one_run_cover_in_92_to_98_percent_of_1000_trials(name: str):
    assert 0.92 <= coverage(name, 1000) <= 0.98


@pytest.mark.parametrize("name", ["M/M/1 at 0.5", "AR(1)"])
def test_intervals_of_one_run_cover_roughly_in_60_trials(name: str):
    assert coverage(name, 60) >= 0.85


def paired_coverage(trials: int) -> float:
    """Two M/M/1 queues fed the same arrivals, the second 10 % faster: the true difference is exact."""
    truth = 0.5 * 2 * 0.81 / (2 * (1 - 0.45)) - 0.5 * 2 / (2 * 0.5)
    inside = 0
    for seed in range(trials):
        rng = random.Random(seed)
        gaps = [rng.expovariate(0.5) for _ in range(12_000)]
        work = [rng.expovariate(1.0) for _ in range(12_000)]
        slow, fast = _waits(gaps, work, 1.0), _waits(gaps, work, 0.9)
        found = paired(slow, fast)
        assert found is not None
        assert found.half_width is not None
        inside += abs(found.mean - truth) <= found.half_width
    return inside / trials


def _waits(gaps: list[float], work: list[float], scale: float) -> list[float]:
    waits, wait = [], 0.0
    for gap, job in zip(gaps, work, strict=True):
        waits.append(wait)
        wait = max(0.0, wait + scale * job - gap)
    return waits


@pytest.mark.long
def test_paired_intervals_cover_in_92_to_98_percent_of_1000_trials():
    assert 0.92 <= paired_coverage(1000) <= 0.98


def test_pairing_narrows_the_interval_of_a_difference():
    rng = random.Random(7)
    gaps, work = [rng.expovariate(0.5) for _ in range(12_000)], [rng.expovariate(1.0) for _ in range(12_000)]
    slow, fast = _waits(gaps, work, 1.0), _waits(gaps, work, 0.95)
    together = paired(slow, fast)
    one, two = mean_with_halfwidth(slow, trim=False).half_width, mean_with_halfwidth(fast, trim=False).half_width
    assert together is not None
    assert together.half_width is not None
    assert one is not None
    assert two is not None
    assert together.clear
    assert together.half_width < 0.3 * math.hypot(one, two)


def test_replication_intervals_cover():
    inside = 0
    for seed in range(400):
        rng = random.Random(seed)
        found = replication_estimate([rng.gauss(3, 2) for _ in range(5)])
        assert found.half_width is not None
        inside += abs(found.mean - 3) <= found.half_width
    assert 0.92 <= inside / 400 <= 0.98


@pytest.mark.parametrize("p", [50, 90, 99])
def test_order_statistic_intervals_cover_the_true_percentile(p: int):
    truth = -math.log(1 - p / 100)
    inside = 0
    for seed in range(400):
        rng = random.Random(seed)
        interval = percentile_interval(sorted(rng.expovariate(1.0) for _ in range(2000)), p)
        assert interval is not None
        inside += interval[0] <= truth <= interval[1]
    assert 0.92 <= inside / 400 <= 0.99


def test_a_percentile_of_few_values_has_no_interval():
    assert percentile_interval(sorted(range(50)), 99) is None


@pytest.mark.parametrize("freedom", [1, 2, 5, 10, 19, 30, 31, 40, 60, 120, 1000])
def test_the_small_t_table_equals_scipy(freedom: int):
    assert t_975(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=2e-5)


def test_mser5_cuts_a_transient_and_leaves_a_steady_run_alone():
    cut = mser5(ar1(random.Random(1), 4000, start=200.0))
    assert 15 <= cut <= 200
    assert mser5([5.0, 6.0] * 500) == 0


def test_percentiles_are_linear_like_numpy():
    import numpy as np

    values = sorted(random.Random(2).random() for _ in range(137))
    for p in (0, 12.5, 50, 99, 100):
        assert percentile(values, p) == pytest.approx(float(np.percentile(values, p)))


def test_the_interval_of_a_share_stays_within_nought_and_one_and_holds_the_share():
    from kvsim.measure.steady import share_interval

    for count in (1, 5, 100, 10_000):
        for share in (0.0, 0.01, 0.5, 0.99, 1.0):
            for half in (None, 0.0, 0.01, 0.3, 2.0):
                low, high = share_interval(share, half, count)
                assert 0 <= low <= share <= high <= 1
                assert high > low


def test_the_interval_of_an_independent_share_is_wilsons():
    from scipy.stats import binomtest

    from kvsim.measure.steady import share_interval

    expected = binomtest(3, 40).proportion_ci(method="wilson")
    assert share_interval(3 / 40, None, 40) == pytest.approx((expected.low, expected.high), rel=1e-6)


def test_the_interval_of_a_share_covers_it_in_most_trials():
    from kvsim.measure.steady import share_interval

    draw, covered = random.Random(5), 0
    for _ in range(1000):
        share = sum(draw.random() < 0.03 for _ in range(100)) / 100
        low, high = share_interval(share, None, 100)
        covered += low <= 0.03 <= high
    assert 920 <= covered <= 990
