"""Overloaded, near the limit or below it: on a queue whose load is known, and on what a window can show."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise

import pytest

from kvsim.measure.verdict import BELOW, NEAR, OVERLOADED, UNKNOWN, WELL_BELOW, WINDOWS, Watched, levels, load_verdict


def queue(seed: int, rho: float, count: int) -> Watched:
    """An M/M/1 queue with mean service 1,000 and load ``rho``, as seen between its first and last arrival."""
    draw = random.Random(seed)
    arrivals = [round(t) for t in accumulate(draw.expovariate(rho / 1000) for _ in range(count))]
    ends, free, busy_spans, waiting_spans = [], 0, [], []
    for arrival in arrivals:
        start = max(arrival, free)
        waiting_spans.append((arrival, start))
        free = start + round(draw.expovariate(1 / 1000))
        busy_spans.append((start, free))
        ends.append(free)
    edges = [arrivals[0] + (arrivals[-1] - arrivals[0]) * i // WINDOWS for i in range(WINDOWS + 1)]
    window = (edges[-1] - edges[0]) / WINDOWS
    busy, waited = shares(busy_spans, edges, window), shares(union(waiting_spans), edges, window)
    return Watched(busy, waited, levels(arrivals, ends, edges), count, 0, (free - arrivals[-1]) / (arrivals[-1] - arrivals[0]))


def union(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for low, high in spans:
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        elif high > low:
            out.append((low, high))
    return out


def shares(spans: list[tuple[int, int]], edges: list[int], window: float) -> list[float]:
    until = [sum(min(high, edge) - min(low, edge) for low, high in spans) for edge in edges]
    return [(b - a) / window for a, b in pairwise(until)]


@pytest.mark.parametrize(
    ("rho", "allowed"),
    [
        (0.3, {WELL_BELOW}),
        (0.5, {WELL_BELOW}),
        (0.7, {WELL_BELOW, BELOW}),
        (0.8, {BELOW, NEAR}),
        (0.9, {BELOW, NEAR}),
        (0.98, {NEAR}),
        (1.05, {NEAR, OVERLOADED}),
        (1.2, {OVERLOADED}),
        (1.5, {OVERLOADED}),
    ],
)
def test_the_verdict_on_a_queue_of_known_load_is_true_for_every_seed(rho: float, allowed: set[str]):
    found = [load_verdict(queue(seed, rho, 2000))["state"] for seed in range(12)]
    assert sum(state not in allowed for state in found) <= (1 if rho == 0.98 else 0), found


def test_a_long_run_tells_five_percent_too_much_from_two_percent_too_little():
    over = [load_verdict(queue(seed, 1.05, 12_000))["overloaded"] for seed in range(8)]
    under = [load_verdict(queue(seed, 0.98, 12_000))["overloaded"] for seed in range(8)]
    assert sum(over) >= 6
    assert sum(under) <= 1


def test_an_overload_names_the_growth_and_the_busy_share():
    reasons = " ".join(load_verdict(queue(1, 1.3, 2000))["reasons"])
    assert "the queue grows" in reasons
    assert "GPU busy 100 %" in reasons


def test_arrivals_that_were_never_served_on_a_busy_machine_are_an_overload():
    seen = Watched([1.0] * 20, [1.0] * 20, [10] * 21, 1000, 200, 0.0)
    found = load_verdict(seen)
    assert found["state"] == OVERLOADED
    assert "200 of 1,000 requests were never served" in found["reasons"]


def test_a_busy_machine_for_which_nobody_waits_is_well_below_its_limit():
    assert load_verdict(Watched([1.0] * 20, [0.05] * 20, [5] * 21, 1000, 0, 0.0))["state"] == WELL_BELOW


def test_a_burst_that_fills_a_third_of_the_run_is_near_the_limit_and_says_so():
    busy, waited = [1.0] * 7 + [0.4] * 13, [1.0] * 7 + [0.1] * 13
    found = load_verdict(Watched(busy, waited, [0, *[20] * 7, *[2] * 13], 1000, 0, 0.0))
    assert found["state"] == NEAR
    assert "fully busy with a queue in 7 of 20 parts of the run" in found["reasons"]


def test_too_few_requests_get_no_verdict():
    assert load_verdict(Watched([1.0] * 20, [1.0] * 20, [0] * 21, 19, 5, 1.0))["state"] == UNKNOWN


def test_the_utilisation_interval_stays_within_nought_and_one():
    found = load_verdict(Watched([1.0] * 19 + [0.1], [0.0] * 20, [1] * 21, 100, 0, 0.0))
    low, high = found["utilisation_interval"]
    assert 0 <= low <= found["utilisation_while_arriving"] <= high <= 1


def state_of(base: dict, *sets: str) -> str:
    from kvsim.measure.load import overload_verdict
    from kvsim.sim.simulate import simulate
    from kvsim.study.point import resolve_task

    recording = simulate(resolve_task((base, list(sets), 0)))
    return str(overload_verdict(recording, recording.manifest["end_ps"])["state"])


def test_the_demo_without_hicache_is_near_its_limit_and_with_ratio_four_below():
    from kvsim.study.point import plain_scenario

    base = plain_scenario("hicache-ratio")
    assert state_of(base, "engine.hicache.ratio=0") == NEAR
    assert state_of(base, "engine.hicache.ratio=4") in (BELOW, WELL_BELOW)


@pytest.mark.long
@pytest.mark.parametrize(("scale", "state"), [(0.03, WELL_BELOW), (0.1, NEAR), (0.12, OVERLOADED)])
def test_the_mooncake_hour_on_the_anchor_is_what_its_rate_makes_it(shared, scale: float, state: str):
    from kvsim.cli.study_common import scenario_of
    from kvsim.study.point import plain_scenario

    sets = [f"workload.trace={shared / 'traces/mooncake_conversation.jsonl'}", "workload.kind=trace", f"workload.rate_scale={scale}"]
    scenario = scenario_of(None, [*sets, "engine.hicache.ratio=4"], "8x-rtx-pro-6000", "kimi-k2.5-int4", None)
    assert state_of(plain_scenario(scenario)) == state
