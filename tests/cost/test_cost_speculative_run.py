"""Speculation in the whole machine: tokens per step, room taken ahead, runs that fall back to steps."""

from __future__ import annotations

import pytest

from kvsim.config.load import load
from kvsim.config.resolve import resolve
from kvsim.record.recording import Recording
from kvsim.sim.simulate import simulate

EAGLE = ["engine.speculative_algorithm=EAGLE"]
SMALL = ["workload.requests=40", "workload.rate_per_s=2", "workload.output_tokens=41", "engine.page_size=1"]


def run(*overrides: str, scenario: str = "toy") -> Recording:
    return simulate(resolve(load(scenario, [*SMALL, *overrides] if scenario == "toy" else list(overrides))))


def tokens(recording: Recording) -> list[tuple[str, int, str]]:
    return sorted((row.id, row.output_tokens, row.status) for row in recording.requests)


def test_certain_acceptance_gives_four_tokens_per_step_and_certain_rejection_one() -> None:
    plain = run()
    all_kept, none_kept = (run(*EAGLE, f"speculation.accept_rates=[{x},{x},{x}]") for x in (1, 0))
    assert tokens(plain) == tokens(all_kept) == tokens(none_kept)
    alone = [min((row.end_ps - row.first_token_ps) // 10**10 for row in r.requests) for r in (plain, all_kept, none_kept)]
    assert alone == [40, 10, 40]
    assert [row.end_ps for row in none_kept.requests] == [row.end_ps for row in plain.requests]


def test_every_token_has_a_gap_and_those_of_one_step_come_together() -> None:
    recording = run(*EAGLE, "speculation.accept_length=2.5")
    gaps = sum(count * repeat for _, _, _, count, repeat, _ in recording.gaps)
    assert gaps == sum(row.output_tokens - 1 for row in recording.requests)
    together = sum(count for _, _, gap, count, _, _ in recording.gaps if gap == 0)
    assert together / gaps == pytest.approx(1 - 1 / 2.5, abs=0.05)


def test_runs_and_single_steps_are_equal_above_the_batch_where_speculation_stops() -> None:
    tight = [
        *EAGLE,
        "speculation.accept_length=2",
        "speculation.off_above=2",
        "workload.rate_per_s=20",
        "engine.hicache.host_tokens=20000",
    ]
    fast, exact = run(*tight), run(*tight, "run.exact_steps=true")
    assert fast.requests == exact.requests
    assert len(fast.steps) < len(exact.steps)


def test_drafts_take_room_ahead_and_retract_earlier() -> None:
    tight = ["workload.rate_per_s=50", "workload.prompt_tokens=900", "workload.output_tokens=400"]
    plain, drafted = run(*tight), run(*tight, *EAGLE, "speculation.accept_rates=[0,0,0]")
    assert tokens(plain) == tokens(drafted)
    assert sum(row.retractions for row in drafted.requests) >= sum(row.retractions for row in plain.requests) > 0
    assert all(row.status == "finished" for row in drafted.requests)


def test_speculation_speeds_up_the_anchor_at_small_batches() -> None:
    base = ["workload.sessions=6", "workload.turns=2"]
    plain, drafted = (run(*base, *extra, scenario="hicache-ratio") for extra in ([], EAGLE))

    def tpot(recording: Recording) -> float:
        rows = [row for row in recording.requests if row.output_tokens > 1]
        return sum((row.end_ps - row.first_token_ps) / (row.output_tokens - 1) for row in rows) / len(rows)

    assert tpot(drafted) < 0.85 * tpot(plain)
