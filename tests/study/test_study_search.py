from __future__ import annotations

import math
import random
from typing import Any

import pytest
from study_world import SERVICE_S, md1_rate, queue_base

from kvsim.errors import ConfigError
from kvsim.study.search import INFEASIBLE, MET, MISSED, UNSURE, bisect, judge, load_key, search, search_several


def summary(share: float, total: int = 1000) -> dict[str, Any]:
    return {"slo": {"attainment": share}, "requests": {"total": total}, "batches": {"good": [share] * 20}}


def exact(knee: float, *, largest: bool = True):
    """A world without noise: met below (above) the knee."""

    def evaluate(value: float, replications: Any) -> list[Any]:
        good = value <= knee if largest else value >= knee
        return [summary(1.0 if good else 0.5) for _ in replications]

    return evaluate


def test_the_bracket_holds_a_known_knee_and_is_as_narrow_as_asked():
    found = bisect("x", 0.1, 100, exact(7.3), wanted=0.9, tolerance=0.02)
    assert found.meets is not None
    assert found.fails is not None
    assert found.meets <= 7.3 < found.fails
    assert found.fails - found.meets <= 0.02 * found.fails


def test_the_smallest_size_is_found_from_above():
    found = bisect("x", 0, 16, exact(4.4, largest=False), wanted=0.9, largest=False, tolerance=0.05)
    assert found.meets is not None
    assert found.fails is not None
    assert found.fails < 4.4 <= found.meets


def test_whole_numbers_end_one_apart():
    found = bisect("users", 1, 64, exact(23), wanted=0.9, whole=True)
    assert (found.meets, found.fails) == (23, 24)


def test_a_load_that_is_never_met_says_so():
    found = bisect("x", 1, 2, exact(0.5), wanted=0.9)
    assert found.meets is None
    assert "No x was found" in found.sentence()


def test_a_load_that_is_always_met_says_up_to_where():
    found = bisect("x", 1, 2, exact(50), wanted=0.9)
    assert (found.meets, found.fails) == (2, None)
    assert "up to 2" in found.sentence()


def test_an_infeasible_value_counts_as_missed_and_keeps_its_reason():
    def evaluate(value: float, replications: Any) -> list[Any]:
        return [summary(1.0) if value < 3 else "too large" for _ in replications]

    found = bisect("ratio", 1, 8, evaluate, wanted=0.9)
    assert found.meets is not None
    assert found.meets < 3
    assert any(probe.verdict == INFEASIBLE and probe.reason == "too large" for probe in found.probes)


@pytest.mark.parametrize(("share", "verdict"), [(0.99, MET), (0.8, MISSED), (0.905, UNSURE)])
def test_a_verdict_needs_the_whole_interval_on_one_side(share: float, verdict: str):
    assert judge(1.0, [summary(share, total=1000)], 0.9).verdict == verdict


def test_replications_are_added_only_where_one_does_not_decide():
    asked: dict[float, int] = {}

    def evaluate(value: float, replications: Any) -> list[Any]:
        asked[value] = asked.get(value, 0) + len(replications)
        return [summary(0.9 if 4 < value < 6 else 1.0 if value <= 4 else 0.5) for _ in replications]

    found = bisect("x", 1, 10, evaluate, wanted=0.9, most_replications=8)
    assert {count for value, count in asked.items() if 4 < value < 6} == {8}
    assert {count for value, count in asked.items() if not 4 < value < 6} == {1}
    assert all(4 < value < 6 for value in found.unsure)
    assert (found.meets or 0) <= 4
    assert (found.fails or 0) >= 6


def test_a_search_without_an_slo_is_an_error():
    with pytest.raises(ConfigError, match="slo"):
        search(queue_base(), "workload.rate_per_s", 1, 2, largest=True)


def test_the_load_key_follows_the_workload():
    assert load_key({"workload": {"kind": "poisson"}}) == "workload.rate_per_s"
    assert load_key({"workload": {"trace": "x"}}) == "workload.rate_scale"
    assert load_key({"workload": {"kind": "multi_turn", "users": 4}}) == "workload.users"


def planted(seed: int, requests: int, most: int = 8) -> tuple[float, Any]:
    """An M/D/1 queue whose 90 % attainment of TTFT <= 0.5 s turns at a rate known in closed form."""
    base = queue_base(f"run.seed={seed}", f"workload.requests={requests}", "slo.ttft=0.5", "slo.attainment=0.9")
    answer = md1_rate(SERVICE_S, 0.5 - SERVICE_S, 0.9)
    return answer, search(base, "workload.rate_per_s", 1.0, 9.9, largest=True, tolerance=0.05, most_replications=most)


def test_the_planted_knee_of_an_md1_queue_lies_in_the_bracket():
    answer, found = planted(1, 800, most=3)
    assert found.meets is not None
    assert found.fails is not None
    assert found.meets <= answer <= found.fails
    assert found.fails / found.meets < 1.6


@pytest.mark.long
def test_the_planted_knee_is_found_in_nineteen_of_twenty_seeds():
    inside = 0
    for seed in range(20):
        answer, found = planted(seed, 1500)
        inside += found.meets is not None and found.fails is not None and found.meets <= answer <= found.fails
    assert inside >= 19


def test_several_dimensions_find_the_cheapest_point_that_is_good_enough():
    pytest.importorskip("optuna")

    def evaluate(point: dict[str, float]) -> tuple[float, float]:
        return point["a"] + 2 * point["b"], point["a"] * point["b"] - 4

    best, rows = search_several({"a": (0, 8), "b": (0, 8)}, evaluate, trials=80, seed=3)
    assert best is not None
    assert best["a"] * best["b"] >= 4
    assert best["a"] + 2 * best["b"] < 1.35 * 2 * math.sqrt(8)
    assert len(rows) == 80


def test_noise_does_not_move_the_answer_out_of_the_bracket():
    inside = 0
    for seed in range(20):
        rng = random.Random(seed)

        def evaluate(value: float, replications: Any, rng: random.Random = rng) -> list[Any]:
            share = 1 / (1 + math.exp(2 * (value - 5)))  # 0.9 at 5 - ln(9) / 2
            return [_noisy(rng, share) for _ in replications]

        found = bisect("x", 1, 10, evaluate, wanted=0.9, most_replications=8)
        assert found.meets is not None
        assert found.fails is not None
        inside += found.meets <= 5 - math.log(9) / 2 <= found.fails
    assert inside >= 18


def _noisy(rng: random.Random, share: float) -> dict[str, Any]:
    batches = [sum(rng.random() < share for _ in range(50)) / 50 for _ in range(20)]
    return {"slo": {"attainment": sum(batches) / 20}, "requests": {"total": 1000}, "batches": {"good": batches}}


def test_an_undecided_lowest_load_is_not_called_missed():
    def evaluate(value: float, replications: Any) -> list[Any]:
        return [summary(0.905 if value < 4 else 0.5) for _ in replications]

    found = bisect("x", 1, 10, evaluate, wanted=0.9, most_replications=1)
    assert found.meets is None
    assert found.fails is not None
    assert 4 <= found.fails < 4.5
    assert "not decided at 1" in found.sentence()
