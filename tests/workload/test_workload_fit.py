"""`trace fit`: laws by likelihood, sharing, conversations found in prompts; reuse curves beside each other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvsim.config.load import load
from kvsim.errors import ConfigError
from kvsim.workload.build import build_client
from kvsim.workload.fit import Fit, fit_recipe
from kvsim.workload.fit_laws import fitted_law, zipf_exponent
from kvsim.workload.fit_sharing import sharing_of
from kvsim.workload.spec import RequestSpec
from kvsim.workload.write import lines_for, write_lines


def made(recipe: str, seed: int = 1) -> list[RequestSpec]:
    scenario = load("toy", [f"workload={recipe}"])
    client = build_client(scenario.workload, seed=seed, clients=scenario.clients)
    out: list[RequestSpec] = []
    while (when := client.next_send()) is not None:
        for spec in client.send(when):
            out.append(spec)
            client.ended(spec.id, when, True)
    return out


def fitted(folder: Path, recipe: str, to: str = "mooncake", block: int = 64) -> Fit:
    from kvsim.cli.trace import _rates

    target = folder / "t.jsonl"
    specs = made(recipe)
    for spec in specs:
        spec.session = None
    write_lines(lines_for(specs, to, block), str(target))
    return fit_recipe(str(target), format=None, block_size=block, seed=3, reuse=_rates)


@pytest.mark.parametrize(("name", "mean", "cv"), [("lognormal", 900.0, 0.7), ("gamma", 900.0, 0.4), ("exponential", 500.0, 1.0)])
def test_values_of_a_law_give_that_law_back(name: str, mean: float, cv: float) -> None:
    from types import SimpleNamespace

    from kvsim.workload.synthetic import draw

    rng = Random(5)
    law = SimpleNamespace(dist=name, mean=mean, cv=cv, low=None, high=None)
    found = fitted_law([draw(law, rng) for _ in range(20_000)], low=None)
    assert found["dist"] == name
    assert found["mean"] == pytest.approx(mean, rel=0.03)
    if name != "exponential":
        assert found["cv"] == pytest.approx(cv, rel=0.05)


def test_values_of_no_law_keep_their_own_mean_and_shape() -> None:
    rng = Random(6)
    values = [rng.gauss(100, 5) if rng.random() < 0.7 else rng.gauss(9000, 100) for _ in range(5_000)]
    found = fitted_law(values)
    assert found["dist"] == "empirical"
    assert sum(found["values"]) / len(found["values"]) == pytest.approx(sum(values) / len(values), rel=1e-3)
    assert sum(value > 5_000 for value in found["values"]) / len(found["values"]) == pytest.approx(0.3, abs=0.03)


def test_a_few_different_values_are_kept_with_their_shares() -> None:
    assert fitted_law([1] * 30 + [2] * 10 + [7] * 2) == {"dist": "empirical", "values": [1, 2, 7], "weights": [30, 10, 2]}
    assert fitted_law([5, 5, 5]) == {"dist": "constant", "mean": 5}


def test_a_zipf_exponent_is_found_again() -> None:
    rng = Random(7)
    drawn = rng.choices(range(1, 201), [1 / rank**1.2 for rank in range(1, 201)], k=20_000)
    assert zipf_exponent([drawn.count(rank) for rank in set(drawn)]) == pytest.approx(1.2, abs=0.06)


CHAT = "{kind: multi_turn, loop: open, sessions: 400, sessions_per_s: 1, turns: {dist: geometric, mean: 4}, system_prompt_tokens: 640, think_time: {mean: 30, cv: 0.8}}"


def test_conversations_are_found_in_a_trace_that_names_none(tmp_path: Path) -> None:
    specs = sorted(made(CHAT), key=lambda spec: spec.arrival_ps)
    names = [spec.session for spec in specs]
    for spec in specs:
        spec.session = None
    found = sharing_of(specs, 64)
    assert found.common == 640
    assert len(found.conversations) == 400
    name_of = {spec.id: name for spec, name in zip(specs, names, strict=True)}
    assert all(len({name_of[spec.id] for spec in turns}) == 1 for turns in found.conversations)


def test_a_fit_of_conversations_comes_near_the_reuse_curve_at_every_size(tmp_path: Path) -> None:
    found = fitted(tmp_path, CHAT)
    assert found.recipe["kind"] == "multi_turn"
    assert found.recipe["system_prompt_tokens"] == 640
    assert found.recipe["sessions"] == 400
    curve = [(a, b) for name, a, b in found.rows if name.startswith("LRU hits")]
    assert len(curve) >= 5
    assert all(a == pytest.approx(b, abs=0.06) for a, b in curve)
    tried = dict(found.tried)
    assert tried["conversations"] < tried["one beginning"] / 3
    assert made(json.dumps({**found.recipe, "sessions": 3}))  # the recipe is one a scenario takes


def test_a_fit_of_popular_documents_has_several_beginnings(tmp_path: Path) -> None:
    recipe = (
        "{kind: poisson, rate_per_s: 5, requests: 3000, prompt_tokens: {mean: 200, cv: 0.3}, "
        "documents: {count: 60, tokens: {dist: uniform, low: 500, high: 3000}, zipf: 1.0}}"
    )
    found = fitted(tmp_path, recipe)
    assert found.recipe["kind"] == "poisson"
    assert found.recipe["documents"]["count"] == pytest.approx(60, abs=6)
    assert found.recipe["documents"]["zipf"] == pytest.approx(1.0, abs=0.15)
    tried = dict(found.tried)
    assert tried["beginnings by popularity"] < 0.08
    assert made(json.dumps({**found.recipe, "requests": 5}))


def test_a_trace_without_prefixes_gives_a_recipe_that_shares_nothing_and_says_so(tmp_path: Path) -> None:
    target = tmp_path / "t.csv"
    write_lines(lines_for(made("{kind: poisson, rate_per_s: 2, requests: 300}"), "azure", 64), str(target))
    found = fit_recipe(str(target), format=None, block_size=None, seed=1)
    assert found.recipe["shared_prefix_tokens"] == 0
    assert "no prefixes" in found.claims


def test_standard_input_is_fitted_like_a_file(tmp_path: Path) -> None:
    target = tmp_path / "t.jsonl"
    write_lines(lines_for(made("{kind: poisson, rate_per_s: 2, requests: 300, shared_prefix_tokens: 512}"), "mooncake", 512), str(target))
    command = [sys.executable, "-m", "kvsim", "trace", "fit"]
    given = subprocess.run([*command, "-", "--json"], input=target.read_bytes(), capture_output=True, check=True)
    file = subprocess.run([*command, str(target), "--json"], capture_output=True, check=True)
    assert given.stdout == file.stdout
    assert json.loads(given.stdout)["workload"]["shared_prefix_tokens"] == 512


@pytest.mark.long
def test_the_mooncake_trace_is_fitted_within_four_points_of_its_reuse_curve(shared: Path) -> None:
    from kvsim.cli.trace import _rates

    found = fit_recipe(str(shared / "traces" / "mooncake_conversation.jsonl"), format=None, block_size=None, seed=1, reuse=_rates)
    tried = dict(found.tried)
    assert found.recipe["kind"] == "multi_turn"
    assert min(tried.values()) < 0.04 < 0.1 < tried["one beginning"]


def values_of(recipe: str) -> list[int]:
    return [spec.prompt_tokens for spec in made(recipe)]


def test_an_empirical_law_draws_its_values_by_their_weights() -> None:
    drawn = values_of("{kind: poisson, rate_per_s: 1, requests: 4000, prompt_tokens: {dist: empirical, values: [10, 500], weights: [3, 1]}}")
    assert set(drawn) == {10, 500}
    assert drawn.count(10) / 4000 == pytest.approx(0.75, abs=0.03)


def test_lengths_may_come_from_a_trace(tmp_path: Path) -> None:
    target = tmp_path / "t.csv"
    target.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"2024-01-01 00:00:0{n}.0,{n + 7},{n + 1}\n" for n in range(3)))
    trace = f"{{dist: empirical, trace: '{target}'}}"
    drawn = made(f"{{kind: poisson, rate_per_s: 1, requests: 200, prompt_tokens: {trace}, output_tokens: {{dist: empirical, of: output, trace: '{target}'}}}}")
    assert {spec.prompt_tokens for spec in drawn} == {7, 8, 9}
    assert {spec.output_tokens for spec in drawn} == {1, 2, 3}


@pytest.mark.parametrize(
    ("law", "words"),
    [
        ("{dist: empirical}", "either values or a trace"),
        ("{dist: empirical, values: [1, 2], weights: [1]}", "1 weights for 2 values"),
        ("{dist: gamma, mean: 5, values: [1]}", "belong to an empirical law"),
    ],
)
def test_incomplete_empirical_laws_are_refused(law: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load("toy", [f"workload={{kind: poisson, rate_per_s: 1, prompt_tokens: {law}}}"])


def test_a_share_of_the_conversations_reads_documents() -> None:
    recipe: dict[str, Any] = {"kind": "multi_turn", "sessions": 400, "turns": 1, "first_tokens": 9, "documents": {"count": 5, "tokens": 100, "share": 0.25}}
    sizes = [spec.prompt_tokens for spec in made(json.dumps(recipe))]
    assert set(sizes) == {9, 109}
    assert sizes.count(109) / 400 == pytest.approx(0.25, abs=0.07)
