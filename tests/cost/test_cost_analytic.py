from __future__ import annotations

import pytest
from cost_models import KIMI, LLAMA, QWEN_MOE, anchor, model_on, public_vllm, shape
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cost.adapt import EngineShape, analytic_inputs, known_constants, with_overrides
from kvsim.cost.analytic import AnalyticTime, soft_max
from kvsim.cost.breakdown import breakdown, parse_step
from kvsim.cost.inputs import Card
from kvsim.cost.kernels import CARDS
from kvsim.errors import ConfigError, UnknownName

MODELS = {
    "kimi, sglang, triton": anchor(backend="triton"),
    "kimi, vllm": public_vllm(),
    "kimi, h200": model_on(KIMI, "h200", 8, family="vllm", backend="flash_attn"),
    "kimi, 4 expert-parallel ranks": anchor(family="vllm", backend="flash_attn", ep=4),
    "llama, l40s": model_on(LLAMA, "l40s"),
    "qwen moe, rtx": model_on(QWEN_MOE, "rtx_pro_6000", 2),
}
FEATURES = ("new", "cached", "batch", "context", "longest", "prefills")
steps = st.fixed_dictionaries(
    {
        "new": st.integers(1, 16_384),
        "cached": st.integers(1, 200_000),
        "batch": st.integers(0, 256),
        "context": st.integers(0, 4_000_000),
        "longest": st.integers(0, 200_000),
        "prefills": st.integers(1, 16),
    }
)


def seconds(time: AnalyticTime, s: dict[str, int]) -> float:
    pairs2 = s["new"] * (2 * s["cached"] + s["new"] + 1)
    return time.prefill_s(s["new"], pairs2, s["cached"], s["prefills"], s["batch"], s["context"], s["longest"])


@given(st.sampled_from(sorted(MODELS)), steps, st.sampled_from(FEATURES), st.integers(1, 5000))
@settings(max_examples=300, deadline=None)
def test_time_is_non_decreasing_in_every_feature(name: str, step: dict[str, int], feature: str, more: int) -> None:
    time = MODELS[name]
    assert seconds(time, {**step, feature: step[feature] + more}) >= seconds(time, step)


@given(st.sampled_from(sorted(MODELS)), steps)
@settings(max_examples=150, deadline=None)
def test_the_folded_prefill_time_is_the_sum_of_its_components(name: str, s: dict[str, int]) -> None:
    time = MODELS[name]
    pairs2 = s["new"] * (2 * s["cached"] + s["new"] + 1)
    ps = time.prefill_ps(s["new"], pairs2, s["cached"], s["prefills"], s["batch"], s["context"], s["longest"])
    assert ps / 1e12 == pytest.approx(seconds(time, s), rel=1e-9)


@given(st.sampled_from(sorted(MODELS)), steps)
@settings(max_examples=200, deadline=None)
def test_a_step_is_never_faster_than_the_roofline(name: str, s: dict[str, int]) -> None:
    time = MODELS[name]
    inputs, tokens = time.inputs, s["new"] + s["batch"]
    moe, decode, prefill = inputs.moe, inputs.decode, inputs.prefill
    pairs = s["new"] * (s["cached"] + (s["new"] + 1) / 2)
    flop = tokens * inputs.gemm.flops_per_token + prefill.layers * pairs * prefill.plain.pair_flop
    read = inputs.gemm.weight_bytes + (decode.layers * s["context"] * decode.kv_bytes if s["batch"] else 0)
    if moe:
        flop += moe.layers * tokens * moe.top_k * moe.flops_per_routed_token
        read += moe.layers * time.experts_hit(tokens) * moe.expert_bytes
    assert seconds(time, s) >= max(flop / inputs.card.flops, read / inputs.card.mem_bw)


@given(st.integers(0, 150_000), st.lists(st.integers(1, 8192), min_size=2, max_size=8))
@settings(max_examples=200, deadline=None)
def test_attention_pairs_do_not_depend_on_how_a_prompt_is_cut_into_chunks(cached: int, chunks: list[int]) -> None:
    time = MODELS["kimi, vllm"]
    kernel = time.inputs.prefill.plain
    bare = AnalyticTime(time.inputs.changed("prefill", plain=_pairs_only(kernel)))
    whole, parts, at = sum(chunks), 0.0, cached
    for new in chunks:
        parts += bare.prefill_attention_s(new, new * (2 * at + new + 1), at)
        at += new
    assert parts == pytest.approx(bare.prefill_attention_s(whole, whole * (2 * cached + whole + 1), cached), rel=1e-9)


def _pairs_only(kernel: object) -> object:
    from dataclasses import replace

    return replace(kernel, t0=0.0, per_token=0.0, up_flop=0.0)


@given(st.sampled_from(sorted(MODELS)), st.integers(1, 128), st.integers(1, 100_000))
@settings(max_examples=100, deadline=None)
def test_twice_the_batch_takes_at_most_twice_the_time(name: str, batch: int, context: int) -> None:
    time = MODELS[name]
    assert time.decode_ps(2 * batch, 2 * batch * context) <= 2.02 * time.decode_ps(batch, batch * context)


@given(st.floats(0, 1e3), st.floats(0, 1e3), st.sampled_from([1.0, 1.5, 2.0, 4.0, 65.0]))
def test_the_soft_maximum_lies_between_the_maximum_and_the_sum(a: float, b: float, p: float) -> None:
    assert max(a, b) * (1 - 1e-12) <= soft_max(a, b, p) <= (a + b) * (1 + 1e-12)


def test_a_batch_is_padded_to_the_captured_size_and_runs_eagerly_above_the_largest() -> None:
    time = anchor()
    assert [time.padded(b) for b in (1, 3, 13, 128, 129)] == [1, 4, 16, 128, 129]
    assert not time.is_eager(128)
    assert time.is_eager(129)


def test_an_eager_step_is_never_shorter_than_its_launches() -> None:
    graphs, eager = model_on(LLAMA, "h100"), model_on(LLAMA, "h100", graph_sizes=())
    floor_ps = 32 * 25 * 4.5e-6 * 1e12
    assert eager.decode_ps(1, 100) >= graphs.decode_ps(1, 100)
    assert AnalyticTime(analytic_inputs(CARDS["b200"], shape(LLAMA), EngineShape(tp=8), key="b200")).decode_ps(1, 100) >= floor_ps - 1


def test_flashinfer_uses_the_absorbed_kernel_only_between_no_prefix_and_the_threshold() -> None:
    time = anchor()
    plain = time.inputs.prefill.plain
    assert [time.prefill_kernel(cached) is plain for cached in (0, 1, 8191, 8192, 100_000)] == [
        True,
        False,
        False,
        True,
        True,
    ]


def test_triton_prefill_over_a_long_prefix_is_five_times_slower_than_flashinfer() -> None:
    step = (8192, 8192 * (2 * 102_400 + 8193), 102_400, 1)
    assert anchor(backend="triton").prefill_s(*step) / anchor().prefill_s(*step) == pytest.approx(10.4 / 2.09, rel=0.05)


def test_kimi_derived_sizes_are_those_of_the_published_weights() -> None:
    inputs = anchor().inputs
    assert inputs.gemm.weight_bytes / 1e9 == pytest.approx(4.25, abs=0.01)
    assert inputs.moe.expert_bytes * 384 * 60 / 1e9 == pytest.approx(71.35, abs=0.05)
    assert inputs.decode.kv_bytes == 1152
    assert inputs.head.weight_bytes / 1e6 == pytest.approx(293.6, abs=0.1)


@pytest.mark.parametrize(("tokens", "hit"), [(1, 7.9), (8, 57), (64, 244), (256, 354)])
def test_experts_hit_reproduce_the_published_coverage(tokens: int, hit: float) -> None:
    assert anchor(routing_dispersion=1.9).experts_hit(tokens) == pytest.approx(hit, rel=0.02)


def test_a_card_without_tables_is_scaled_and_says_so() -> None:
    card = Card("H20", 148e12, 4.0e12)
    inputs = analytic_inputs(card, shape(KIMI), EngineShape(tp=8), generation="hopper")
    assert not inputs.measured
    assert any("not measured on this card" in note for note in inputs.notes)
    assert AnalyticTime(inputs).prefill_s(8192, 8192 * 8193, 0, 1) > model_on(KIMI, "h100", 8).prefill_s(8192, 8192 * 8193, 0, 1)


def test_a_card_of_unknown_architecture_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"gpu.architecture"):
        analytic_inputs(Card("X1", 1e14, 1e12), shape(KIMI), EngineShape())


def test_every_named_constant_can_be_overridden_and_changes_the_step() -> None:
    time = MODELS["kimi, vllm"]
    step = (4096, 4096 * (2 * 20_000 + 4097), 20_000, 1, 8, 160_000, 20_000)
    untouched = {"allreduce.alpha", "overheads.eager_floor"}
    for name in known_constants(time.inputs):
        if name in untouched:
            continue
        component, _, number = name.partition(".")
        old = 1.0 if name == "scale" else _value(time.inputs, component, number)
        other = AnalyticTime(with_overrides(time.inputs, {name: old * 1.5 + 1e-9}))
        moved = other.prefill_ps(*step) != time.prefill_ps(*step) or other.decode_ps(8, 160_000) != time.decode_ps(8, 160_000)
        assert moved or name in {"decode.a", "decode.c1"}, name


def _value(inputs: object, component: str, number: str) -> float:
    if component == "allreduce":
        return inputs.allreduce.protocols[-1][0 if number == "alpha" else 1]
    return getattr(inputs.prefill.plain if component == "prefill" else getattr(inputs, component), number)


def test_an_unknown_constant_is_named_with_the_known_ones() -> None:
    with pytest.raises(UnknownName, match=r"gemm.t0"):
        with_overrides(anchor().inputs, {"gemm.t9": 1.0})


def test_the_breakdown_adds_up_and_names_what_bounds_a_long_prefill() -> None:
    time = anchor()
    rows = breakdown(time, parse_step("prefill=8192 cached=100k decode=32x16k"))
    step = time.prefill_s(8192, 8192 * (200_000 + 8193), 100_000, 1, 32, 512_000, 16_000)
    assert sum(row.ms for row in rows) == pytest.approx(step * 1e3, rel=1e-9)
    assert (rows[0].component, rows[0].bound) == ("prefill attention", "compute")
    assert sum(row.share for row in rows) == pytest.approx(1)


def test_the_breakdown_of_a_decode_step_adds_up_with_its_padding() -> None:
    time = anchor()
    rows = breakdown(time, parse_step("decode=13x2k"))
    assert sum(row.ms for row in rows) == pytest.approx(time.decode_s(13, 26_000) * 1e3, rel=1e-9)


@pytest.mark.parametrize("text", ["", "prefil=8", "prefill=x", "decode=3", "cached=5", "decode=1xabc"])
def test_a_step_that_is_not_understood_is_a_clear_error(text: str) -> None:
    with pytest.raises(ConfigError, match="--step"):
        parse_step(text)


def test_dp_attention_splits_attention_less_and_feeds_the_experts_more() -> None:
    plain, split = anchor(), anchor(dp=8)
    assert split.inputs.prefill.plain.pair_flop == 8 * plain.inputs.prefill.plain.pair_flop
    assert split.inputs.moe.top_k == 64
    assert split.inputs.gemm.weight_bytes > plain.inputs.gemm.weight_bytes
    assert any("DP attention" in note for note in split.inputs.notes)


def test_expert_parallel_ranks_wait_for_the_fullest() -> None:
    assert anchor(ep=8).moe_s(8192) > anchor().moe_s(8192)
    assert anchor(ep=8).moe_s(8192) < 1.5 * anchor().moe_s(8192)
