"""Runs of decode steps in closed form equal the same steps one by one: every step, every request, every counter."""

from __future__ import annotations

import pytest
from sched_world import drive, random_world, request, server

CASES = 240
LONG_CASES = 6000


def assert_equal(seeds: range) -> dict[str, int]:
    seen = {"runs": 0, "skipped": 0, "retractions": 0, "failures": 0, "loads": 0, "dropped": 0}
    for seed in seeds:
        params, specs, delays = random_world(seed)
        one = drive(params, specs, delays=delays)
        many = drive(params, specs, closed=True, delays=delays)
        left, right = one.facts(), many.facts()
        for part in left:
            assert left[part] == right[part], f"world {seed}: {part}"
        seen["runs"] += many.runs
        seen["skipped"] += many.skipped
        seen["retractions"] += len(one.retracted)
        seen["failures"] += bool(one.failure)
        seen["loads"] += one.end["loaded"] > 0
        seen["dropped"] += one.end["dropped"] > 0
    return seen


def test_random_tight_worlds_are_equal_stepwise_and_in_closed_form() -> None:
    seen = assert_equal(range(CASES))
    assert all(seen.values()), f"these worlds do not exercise everything: {seen}"
    assert seen["skipped"] > 20_000


@pytest.mark.long
def test_thousands_of_random_tight_worlds_are_equal_stepwise_and_in_closed_form() -> None:
    assert_equal(range(100_000, 100_000 + LONG_CASES))


@pytest.mark.parametrize("rules", ["sglang-0.5.9", "sglang-0.5.23"])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_lone_long_answer_is_one_run(rules: str, overlap: bool) -> None:
    params = server(rules, overlap=overlap, device_tokens=5000)
    log = drive(params, [request("a", 10, 1000)], closed=True)
    assert log.runs == 1
    assert log.skipped >= 990


def test_an_arrival_that_cannot_be_admitted_does_not_cut_a_run() -> None:
    params = server(device_tokens=300, overlap=False)
    late = [request("b", 250, 20, at=3), request("c", 5, 5, at=60)]
    log = drive(params, [request("a", 100, 190), *late], closed=True)
    assert log.runs <= 4
    assert log.requests["b"].first_token_ps is not None


def test_a_run_makes_the_evictions_of_its_steps_at_the_steps_where_they_happen() -> None:
    params = server(device_tokens=100, overlap=False)
    cached = [request(name, 20, 1, at=1 + 4 * i) for i, name in enumerate("abc")]
    specs = [*cached, request("z", 10, 80, at=20)]
    one, many = drive(params, specs), drive(params, specs, closed=True)
    assert many.end["dropped"] == one.end["dropped"] == 60
    assert many.runs >= 1
    assert one.facts() == many.facts()
