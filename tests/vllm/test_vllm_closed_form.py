"""Runs of decode steps in closed form are bit-equal to single steps."""

from __future__ import annotations

import pytest
from vllm_world import random_world, simulate


def facts(seed: int, exact: bool):
    params, specs = random_world(seed)
    recording, scheduler = simulate(params, specs, exact_steps=exact)
    counters = scheduler.occupancy
    return (
        params,
        sorted(recording.requests, key=lambda row: row.id),
        [
            counters.device_used,
            counters.device_evictable,
            counters.host_used,
            counters.demoted,
            counters.dropped,
            counters.host_evicted,
            counters.backed_up,
            counters.loaded,
        ],
        sum(row[4] for row in recording.steps),
        sum(row[17] for row in recording.steps),
    )


def check(seed: int) -> None:
    runs, steps = facts(seed, False), facts(seed, True)
    for one, other in zip(runs[1], steps[1], strict=True):
        assert one == other, (seed, runs[0])
    assert runs[2:] == steps[2:], (seed, runs[0])


@pytest.mark.parametrize("block", range(8))
def test_a_run_of_decode_steps_equals_single_steps(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        check(seed)


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_a_run_of_decode_steps_equals_single_steps_at_length(block: int) -> None:
    for seed in range(1000 + block * 100, 1100 + block * 100):
        check(seed)
