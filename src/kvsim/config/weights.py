"""Weight bytes on one GPU, derived from a model's dimensions and quantisation, part by part, with replicated parts named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvsim.config.model import ModelProfile

#: Bytes per parameter with scales: int4 in groups of 32 with a bf16 scale = 0.5 + 2/32.
BYTES = {"bf16": 2.0, "fp8": 1.0, "int4": 0.5625, "mxfp4": 0.53125, "nvfp4": 0.5625}


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the weights: parameters of the whole model, bytes per parameter, whether every GPU holds all of it."""

    name: str
    params: float
    bytes_per_param: float
    replicated: bool = False

    def total(self) -> float:
        """Return the bytes of one copy."""
        return self.params * self.bytes_per_param

    def on_gpu(self, tp: int) -> float:
        """Return the bytes on one GPU."""
        return self.total() if self.replicated else self.total() / tp


def weight_parts(model: ModelProfile) -> list[Part]:
    """Return the parts of a model's weights."""
    config = model.config
    dense, expert = _bytes_per_param(config)
    h = model.hidden
    experts = _int(config, "n_routed_experts", "num_experts", "num_local_experts")
    inner = _int(config, "intermediate_size") or 4 * h
    expert_inner = _int(config, "moe_intermediate_size") or (inner if experts else 0)
    dense_layers = _int(config, "first_k_dense_replace") if experts else model.layers
    moe_layers = model.layers - dense_layers
    shared_inner = _int(config, "shared_expert_intermediate_size") or _int(config, "n_shared_experts") * expert_inner
    tied = bool(config.get("tie_word_embeddings", False))
    parts = [Part("embedding" + ("" if tied else " and head"), model.vocab * h * (1 if tied else 2), 2.0)]
    parts += _attention_parts(model, dense)
    if dense_layers:
        parts.append(Part("dense MLP", dense_layers * 3 * h * inner, dense))
    if experts:
        parts.append(Part("routed experts", moe_layers * experts * 3 * h * expert_inner, expert))
        parts.append(Part("router", moe_layers * h * experts, 2.0, replicated=True))
        if shared_inner:
            parts.append(Part("shared experts", moe_layers * 3 * h * shared_inner, dense))
    extra = model.facts.get("replicated_extra_bytes")
    if isinstance(extra, (int, float)) and extra > 0:
        parts.append(Part(str(model.facts.get("replicated_extra", "other")), float(extra), 1.0, replicated=True))
    return parts


def _attention_parts(model: ModelProfile, size: float) -> list[Part]:
    config, h, layers = model.config, model.hidden, model.layers
    if model.kind == "mla":
        q_lora = _int(config, "q_lora_rank")
        nope, rope = _int(config, "qk_nope_head_dim"), model.rope_dim
        v_dim = _int(config, "v_head_dim")
        down = h * q_lora + h * (model.kv_lora_rank + rope)
        up = (q_lora or h) * model.heads * (nope + rope) + model.kv_lora_rank * model.heads * (nope + v_dim) + model.heads * v_dim * h
        return [
            Part("attention (up and output projections)", layers * up, size),
            Part("attention (down projections)", layers * down, size, replicated=True),
        ]
    width = h * model.head_dim * (2 * model.heads + 2 * model.kv_heads)
    return [Part("attention", layers * width, size)]


def _bytes_per_param(config: Mapping[str, Any]) -> tuple[float, float]:
    """Return bytes per parameter of (dense matrices, routed experts) from the quantisation block."""
    recipe = config.get("quantization_config")
    if not isinstance(recipe, Mapping):
        return BYTES["bf16"], BYTES["bf16"]
    method = str(recipe.get("quant_method", "")).lower()
    if method == "fp8":
        return BYTES["fp8"], BYTES["fp8"]
    if method == "mxfp4":
        return BYTES["bf16"], BYTES["mxfp4"]
    ignored = " ".join(str(name) for name in recipe.get("ignore") or [])
    four = BYTES["nvfp4"] if "nvfp4" in str(recipe).lower() else BYTES["int4"]
    if str(recipe.get("bits", "")) == "8" or "w8a8" in str(recipe).lower():
        return BYTES["fp8"], BYTES["fp8"]
    return (BYTES["bf16"] if "attn" in ignored else four), four


def _int(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9:
            return value
    return 0


def weights_on_gpu(model: ModelProfile, tp: int) -> int:
    """Return the derived weight bytes of one GPU."""
    return round(sum(part.on_gpu(tp) for part in weight_parts(model)))


def weights_total(model: ModelProfile) -> int:
    """Return the bytes of one copy of everything (what a checkpoint holds)."""
    return round(sum(part.total() for part in weight_parts(model)))
