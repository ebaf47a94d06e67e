"""Worst cases: one adversarial load per structure, at a size and at four times it. A job of the speed table.

The cost per request may not grow with the size (a queue, a tree, a pool) by more than the row's limit. Times are CPU seconds of the simulation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kvsim.config.load import load
from kvsim.config.resolve import resolve
from kvsim.sim.simulate import simulate
from kvsim.workload.clients import OpenLoop
from kvsim.workload.spec import RequestSpec

Specs = list[RequestSpec]
MS = 1_000_000_000
APART = 1 << 32


def request(number: int, at_ms: int, runs: tuple[tuple[int, int], ...], output: int = 8) -> RequestSpec:
    """Return a request with this content."""
    return RequestSpec(str(number), at_ms * MS, runs, sum(count for _, count in runs), output, (number + 1) * APART)


def chain(count: int) -> Specs:
    """One conversation that grows by 16 tokens a turn: a tree that is one path."""
    return [request(i, 400 * i, ((0, 16 * (i + 1)),)) for i in range(count)]


def children(count: int) -> Specs:
    """A shared prompt with another question each time: one node with a child per request."""
    return [request(i, 100 * i, ((0, 512), ((i + 1) * APART + APART // 2, 64))) for i in range(count)]


def one_token(count: int) -> Specs:
    """Prompts that differ in their last token and are one token longer each time: edges of one token."""
    return [request(i, 100 * i, ((0, 200 + i), ((i + 1) * APART + APART // 2, 1)), 2) for i in range(count)]


def instant(count: int) -> Specs:
    """Everybody at once: a queue of all requests."""
    return [request(i, 0, (((i + 1) * APART + APART // 2, 300),)) for i in range(count)]


def waves(count: int) -> Specs:
    """Waves of 120 at once with a shared beginning each: a queue that lpm sorts by its hits before every pass."""
    return [request(i, i // 120 * 4_000, ((i // 120 * APART, 100), ((i + 1) * APART + APART // 2, 200))) for i in range(count)]


def scan(count: int) -> Specs:
    """Nothing is ever used twice: every insert evicts on both tiers."""
    return [request(i, 100 * i, (((i + 1) * APART + APART // 2, 1_500),)) for i in range(count)]


def retractions(count: int) -> Specs:
    """A pool for a few requests whose outputs outgrow what was reserved for them."""
    return [request(i, 150 * i, (((i + 1) * APART + APART // 2, 200),), 400) for i in range(count)]


#: name: (load, requests, overrides of the toy world). Above 128 waiting lpm is fcfs, as in the engine.
CASES: dict[str, tuple[Callable[[int], Specs], int, tuple[str, ...]]] = {
    "chain": (chain, 250, ("engine.device_tokens=40000",)),
    "children": (children, 1000, ("engine.device_tokens=1000000",)),
    "one-token": (one_token, 500, ("engine.device_tokens=100000",)),
    "instant": (instant, 1000, ()),
    "instant-lpm": (instant, 1000, ("engine.schedule_policy=lpm",)),
    "queue": (instant, 500, ("engine.max_running_requests=4",)),
    "queue-lpm": (instant, 500, ("engine.max_running_requests=4", "engine.schedule_policy=lpm")),
    "waves-lpm": (waves, 480, ("engine.schedule_policy=lpm",)),
    "scan": (scan, 1000, ("engine.hicache.ratio=4",)),
    "ratio-64": (scan, 1000, ("engine.hicache.ratio=64",)),
    "retractions": (retractions, 250, ("engine.device_tokens=3000", "engine.schedule_conservativeness=0.05")),
}
TOY = ("hardware.host_ram=unlimited", "engine.device_tokens=20000", "engine.hicache.ratio=2", "costs={kind: constant, prefill_tokens_per_s: 100000, decode_step: 10ms}")


def run_case(name: str, factor: int = 1) -> dict[str, Any]:
    """Simulate one case at ``factor`` times its size; tell CPU per request and the counts that explain it."""
    make, count, overrides = CASES[name]
    resolved = resolve(load("toy", [*TOY, *overrides]))
    specs = make(count * factor)
    start = time.process_time()
    recording = simulate(resolved, client=OpenLoop(specs))
    cpu = time.process_time() - start
    return {
        "us_per_request": cpu / len(specs) * 1e6,
        "rows_per_request": len(recording.steps) / len(specs),
        "events_per_request": recording.events / len(specs),
        "retractions": sum(row.retractions for row in recording.requests),
        "finished": sum(row.status == "finished" for row in recording.requests),
    }
