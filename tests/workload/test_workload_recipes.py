"""Arrival processes have the mean rate and burstiness they promise; recipes share what they say they share."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from kvsim.config.load import load
from kvsim.content import common
from kvsim.errors import ConfigError
from kvsim.rng import stream
from kvsim.workload.arrivals import arrival_times, weibull_shape
from kvsim.workload.build import build_client
from kvsim.workload.spec import RequestSpec


def requests(recipe: str, seed: int = 1) -> list[RequestSpec]:
    scenario = load("toy", [f"workload={recipe}"])
    client = build_client(scenario.workload, seed=seed, clients=scenario.clients)
    out: list[RequestSpec] = []
    while (when := client.next_send()) is not None:
        for spec in client.send(when):
            out.append(spec)
            client.ended(spec.id, when, True)
    return out


def gaps(process: Any, rate: float = 2.0, number: int = 40_000) -> list[float]:
    block = load("toy", [f"workload={{kind: poisson, rate_per_s: 1, arrivals: {process}}}"]).workload.arrivals
    times = list(itertools.islice(arrival_times(block, rate, stream(3, "times")), number))
    return [b - a for a, b in itertools.pairwise([0.0, *times])]


def spread(values: list[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / len(values)) / mean


@pytest.mark.parametrize(
    ("process", "cv"), [("{process: gamma, cv: 2}", 2), ("{process: weibull, cv: 0.5}", 0.5), ("{process: weibull, cv: 2}", 2), ("{}", 1)]
)
def test_gaps_have_the_mean_and_the_variation_asked_for(process: str, cv: float) -> None:
    mean, found = spread(gaps(process))
    assert mean == pytest.approx(0.5, rel=0.04)
    assert found == pytest.approx(cv, rel=0.06)


def test_a_weibull_of_variation_one_is_exponential() -> None:
    assert weibull_shape(1.0) == pytest.approx(1.0, abs=1e-9)


def test_a_switching_rate_keeps_the_mean_and_is_burstier_than_poisson() -> None:
    found = gaps("{process: mmpp, burst: 8, burst_share: 0.2, burst_s: 5}", number=100_000)
    mean, cv = spread(found)
    assert mean == pytest.approx(0.5, rel=0.05)
    assert cv > 1.2


def test_a_rate_by_the_clock_follows_its_steps_and_repeats() -> None:
    found = list(itertools.accumulate(gaps("{process: piecewise, steps: [[0, 0], [10, 3]], period: 20}", rate=5.0, number=20_000)))
    assert all(at % 20 >= 10 for at in found)
    assert len(found) / found[-1] == pytest.approx(7.5, rel=0.05)


def test_recorded_arrivals_are_the_traces_own_stretched_to_the_rate(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"2024-01-01 00:00:{s:02d}.0,10,1\n" for s in (0, 1, 5, 6)))
    found = requests(f"{{kind: poisson, rate_per_s: 1, arrivals: {{process: recorded, trace: '{trace}'}}}}")
    assert [spec.arrival_ps / 1e12 for spec in found] == pytest.approx([0, 0.5, 2.5, 3.0])


@pytest.mark.parametrize(
    ("arrivals", "words"),
    [
        ("{process: recorded}", "need a trace"),
        ("{process: piecewise}", "need steps"),
        ("{process: piecewise, steps: [[0, 1], [5, 0]]}", "silence"),
    ],
)
def test_incomplete_arrivals_are_refused_with_what_is_missing(arrivals: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load("toy", [f"workload={{kind: poisson, rate_per_s: 1, arrivals: {arrivals}}}"])


def test_popular_documents_are_read_more_often() -> None:
    found = requests("{kind: poisson, rate_per_s: 1, requests: 3000, prompt_tokens: 10, documents: {count: 50, tokens: 100, zipf: 1.0}}")
    firsts = sorted((spec.prompt[0][0] for spec in found), key=int)
    counts = sorted((firsts.count(first) for first in set(firsts)), reverse=True)
    harmonic = sum(1 / k for k in range(1, 51))
    assert counts[0] / 3000 == pytest.approx(1 / harmonic, rel=0.12)
    assert all(spec.prompt_tokens == 110 for spec in found)


def test_two_ways_through_a_tree_share_whole_levels_only() -> None:
    found = requests("{kind: poisson, rate_per_s: 1, requests: 300, prompt_tokens: 7, tree: {depth: 3, branching: 2, tokens: 100}}")
    shares = {common(a.prompt, b.prompt) for a, b in itertools.pairwise(found)}
    assert shares == {0, 100, 200, 300}
    assert len({spec.prompt[:3] for spec in found}) == 8


@pytest.mark.parametrize("isolated", [False, True])
def test_tenants_have_their_own_prompts_and_if_isolated_their_own_space(isolated: bool) -> None:
    found = requests(
        f"{{kind: poisson, rate_per_s: 1, requests: 60, prompt_tokens: 5, shared_prefix_tokens: 50, tenants: 3, isolated: {str(isolated).lower()}}}"
    )
    assert {spec.tenant for spec in found} == {"tenant0", "tenant1", "tenant2"}
    assert {spec.namespace for spec in found} == ({"tenant0", "tenant1", "tenant2"} if isolated else {""})
    assert common(found[0].prompt, found[3].prompt) == 50
    assert common(found[0].prompt, found[1].prompt) == 0


def test_sessions_may_arrive_in_bursts_and_belong_to_tenants() -> None:
    recipe = "{kind: multi_turn, sessions: 400, sessions_per_s: 1, turns: 1, tenants: 2, isolated: true, arrivals: {process: gamma, cv: 3}}"
    found = requests(recipe)
    _, cv = spread([(b.arrival_ps - a.arrival_ps) * 1e-12 for a, b in itertools.pairwise(found)])
    assert cv > 2
    assert {spec.namespace for spec in found} == {"tenant0", "tenant1"}


@pytest.mark.parametrize("name", ["rag-documents", "multi-tenant", "prefix-tree", "chat", "agentic", "one-shot", "rag"])
def test_bundled_recipes_are_equal_for_equal_seeds(name: str) -> None:
    from kvsim.cli.trace import _generated
    from kvsim.workload.write import canonical

    first, again, other = (list(itertools.islice(canonical(_generated(name, seed)), 60)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_fit_of_a_known_recipe_finds_its_rate_lengths_and_burstiness(tmp_path: Path) -> None:
    from kvsim.cli.trace import _rates
    from kvsim.workload.fit import fit_recipe
    from kvsim.workload.write import canonical, write_lines

    source = "{kind: poisson, rate_per_s: 4, requests: 6000, prompt_tokens: {mean: 900, cv: 0.6}, output_tokens: {mean: 80, cv: 0.3}, arrivals: {process: gamma, cv: 2}}"
    trace = tmp_path / "t.jsonl"
    write_lines(canonical(requests(source)), str(trace))
    found = fit_recipe(str(trace), format=None, block_size=None, seed=2, reuse=_rates)
    assert found.recipe["rate_per_s"] == pytest.approx(4, rel=0.08)
    assert found.recipe["prompt_tokens"]["mean"] == pytest.approx(900, rel=0.03)
    assert found.recipe["prompt_tokens"]["cv"] == pytest.approx(0.6, rel=0.08)
    assert found.recipe["output_tokens"]["mean"] == pytest.approx(80, rel=0.02)
    assert found.recipe["arrivals"] == {"process": "gamma", "cv": pytest.approx(2, rel=0.08)}
    assert found.recipe["shared_prefix_tokens"] == 0
    assert requests(str({**found.recipe, "requests": 5}).replace("'", ""))


def test_a_fit_shows_the_reuse_curves_side_by_side_and_claims_no_more(tmp_path: Path) -> None:
    from kvsim.cli.trace import _generated, _rates
    from kvsim.workload.fit import fit_recipe
    from kvsim.workload.write import canonical, write_lines

    trace = tmp_path / "t.jsonl"
    write_lines(canonical(_generated("chat", 1)), str(trace))
    found = fit_recipe(str(trace), format=None, block_size=None, seed=2, reuse=_rates)
    curve = [(a, b) for name, a, b in found.rows if name.startswith("LRU hits")]
    assert len(curve) >= 3
    assert all(a is not None and b is not None for a, b in curve)
    assert "not claimed" in found.text()
