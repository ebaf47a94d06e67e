from __future__ import annotations

import pytest
from cost_models import LLAMA, QWEN_MOE, anchor, model_on
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cost.constant import ConstantTime, Rates
from kvsim.errors import ConfigError

TIMES = {
    "anchor": anchor(),
    "dense": model_on(LLAMA, "h100"),
    "moe": model_on(QWEN_MOE, "rtx_pro_6000"),
    "constant": ConstantTime(Rates(10_000, 0.01, decode_per_context=1e-9), 4),
}
runs = st.tuples(st.sampled_from(sorted(TIMES)), st.integers(1, 300), st.integers(1, 200_000), st.integers(1, 400))


@given(runs)
@settings(max_examples=150, deadline=None)
def test_a_run_is_the_sum_of_its_steps_to_the_picosecond(run: tuple[str, int, int, int]) -> None:
    name, batch, mean, steps = run
    time, context = TIMES[name], batch * mean
    single = [time.decode_ps(batch, context + i * batch) for i in range(steps)]
    assert time.decode_run_ps(batch, context, steps) == sum(single)
    spread = [first + i * slope for count, first, slope in time.decode_segments(batch, context, steps) for i in range(count)]
    assert spread == single


@given(runs, st.floats(0, 1.1))
@settings(max_examples=150, deadline=None)
def test_steps_until_is_the_first_run_that_is_long_enough(run: tuple[str, int, int, int], part: float) -> None:
    name, batch, mean, steps = run
    time, context = TIMES[name], batch * mean
    elapsed = int(time.decode_run_ps(batch, context, steps) * part)
    k = time.decode_steps_until(batch, context, steps, elapsed)
    assert k == steps or time.decode_run_ps(batch, context, k) >= elapsed
    assert k == 0 or time.decode_run_ps(batch, context, k - 1) < elapsed


@pytest.mark.parametrize("batch", [1, 2, 7, 32, 128, 129, 300])
def test_the_integer_pieces_stay_within_a_fifth_of_a_percent_of_the_formula(batch: int) -> None:
    time = TIMES["anchor"]
    contexts = [batch * c for c in (1, 17, 100, 999, 3000, 5469, 5470, 5471, 9000, 20_000, 64_000, 131_072, 400_000)]
    assert time.curve_error(batch, contexts) <= 0.002


@given(st.integers(1, 300), st.integers(1, 300_000), st.integers(0, 5000))
@settings(max_examples=150, deadline=None)
def test_a_decode_step_is_never_faster_with_more_context(batch: int, mean: int, more: int) -> None:
    time = TIMES["anchor"]
    assert time.decode_ps(batch, batch * mean + more) >= time.decode_ps(batch, batch * mean)


def test_constant_rates_are_plain_arithmetic() -> None:
    time = ConstantTime(Rates(10_000, 0.010))
    assert time.prefill_ps(100, 0, 4900, 1, 0, 0, 0) == 10_000_000_000
    assert time.decode_run_ps(4, 1000, 3) == 30_000_000_000
    assert time.prefill_ps(100, 0, 0, 1, 3, 900, 300) == 20_000_000_000


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_prefill_rate_that_is_not_positive_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="prefill rate"):
        Rates(rate, 0.01)


def test_a_linear_step_time_has_the_five_numbers_of_a_regression_and_a_term_for_experts() -> None:
    rates = Rates(20_000, 0.004, 0.004, 1e-5, 1e-9, 2e-10, expert_step=0.006, expert_share=8 / 128)
    time = ConstantTime(rates)
    decode = 0.004 + 10 * 1e-5 + 50_000 * 1e-9 + 0.006 * (1 - (120 / 128) ** 10)
    assert time.decode_ps(10, 50_000) / 1e12 == pytest.approx(decode, rel=1e-9)
    pairs2 = 100 * (2 * 1000 + 101)
    mixed = decode + 100 / 20_000 + pairs2 / 2 * 2e-10
    assert time.prefill_ps(100, pairs2, 1000, 1, 10, 50_000, 5000) / 1e12 == pytest.approx(mixed, rel=1e-9)
