from __future__ import annotations

import pytest

from kvsim.config.load import load
from kvsim.errors import ConfigError
from kvsim.study.fleet import fleet_sentence, fleets
from kvsim.study.point import plain_scenario
from kvsim.study.sweep import sweep

COST = ["cost.per_gpu_hour=2", "cost.per_gb_ram_hour=0.01", "workload.sessions=12", "workload.sessions_per_s=0.2"]


def test_fleets_of_one_budget_trade_machines_for_ram():
    found = fleets(plain_scenario(load("hicache-ratio", COST)), 40.0)
    assert [fleet.replicas for fleet in found] == [1, 2]
    assert found[0].ratio > found[1].ratio > 0
    assert all(fleet.per_hour <= 40.0 for fleet in found)
    assert found[1].per_hour > 39.0  # the rest of the money went into RAM


def test_a_machine_gets_no_more_ram_than_it_takes():
    rich = fleets(plain_scenario(load("hicache-ratio", COST)), 31.9)
    assert rich[0].ram_gb < 1100


def test_a_budget_below_one_machine_is_an_error():
    with pytest.raises(ConfigError, match="one machine alone costs 16"):
        fleets(plain_scenario(load("hicache-ratio", COST)), 10.0)


def test_prices_are_asked_for():
    with pytest.raises(ConfigError, match="per_gpu_hour"):
        fleets(plain_scenario(load("hicache-ratio")), 10.0)


def test_the_sentence_names_the_best_fleet_and_whether_it_is_clear():
    base = load("hicache-ratio", COST)
    found = fleets(plain_scenario(base), 40.0)
    study = sweep(base, points=[fleet.point for fleet in found])
    sentence = fleet_sentence(study, found)
    assert sentence.startswith("Best for the money: ")
    assert "clearly better than" in sentence or "not told apart from" in sentence
