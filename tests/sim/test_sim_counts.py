"""Cost by counts: lines of Python executed per request do not grow with the queue, the tree or the pool (never seconds)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "chain": 40, "children": 100, "one-token": 60, "instant": 200, "instant-lpm": 200, "queue": 150, "queue-lpm": 150,
    "waves-lpm": 240, "scan": 150, "ratio-64": 150, "retractions": 60,
}  # fmt: skip


@pytest.fixture(scope="module")
def worst():
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks import worst
    finally:
        sys.path.remove(str(ROOT))
    return worst


def lines_per_request(worst, name: str, count: int) -> float:
    """Return how many lines of Python the simulation executes per request (loops count each time round)."""
    from kvsim.config.load import load
    from kvsim.config.resolve import resolve
    from kvsim.sim.simulate import simulate
    from kvsim.workload.clients import OpenLoop

    make, _, overrides = worst.CASES[name]
    resolved = resolve(load("toy", [*worst.TOY, *overrides]))
    specs = make(count)
    lines = 0

    def local(frame, event, argument):
        nonlocal lines
        lines += event == "line"
        return local

    before = sys.gettrace()
    sys.settrace(local)
    try:
        simulate(resolved, client=OpenLoop(specs))
    finally:
        sys.settrace(before)
    return lines / count


@pytest.mark.parametrize("name", SMALL)
def test_work_per_request_does_not_grow_with_the_size(worst, name):
    count = SMALL[name]
    lines_per_request(worst, name, 10)  # what is imported once is imported
    small, large = lines_per_request(worst, name, count), lines_per_request(worst, name, 4 * count)
    limit = 2.5 if name == "chain" else 1.3  # a path four times as deep is walked; nothing else may grow
    assert large <= limit * small, f"{small:.0f} lines per request at {count} requests, {large:.0f} at {4 * count}"


def test_every_worst_case_is_guarded(worst):
    assert set(SMALL) == set(worst.CASES)


@pytest.mark.parametrize("name", ["children", "scan", "instant"])
def test_few_events_and_rows_per_request(worst, name):
    told = worst.run_case(name)
    assert told["events_per_request"] <= 6
    assert told["rows_per_request"] <= 3
