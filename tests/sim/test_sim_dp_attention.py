"""DP attention: ranks of one engine in lockstep, each with its own queue, cache and links."""

from __future__ import annotations

import pytest
from sim_world import request, run_specs

from kvsim.config.load import load
from kvsim.config.resolve import resolve
from kvsim.errors import ConfigError
from kvsim.sim.simulate import simulate

DP = ("engine.tp=2", "engine.dp_size=2", "engine.enable_dp_attention=true", "run.invariants=true")
HOST = ("engine.hicache.host_tokens=40000", "engine.hicache.write_policy=write_through")


def rows(recording):
    return {row.id: row for row in recording.requests}


def ttft(row) -> int:
    return row.first_token_ps - row.arrival_ps


def test_ranks_work_at_the_same_time_and_the_slowest_sets_the_step():
    long, short = request(0, 0, 4000, 2), request(1, 0, 1000, 2)
    alone = rows(run_specs([long], *DP))["0"]
    both = rows(run_specs([long, short], *DP))
    assert ttft(both["0"]) == ttft(alone)
    assert ttft(both["1"]) == ttft(alone)


def test_each_rank_keeps_only_what_it_computed_itself():
    prefix = ((77, 2000),)
    specs = [request(number, 10 * number, 2000, 2, runs=prefix) for number in range(4)]
    found = rows(run_specs(specs, *DP))
    assert [found[str(number)].device_hit > 0 for number in range(4)] == [False, False, True, True]


def test_total_requests_gives_a_request_to_the_idle_rank_where_turns_do_not():
    prefix = ((77, 1000),)
    specs = [request(0, 0, 7000, 500), request(1, 0.001, 1000, 2, runs=prefix), request(2, 2.0, 1000, 2, runs=prefix)]
    turns = rows(run_specs(specs, *DP))
    fewest = rows(run_specs(specs, *DP, "engine.load_balance_method=total_requests"))
    assert (turns["2"].device_hit, fewest["2"].device_hit) == (0, 900)  # only the idle rank knows the prefix


def test_a_balance_method_that_is_not_modelled_is_an_error():
    with pytest.raises(ConfigError, match="total_tokens is not modelled"):
        simulate(resolve(load("toy", [*DP, "engine.load_balance_method=total_tokens"])))


def test_a_load_back_of_a_rank_uses_its_own_links_and_is_recorded():
    prefix = ((77, 4000),)
    fill = [request(number, 20.0 + number, 9000, 2) for number in range(1, 5)]
    specs = [request(0, 0, 4001, 2, runs=prefix), *fill, request(8, 60.0, 4001, 2, runs=prefix), request(9, 80.0, 4001, 2, runs=prefix)]
    recording = run_specs(specs, *DP, *HOST)
    found = rows(recording)
    loads = [row for row in recording.transfers if "h2d" in row]
    hits = [row for row in found.values() if row.host_hit]
    assert len(hits) == len(loads) == 1
    assert hits[0].load_ps > 0
