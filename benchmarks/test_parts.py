"""The parts of a simulation on their own (pytest-benchmark): match, insert, evict, plan, run. `make bench` runs them after the table."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.kv.cache import Holding, KvCache
from kvsim.rules import get
from kvsim.serving.sglang.scheduler import SglangScheduler
from kvsim.workload.spec import RequestSpec

APART = 1 << 32


class Instant:
    """Copies that are done at once."""

    def write(self, tokens: int, now: int) -> int:
        return now

    def load(self, tokens: int, now: int) -> int:
        return now

    def done(self, ticket: int, now: int) -> bool:
        return True

    def finish_time(self, ticket: int, now: int) -> int:
        return now


def filled(paths: int, *, device: int = 1 << 30) -> KvCache:
    """Return a cache of ``paths`` prompts of four nodes each behind a shared beginning."""
    cache = KvCache(get("sglang-0.5.9"), page_size=16, device_tokens=device, host_tokens=1 << 31, transfers=Instant())
    for number in range(paths):
        for turn in range(4):
            insert(cache, number, 512 * (turn + 1))
    return cache


def insert(cache: KvCache, number: int, tokens: int) -> None:
    """Take a prompt through admission and finish."""
    holding = Holding(((0, 512), ((number + 1) * APART, tokens)), 512 + tokens, (number + 1) * APART + APART // 2)
    match = cache.match(holding, holding.total - 1)
    cache.hold(holding, match, 0)
    cache.make_room(holding.total, 0)
    cache.extend(holding, holding.total)
    cache.finish(holding, holding.total, 0)
    cache.poll(0)


def test_match(benchmark: Any) -> None:
    cache = filled(1000)
    holding = Holding(((0, 512), (500 * APART, 2048), (-5, 100)), 2660, APART // 4)
    fresh = benchmark(lambda: cache.match(Holding(holding.runs[:3], 2660, APART // 4), 2656))
    assert fresh.device == 2560


def test_insert(benchmark: Any) -> None:
    cache, numbers = filled(1000), iter(range(10_000, 10_000_000))
    benchmark(lambda: insert(cache, next(numbers), 1024))
    assert cache.demoted == 0


def test_insert_that_evicts(benchmark: Any) -> None:
    cache, numbers = filled(1000, device=1_000_000), iter(range(10_000, 10_000_000))
    benchmark(lambda: insert(cache, next(numbers), 1024))
    assert cache.demoted > 0


def scheduler(running: int) -> SglangScheduler:
    """Return a scheduler that decodes ``running`` requests for a long time."""
    from kvsim.config.load import load
    from kvsim.config.resolve import resolve

    overrides = ["engine.device_tokens=100000000", "engine.hicache.ratio=0", "engine.max_running_requests=256"]
    params = resolve(load("toy", overrides)).engine
    made = SglangScheduler(params, Instant())
    for number in range(running):
        made.submit(RequestSpec(str(number), 0, (((number + 1) * APART, 64),), 64, 100_000, (number + 1) * APART + APART // 2), 0)
    while made.waiting or made.chunked is not None:
        made.settle(made.plan(0), 0)
    return made


@pytest.mark.parametrize("running", [8, 128])
def test_plan_and_settle_a_decode_step(benchmark: Any, running: int) -> None:
    made = scheduler(running)
    made.settle(made.plan(0), 0)
    benchmark(lambda: made.settle(made.plan(0), 0))
    assert len(made.running) == running


@pytest.mark.parametrize("steps", [1, 100])
def test_run_of_decode_steps(benchmark: Any, steps: int) -> None:
    made = scheduler(64)
    made.settle(made.plan(0), 0)
    step = made.plan(0)
    benchmark(lambda: made.advance(steps, step))
    assert made.cohort.size == 64
