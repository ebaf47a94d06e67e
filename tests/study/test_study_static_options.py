"""The options by arithmetic alone: the anchor's numbers, what each costs, what is not known."""

from __future__ import annotations

import pytest

from kvsim.config.load import load
from kvsim.config.resolve import resolve
from kvsim.study.point import plain_scenario
from kvsim.study.static_options import static_rows


@pytest.fixture(scope="module")
def rows():
    return {row["option"]: row for row in static_rows(plain_scenario("hicache-ratio"))}


def test_the_largest_ratio_that_fits_is_a_row_and_the_next_one_does_not_fit(rows):
    name = next(name for name, row in rows.items() if "largest" in row["remark"])
    ratio = float(name.split()[-1])
    assert rows[name]["infeasible"] is None
    assert resolve(load("hicache-ratio", [f"engine.hicache.ratio={ratio + 0.01}"])).capacity.infeasible


def test_a_reloaded_token_moves_its_bytes_once_per_rank_of_its_attention_group(rows):
    assert rows["as is"]["link_bytes"] == 8 * 70_272
    assert rows["DP attention 8"]["link_bytes"] == 70_272
    assert rows["fp8 KV"]["link_bytes"] == 8 * 35_136


def test_both_versions_account_for_the_draft_model_in_their_own_way(rows):
    old, new = rows["speculation on (0.5.9)"], rows["speculation on (0.5.23)"]
    assert old["device_tokens"] == rows["as is"]["device_tokens"]  # its KV comes from what is left over
    assert new["device_tokens"] < old["device_tokens"]  # charged to the pool
    assert old["draft_bytes"] > new["draft_bytes"] > 0
    assert old["max_running_requests"] == 48
    assert "unknown: acceptance" in old["cost"]


def test_what_is_not_measured_is_named(rows):
    assert "unknown: its kernel's speed" in rows["fp8 KV"]["cost"]
    assert "not refused" in next(row["cost"] for name, row in rows.items() if name.startswith("CUDA graphs"))


def test_requests_at_once_follow_the_pool_and_the_slots(rows):
    assert rows["fp8 KV"]["at_once"] == pytest.approx(2 * rows["as is"]["at_once"], abs=1)
    assert rows["batch cap 16"]["at_once"] <= 16


def test_a_draft_that_does_not_fit_beside_the_pool_is_infeasible():
    sets = ["engine.speculative_algorithm=EAGLE", "engine.mem_fraction_static=0.997"]
    assert any("draft model needs" in text for text in resolve(load("hicache-ratio", sets)).capacity.infeasible)


def test_speculation_without_a_draft_model_takes_no_memory_for_one():
    assert "draft_kv_bytes" not in resolve(load("hicache-ratio", ["engine.speculative_algorithm=NGRAM"])).capacity.extra
