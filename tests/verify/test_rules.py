"""Rule sets by name: single rules overridden, differences in words."""

from __future__ import annotations

import dataclasses

import pytest

from kvsim import rules
from kvsim.errors import ConfigError, UnknownName
from kvsim.rules.sglang import SGLANG_0_5_9, SGLANG_0_5_23, SglangRules


def test_a_name_gives_its_rule_set() -> None:
    assert rules.get("sglang-0.5.9") is SGLANG_0_5_9
    assert rules.get("sglang-0.5.23", {}) is SGLANG_0_5_23
    assert rules.family("sglang-0.5.9") == "sglang"
    assert rules.family("vllm-0.24.0") == "vllm"
    assert "sglang-0.5.23" in rules.names()


def test_single_rules_are_overridden_and_the_name_says_so() -> None:
    own = rules.get("sglang-0.5.9", {"last_token_cached": False, "defects": "keep", "selective_hits": 3})
    assert isinstance(own, SglangRules)
    assert (own.last_token_cached, own.defects, own.selective_hits) == (False, "keep", 3)
    assert own.name == "sglang-0.5.9 (last_token_cached: no, defects: keep, selective_hits: 3)"
    assert SGLANG_0_5_9.last_token_cached


def test_an_override_that_changes_nothing_gives_the_set_itself() -> None:
    assert rules.get("sglang-0.5.9", {"defects": "repaired"}) is SGLANG_0_5_9


def test_an_unknown_set_is_named_with_the_nearest_one() -> None:
    with pytest.raises(UnknownName, match=r"unknown rule set 'sglang-0.5.8' \(did you mean 'sglang-0.5.9'\?\)"):
        rules.get("sglang-0.5.8")


def test_all_faults_of_an_override_are_reported_at_once_with_what_is_allowed() -> None:
    wrong = {
        "last_token_cache": False,
        "defects": "fixed",
        "selective_hits": True,
        "reserve_extra_page": 1,
        "name": "x",
    }
    with pytest.raises(ConfigError) as caught:
        rules.get("sglang-0.5.9", wrong)
    faults = caught.value.faults
    assert len(faults) == 5
    assert "did you mean 'last_token_cached'?" in faults[0]
    assert faults[1] == "rule 'defects' of sglang-0.5.9 is one of repaired, keep, not 'fixed'"
    assert "takes a whole number" in faults[2]
    assert "takes true or false" in faults[3]
    assert "unknown rule 'name'" in faults[4]


def test_a_negative_number_is_no_rule() -> None:
    with pytest.raises(ConfigError, match="cannot be negative"):
        rules.get("sglang-0.5.9", {"selective_hits": -1})


def test_the_difference_of_two_versions_is_every_rule_in_which_they_differ_in_words() -> None:
    differences = rules.describe_difference("sglang-0.5.9", "sglang-0.5.23")
    fields = [field.name for field in dataclasses.fields(SglangRules) if field.name != "name"]
    differing = [name for name in fields if getattr(SGLANG_0_5_9, name) != getattr(SGLANG_0_5_23, name)]
    assert [difference.name for difference in differences] == differing
    first = next(d for d in differences if d.name == "evict_full_amount")
    assert (first.left, first.right) == ("yes", "no")
    assert all(d.words and d.source and d.left != d.right for d in differences)
    assert "evict_full_amount: making room" in str(first)


def test_a_set_does_not_differ_from_itself() -> None:
    assert rules.describe_difference("sglang-0.5.9", "sglang-0.5.9") == []


def test_an_overridden_set_differs_in_what_was_overridden() -> None:
    own = rules.get("sglang-0.5.9", {"last_token_cached": False})
    assert [d.name for d in rules.describe_difference("sglang-0.5.9", own)] == ["last_token_cached"]


def test_sets_of_different_engines_have_no_difference_to_tell() -> None:
    with pytest.raises(ConfigError, match="no rules in common"):
        rules.describe_difference("sglang-0.5.9", "vllm-0.24.0")


@pytest.mark.parametrize("name", rules.names())
def test_every_rule_says_what_it_is(name: str) -> None:
    for rule in rules.describe(name):
        assert rule.words
        assert rule.source or name.startswith("vllm")
