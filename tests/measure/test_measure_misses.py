from __future__ import annotations

import random

import pytest

from kvsim.config.load import load
from kvsim.config.resolve import resolve
from kvsim.errors import ConfigError
from kvsim.measure.misses import MissObserver
from kvsim.measure.summary import summarise
from kvsim.sim.simulate import simulate
from kvsim.workload.clients import OpenLoop
from kvsim.workload.spec import RequestSpec


def request(number: int, at_s: float, runs: list[tuple[int, int]], output: int = 1) -> RequestSpec:
    return RequestSpec(str(number), round(at_s * 1e12), tuple(runs), sum(n for _, n in runs), output, (number + 1) * 10_000_000)


def why(specs: list[RequestSpec], *overrides: str) -> tuple[dict[str, int], dict[str, object], MissObserver]:
    resolved = resolve(load("toy", list(overrides)))
    observer = MissObserver(resolved)
    recording = simulate(resolved, client=OpenLoop(specs), observer=observer)
    summary = observer.summary()
    assert summary["missed_tokens"] == summarise(recording)["hits"]["miss_tokens"]
    return {row["cause"]: row["tokens"] for row in summary["causes"] if row["tokens"]}, summary, observer


def test_fresh_prompts_were_never_seen_and_no_cache_helps():
    causes, summary, _ = why([request(n, n, [(10_000 * n, 1000)]) for n in range(3)])
    assert causes == {"never seen before": 3000}
    assert summary["largest_avoidable"] is None


def test_a_repeated_prompt_loses_its_last_page_to_rounding():
    causes, _, _ = why([request(0, 0, [(0, 1000)]), request(1, 5, [(0, 1000)])])
    assert causes == {"never seen before": 1000, "last token or page rounding": 100}


def test_a_prefix_that_ends_inside_a_page_is_rounded_down():
    causes, _, _ = why([request(0, 0, [(0, 1050)]), request(1, 5, [(0, 1050), (50_000, 400)])])
    assert causes == {"never seen before": 1050 + 400, "last token or page rounding": 50}


def test_what_left_a_small_device_without_host_is_evicted_without_a_copy():
    specs = [request(0, 0, [(0, 4000)]), *(request(n, 2 * n, [(100_000 * n, 6000)]) for n in (1, 2)), request(3, 8, [(0, 4000)])]
    causes, summary, _ = why(specs)
    assert causes["evicted without a copy"] == 4000
    assert "HiCache" in str(summary["remedy"])


def test_what_left_a_small_host_is_dropped_from_host():
    specs = [request(0, 0, [(0, 4000)]), *(request(n, 3 * n, [(100_000 * n, 6000)]) for n in (1, 2, 3)), request(4, 20, [(0, 4000)])]
    causes, summary, _ = why(specs, "engine.hicache.host_tokens=10500")
    assert causes["dropped from host"] == 4000
    assert "ratio" in str(summary["remedy"])


def test_a_host_hit_shorter_than_the_threshold_is_a_load_back_refused():
    specs = [
        request(0, 0, [(0, 400)]),
        *(request(n, 3 * n, [(100_000 * n, 9500)]) for n in (1, 2)),
        request(4, 20, [(0, 400), (77_000, 100)]),
    ]
    causes, _, _ = why(specs, "engine.hicache.host_tokens=40000", "engine.hicache.load_back_threshold=1000")
    assert causes["load-back refused"] == 400


def test_a_prefix_that_somebody_computes_right_now_is_in_progress():
    specs = [request(0, 0, [(0, 1000), (10_000, 100)]), request(1, 0, [(0, 1000), (20_000, 100)])]
    causes, _, _ = why(specs)
    assert causes == {"never seen before": 1200, "still being computed or copied": 1000}


@pytest.mark.parametrize("policy", ["write_through", "write_through_selective", "write_back"])
@pytest.mark.parametrize("seed", range(4))
def test_causes_add_up_on_random_tight_traces(policy: str, seed: int):
    rng = random.Random(seed)
    texts: list[list[tuple[int, int]]] = [[(k * 1_000_000, rng.randint(50, 900))] for k in range(4)]
    specs, fresh = [], 50_000_000_000
    for number in range(150):
        text = [*rng.choice(texts), (fresh, rng.randint(1, 700))]
        fresh += 1000
        if sum(n for _, n in text) < 5000 and rng.random() < 0.6:
            texts.append(text)
        specs.append(request(number, rng.random() * 30, text, rng.randint(1, 40)))
    specs.sort(key=lambda spec: spec.arrival_ps)
    page = rng.choice([1, 16, 100])
    causes, _, observer = why(
        specs,
        f"engine.hicache.write_policy={policy}",
        "engine.hicache.host_tokens=16000",
        f"engine.page_size={page}",
        "engine.device_tokens=9600",
    )
    assert len(observer.causes) == 150
    assert causes["never seen before"] > 0
    assert causes.get("evicted without a copy", 0) + causes.get("dropped from host", 0) > 0


def test_with_unlimited_memory_nothing_was_evicted_or_dropped():
    rng = random.Random(3)
    specs = [request(n, n, [(rng.randrange(5) * 1_000_000, 800), (10**9 + 1000 * n, 50)], 5) for n in range(60)]
    causes, _, _ = why(specs, "engine.device_tokens=10000000")
    assert set(causes) <= {"never seen before", "last token or page rounding", "still being computed or copied"}


def test_observing_changes_nothing():
    specs = [request(n, n / 3, [((n % 7) * 1_000_000, 3000), (10**9 + 1000 * n, 50)], 5) for n in range(60)]
    resolved = resolve(load("toy", ["engine.hicache.host_tokens=20000"]))
    plain = simulate(
        resolved, client=OpenLoop([request(n, n / 3, [((n % 7) * 1_000_000, 3000), (10**9 + 1000 * n, 50)], 5) for n in range(60)])
    )
    watched = simulate(resolved, client=OpenLoop(specs), observer=MissObserver(resolved))
    assert (plain.requests, plain.steps) == (watched.requests, watched.steps)


def test_other_engines_are_refused_with_a_reason():
    resolved = resolve(load("toy"))
    vllm = type(resolved)(*(getattr(resolved, n) if n != "family" else "vllm" for n in resolved.__slots__))
    with pytest.raises(ConfigError, match="SGLang rules only"):
        MissObserver(vllm)


def test_what_only_another_rank_has_computed_is_not_called_never_seen():
    ranks = ["engine.tp=2", "engine.dp_size=2", "engine.enable_dp_attention=true"]
    resolved = resolve(load("toy", ranks))
    observer = MissObserver(resolved)
    prompt = [(77, 1000)]
    simulate(resolved, client=OpenLoop([request(number, 5.0 * number, prompt, 2) for number in range(2)]), observer=observer)
    assert observer.causes["0"]["never_seen"] == 1000
    assert observer.causes["1"]["on_another_rank"] == 1000
    assert observer.summary()["largest_avoidable"] == "computed on another replica or rank"
