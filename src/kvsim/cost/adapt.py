"""From a card, a model's shape and an engine to the numbers of the analytic model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvsim.cost.inputs import (
    AllReduce,
    AnalyticInputs,
    Card,
    DecodeAttention,
    Gemm,
    Head,
    Moe,
    Overheads,
    PrefillAttention,
    PrefillKernel,
)
from kvsim.cost.kernels import ALLREDUCE, CARDS, KERNELS, NEAREST, DecodeFit, Kernels, PrefillFit, protocols_at, scaled
from kvsim.cost.shape import MLA, ModelShape
from kvsim.errors import ConfigError, UnknownName

#: SGLang switches MLA prefill back to the unabsorbed kernel from this many cached tokens on
#: (SGLANG_CHUNKED_PREFIX_CACHE_THRESHOLD, 0.5.9).
UNABSORBED_FROM = 8192
BACKENDS = ("flashinfer", "triton", "fa3", "flash_attn")
#: Launch gaps, norms, routing per layer, s: 45 us calibrated on open public 8-GPU decode runs of Kimi-K2.6 (vLLM); the
#: others are assumptions by number of small kernels (dense: two norms, rope, activation, cache write).
LAYER_OVERHEAD = {"mla_moe": 45e-6, "gqa_moe": 8e-6, "dense": 12e-6}
VLLM_MLA_MOE_OVERHEAD = 49.8e-6
TOKEN_OVERHEAD = 120e-9
#: Eager launches of one layer: about 25 kernels of 4.5 us each (assumption; the floor of a step without CUDA graph).
EAGER_LAYER = 25 * 4.5e-6


@dataclass(frozen=True, slots=True)
class EngineShape:
    """What of the engine costs time. ``family``: sglang or vllm; ``kernels``: version of the decode kernels (0.5.14,
    0.5.10).

    ``kv_element_bytes``: 2 (bf16), 1 (fp8). ``allreduce``: a preset's name. ``graph_sizes``: captured decode batches.
    ``routing_dispersion``: 1.0 by default; public benchmark runs with similar prompts fit 0.5-0.75, even routing is
    infinity.
    """

    tp: int = 1
    ep: int = 1
    family: str = "sglang"
    backend: str = "flashinfer"
    kernels: str = "0.5.14"
    kv_element_bytes: float = 2.0
    allreduce: str = "nccl_tuned"
    graph_sizes: tuple[int, ...] = ()
    routing_dispersion: float = 1.0
    unabsorbed_from: int = UNABSORBED_FROM
    dp: int = 1

    @property
    def attention_tp(self) -> int:
        """Return over how many GPUs one sequence's attention is split."""
        return self.tp // self.dp


def kernels_for(card: Card, key: str | None, generation: str | None) -> tuple[Kernels, tuple[str, ...]]:
    """Return the coefficients of a card and notes; a card without tables is scaled by roofline from the nearest
    measured one."""
    if key in KERNELS:
        return KERNELS[key], KERNELS[key].notes
    near = NEAREST.get(generation or "")
    if near is None:
        raise ConfigError(
            f"hardware: no measured kernels for '{card.name}' and no known "
            "architecture to scale from: give gpu.architecture, one of "
            f"{', '.join(sorted(NEAREST))}, or costs: {{kind: table, ...}}"
        )
    note = f"not measured on this card: {card.name} is scaled by roofline from {CARDS[near].name}"
    return scaled(KERNELS[near], CARDS[near], card), (note, *KERNELS[near].notes)


def analytic_inputs(
    card: Card, shape: ModelShape, engine: EngineShape, *, key: str | None = None, generation: str | None = None
) -> AnalyticInputs:
    """Return the numbers of the analytic model for this combination; notes name every stand-in."""
    if engine.backend not in BACKENDS:
        raise UnknownName("attention backend", engine.backend, BACKENDS)
    kernels, notes = kernels_for(card, key, generation)
    notes += _stand_ins(shape, engine, kernels)
    decode, prefill = _decode(shape, engine, kernels), _prefill(card, shape, engine, kernels)
    kind = "dense" if not shape.experts else "mla_moe" if shape.kind == MLA else "gqa_moe"
    per_layer = VLLM_MLA_MOE_OVERHEAD if (kind, engine.family) == ("mla_moe", "vllm") else LAYER_OVERHEAD[kind]
    head = shape.hidden * shape.vocab / engine.tp
    return AnalyticInputs(
        card=card,
        layers=shape.layers,
        gemm=_gemm(shape, engine, kernels),
        decode=decode,
        prefill=prefill,
        overheads=Overheads(per_layer, TOKEN_OVERHEAD, 0.0, shape.layers * EAGER_LAYER, engine.graph_sizes),
        head=Head(head * shape.head_bytes, 2.0 * head),
        moe=_moe(shape, engine, kernels),
        allreduce=_allreduce(shape, engine),
        notes=notes,
        measured=key in KERNELS,
    )


def _gemm(shape: ModelShape, engine: EngineShape, kernels: Kernels) -> Gemm:
    attention = shape.layers * shape.attention_params(engine.attention_tp)
    rest = shape.dense_params(engine.tp) - shape.layers * shape.attention_params(engine.tp)
    params, per_token = attention + rest, attention + rest * engine.dp
    fit = kernels.gemm_fp8 if shape.dense_bytes == 1.0 and kernels.gemm_fp8 else kernels.gemm
    per_layer = 8.0 if shape.kind == MLA else 3.0 if shape.experts else 4.0
    return Gemm(params * shape.dense_bytes, 2.0 * per_token, shape.layers * per_layer, fit.t0, fit.flops_eff, fit.bw_eff, fit.p)


def _moe(shape: ModelShape, engine: EngineShape, kernels: Kernels) -> Moe | None:
    if not shape.experts:
        return None
    fit = kernels.moe_vllm if engine.family == "vllm" and kernels.moe_vllm else kernels.moe
    slice_ = 3.0 * shape.hidden * shape.expert_intermediate / engine.tp
    return Moe(
        shape.layers - shape.dense_layers,
        shape.experts,
        shape.top_k * engine.dp,  # DP attention: the experts see every group's tokens
        slice_ * shape.expert_bytes,
        2.0 * slice_,
        fit.t0,
        fit.flops_eff,
        fit.bw_eff,
        fit.p,
        fit.pad_tokens,
        engine.routing_dispersion,
        engine.ep,
    )


def _decode(shape: ModelShape, engine: EngineShape, kernels: Kernels) -> DecodeAttention:
    fit: DecodeFit = kernels.gqa_decode
    if shape.kind == MLA:
        fit = kernels.mla_decode
        if engine.family == "vllm" and engine.kv_element_bytes == 1 and kernels.mla_decode_vllm_fp8:
            fit = kernels.mla_decode_vllm_fp8
        elif engine.kernels == "0.5.10" and kernels.mla_decode_old:
            fit = kernels.mla_decode_old
    kv = shape.kv_values(engine.attention_tp) * engine.kv_element_bytes
    return DecodeAttention(shape.full_attention_layers, kv, fit.t0, fit.t_seq, fit.bw_eff, fit.a, fit.c1, fit.d, fit.p)


def _prefill(card: Card, shape: ModelShape, engine: EngineShape, kernels: Kernels) -> PrefillAttention:
    heads, layers = shape.heads / engine.attention_tp, shape.full_attention_layers
    if shape.kind != MLA:
        fit = kernels.gqa_prefill_triton if engine.backend == "triton" else kernels.gqa_prefill
        near = card.l2_bytes / (shape.kv_values(engine.attention_tp) * engine.kv_element_bytes)
        return PrefillAttention(layers, replace(_kernel(fit, 4.0 * shape.head_dim * heads), near_tokens=near, far_factor=fit.far_factor))
    plain = _kernel(
        kernels.mla_plain,
        2.0 * heads * (shape.nope + shape.rope + shape.v_dim),
        2.0 * shape.kv_lora * heads * (shape.nope + shape.v_dim),
    )
    absorbed = _kernel(kernels.mla_absorbed, 2.0 * heads * (2 * shape.kv_lora + shape.rope))
    if engine.family == "vllm":
        return PrefillAttention(layers, plain)
    return PrefillAttention(layers, plain, absorbed, None if engine.backend == "triton" else engine.unabsorbed_from)


def _kernel(fit: PrefillFit, pair_flop: float, up_flop: float = 0.0) -> PrefillKernel:
    return PrefillKernel(pair_flop, fit.rate, fit.t0, fit.per_token, up_flop)


def _allreduce(shape: ModelShape, engine: EngineShape) -> AllReduce | None:
    if engine.tp == 1:
        return None
    if engine.allreduce not in ALLREDUCE:
        raise UnknownName("all-reduce preset", engine.allreduce, ALLREDUCE)
    count = 2 if engine.attention_tp > 1 else 1
    protocols = protocols_at(ALLREDUCE[engine.allreduce], engine.tp)
    return AllReduce(shape.layers, 2.0 * shape.hidden * engine.dp, protocols, count)


def _stand_ins(shape: ModelShape, engine: EngineShape, kernels: Kernels) -> tuple[str, ...]:
    """Return notes on every coefficient that stands in for one that was not measured."""
    notes = []
    if shape.kind == MLA and engine.family == "sglang" and engine.kv_element_bytes == 1:
        notes.append("fp8 KV with MLA in SGLang was not measured here: bf16 efficiencies with half the bytes")
    if shape.experts and shape.expert_bytes != 0.5625:
        notes.append("expert kernels: coefficients of the int4 Marlin kernel stand in for this weight type")
    if engine.kernels == "0.5.10" and shape.kind == MLA and kernels.mla_decode_old is None:
        notes.append("decode kernels of SGLang 0.5.10 were measured on RTX PRO 6000 only: those of 0.5.14 stand in")
    if engine.ep > 1:
        notes.append("expert parallelism: even routing, the fullest rank's expected load; all-to-all as the all-reduces it replaces")
    if engine.dp > 1:
        notes.append("DP attention: every group is taken to have this one's tokens; gathering costs as an all-reduce")
    if shape.full_attention_layers < shape.layers:
        notes.append("linear or windowed attention layers cost their matrices only")
    return tuple(notes)


def with_overrides(inputs: AnalyticInputs, overrides: dict[str, float]) -> AnalyticInputs:
    """Return the inputs with numbers replaced by ``component.number`` names (what ``calibrate`` writes). Raises
    UnknownName.

    ``scale`` multiplies every step; ``allreduce.alpha`` and ``allreduce.beta`` replace the (single or last) protocol's
    numbers.
    """
    for name, value in overrides.items():
        component, _, number = name.partition(".")
        if name == "scale":
            inputs = replace(inputs, scale=value)
        elif component == "allreduce" and number in {"alpha", "beta"}:
            inputs = _set_protocol(inputs, number, value)
        elif component == "prefill" and number in {"rate", "t0", "per_token", "up_flop", "pair_flop"}:
            plain = replace(inputs.prefill.plain, **{number: value})
            inputs = replace(inputs, prefill=replace(inputs.prefill, plain=plain))
        elif hasattr(getattr(inputs, component, None), number or "?"):
            inputs = inputs.changed(component, **{number: value})
        else:
            raise UnknownName("cost constant", name, known_constants(inputs))
    return inputs


def _set_protocol(inputs: AnalyticInputs, number: str, value: float) -> AnalyticInputs:
    if inputs.allreduce is None:
        return inputs
    *others, (alpha, beta) = inputs.allreduce.protocols
    last = (value, beta) if number == "alpha" else (alpha, value)
    return replace(inputs, allreduce=replace(inputs.allreduce, protocols=(*others, last)))


def known_constants(inputs: AnalyticInputs) -> list[str]:
    """Return every ``component.number`` that may be overridden."""
    names = ["scale", "allreduce.alpha", "allreduce.beta", "prefill.rate", "prefill.t0", "prefill.per_token"]
    for component in ("gemm", "moe", "decode", "overheads", "head"):
        part = getattr(inputs, component)
        if part is not None:
            names += [f"{component}.{field}" for field in part.__dataclass_fields__ if isinstance(getattr(part, field), float)]
    return names
