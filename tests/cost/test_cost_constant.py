"""Constant rates: prompt compute behind the reading of weights, experts read once."""

from __future__ import annotations

import pytest

from kvsim.cost.constant import ConstantTime, Rates
from kvsim.errors import ConfigError

MS = 10**9


def prefill(time: ConstantTime, tokens: int, decodes: int = 0) -> int:
    return time.prefill_ps(tokens, 0, 0, 1, decodes, 0, 0)


def test_prompt_compute_hides_behind_the_reading_of_weights_and_no_further() -> None:
    time = ConstantTime(Rates(10_000, 0.010, per_step=0.002, weight_step=0.008))
    assert time.decode_ps(4, 0) == 10 * MS
    assert prefill(time, 50, 4) == 10 * MS  # 5 ms of compute behind 8 ms of reading
    assert prefill(time, 80, 4) == 10 * MS
    assert prefill(time, 200, 4) == 22 * MS
    assert prefill(time, 200) == 22 * MS


def test_without_a_weight_step_prompt_tokens_and_decoding_add_up() -> None:
    time = ConstantTime(Rates(10_000, 0.010))
    assert prefill(time, 50, 4) == 15 * MS
    assert prefill(time, 50) == 5 * MS


def test_prompt_tokens_use_experts_too_where_the_reading_of_weights_is_told_apart() -> None:
    plain = ConstantTime(Rates(1e9, 0.010, expert_step=0.016, expert_share=0.5))
    told = ConstantTime(Rates(1e9, 0.010, expert_step=0.016, expert_share=0.5, weight_step=0.004))
    assert plain.decode_ps(1, 0) == told.decode_ps(1, 0) == 18 * MS
    assert prefill(plain, 1000, 1) == 18 * MS + 1000 * 1000
    assert prefill(told, 1, 1) == 22 * MS
    assert prefill(told, 1000, 1) == 26 * MS


def test_a_weight_step_longer_than_the_decode_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="weight_step"):
        ConstantTime(Rates(10_000, 0.010, weight_step=0.011))
