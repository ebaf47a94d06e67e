"""The prefill delayer of DP attention, from a scenario."""

from __future__ import annotations

from sim_world import request, run_specs

DP = ("engine.tp=2", "engine.dp_size=2", "engine.enable_dp_attention=true", "run.invariants=true")
ON = "engine.enable_prefill_delayer=true"


def first_tokens(specs, *changes):
    return {row.id: row.first_token_ps for row in run_specs(specs, *DP, *changes).requests}


def test_a_prefill_waits_for_the_other_rank_while_decode_steps_run():
    specs = [request(0, 0, 1000, 400), request(1, 0, 1000, 400), request(2, 1.0, 1000, 2)]
    plain, held = first_tokens(specs), first_tokens(specs, ON)
    fewer = first_tokens(specs, ON, "engine.prefill_delayer_max_delay_passes=5")
    assert plain["2"] < fewer["2"] < held["2"]
    assert held["0"] == plain["0"]


def test_a_lone_request_on_idle_ranks_is_let_go_in_the_end():
    specs = [request(0, 0, 1000, 4)]
    assert first_tokens(specs, ON)["0"] == first_tokens(specs)["0"]


def test_no_pass_of_delay_changes_nothing():
    specs = [request(0, 0, 1000, 400), request(1, 0.5, 1000, 2)]
    assert first_tokens(specs, ON, "engine.prefill_delayer_max_delay_passes=0") == first_tokens(specs)
