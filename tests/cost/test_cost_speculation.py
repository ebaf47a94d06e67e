from __future__ import annotations

import csv
from math import exp, log
from pathlib import Path
from statistics import fmean, median

import pytest
from cost_models import anchor, public_vllm
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cost.speculation import Speculation, SpeculativeTime, rates_for_mean, steps_needed
from kvsim.errors import ConfigError

MTP3 = Speculation(3, 1, 4, rates_for_mean(2.2, 3))


def test_the_drawn_mean_is_the_set_mean() -> None:
    draws = [MTP3.draws(f"r{i}").next() for i in range(20_000)]
    assert fmean(draws) == pytest.approx(2.2, abs=0.03)
    assert set(draws) == {1, 2, 3, 4}


def test_per_position_rates_are_met_position_by_position() -> None:
    spec = Speculation(3, 1, 4, (0.9, 0.5, 0.1))
    stream = spec.draws("x")
    drawn = [stream.next() for _ in range(20_000)]
    reached = [sum(n > k for n in drawn) / len(drawn) for k in (1, 2, 3)]
    assert reached == pytest.approx([0.9, 0.45, 0.045], abs=0.015)


def test_a_request_draws_the_same_whoever_is_asked_in_between() -> None:
    alone = MTP3.draws("a")
    first = [alone.next() for _ in range(50)]
    a, b = MTP3.draws("a"), MTP3.draws("b")
    mixed = []
    for _ in range(50):
        mixed.append(a.next())
        b.next()
    assert mixed == first
    other = Speculation(3, 1, 4, MTP3.rates, seed=2).draws("a")
    assert [other.next() for _ in range(50)] != first


def test_certain_rejection_and_certain_acceptance_are_exact() -> None:
    assert steps_needed(Speculation(3, 1, 4, (0.0, 0.0, 0.0)), "r", 30) == 30
    assert steps_needed(Speculation(3, 1, 4, (1.0, 1.0, 1.0)), "r", 30) == 8


@given(st.integers(1, 8), st.floats(0, 1))
def test_rates_for_a_mean_give_that_mean(steps: int, part: float) -> None:
    mean = 1 + part * steps
    assert Speculation(steps, 1, steps + 1, rates_for_mean(mean, steps)).mean_tokens() == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("mean", [0.5, 4.5])
def test_an_impossible_mean_is_refused(mean: float) -> None:
    with pytest.raises(ConfigError, match="impossible"):
        rates_for_mean(mean, 3)


def test_lookahead_is_what_the_engine_allocates() -> None:
    assert Speculation(5, 4, 8, (0.5,) * 5).lookahead_tokens() == 20
    assert Speculation(3, 1, 4, (0.5,) * 3).lookahead_tokens(16) == 16
    assert Speculation(3, 1, 4, (0.5,) * 3, overlap=True).lookahead_tokens() == 8
    assert MTP3.draft_kv_bytes(70_272, 61) == 1152


@given(st.integers(1, 200), st.integers(1, 100_000), st.integers(1, 200))
@settings(max_examples=80, deadline=None)
def test_speculative_runs_equal_their_steps_and_stay_near_the_formula(batch: int, mean: int, steps: int) -> None:
    time = TIME
    total = sum(time.decode_ps(batch, batch * (mean + i)) for i in range(steps))
    assert time.decode_run_ps(batch, batch * mean, steps) == total
    assert time.decode_ps(batch, batch * mean) / 1e12 == pytest.approx(time.decode_s(batch, batch * mean), rel=0.002)


TIME = SpeculativeTime(anchor(), Speculation(3, 1, 4, (0.5,) * 3, off_above=32))


def test_speculation_is_off_above_its_batch() -> None:
    assert TIME.decode_ps(33, 33_000) == TIME.base.decode_ps(33, 33_000)
    assert TIME.decode_ps(32, 32_000) > TIME.base.decode_ps(32, 32_000)


def test_open_rows_with_mtp_of_the_decode_matrix_scored_apart(shared: Path) -> None:
    time, lengths = SpeculativeTime(public_vllm(), MTP3), []
    with open(shared / "groundtruth" / "A1_k26_decode_open.csv", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if (row["dcp"], row["mtp_draft_tokens"]) == ("1", "3"):
                batch, context = int(row["concurrency"]), max(1, int(row["context_tokens_per_seq"]))
                lengths.append(float(row["aggregate_decode_tok_s"]) * time.decode_s(batch, batch * context) / batch)
    mean = exp(median(log(x) for x in lengths))  # one acceptance length for all rows
    assert len(lengths) == 32
    assert (mean - 1) / 3 == pytest.approx(0.35, abs=0.03)  # the source reports 0.35 to 0.5 of drafted tokens accepted
    assert median(abs(mean / x - 1) for x in lengths) <= 0.10
