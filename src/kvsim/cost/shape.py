"""What of a model costs time: its dimensions, read from a Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvsim.errors import ConfigError

MLA, GQA = "mla", "gqa"

#: Bytes per parameter including scales: int4 in groups of 32 with one bf16 scale each = 0.5 + 2/32.
WEIGHT_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int4": 0.5625, "nvfp4": 0.5625}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Dimensions of one model. ``full_attention_layers``: layers whose attention reads all of the context (others are
    linear or windowed).

    MLA: ``q_lora``, ``kv_lora``, ``nope``, ``rope``, ``v_dim``. ``dense_layers``: layers without routed experts.
    ``*_bytes``: bytes per parameter of attention and dense matrices, of routed experts, and of the head.
    """

    layers: int
    hidden: int
    vocab: int
    kind: str
    heads: int
    kv_heads: int
    head_dim: int
    full_attention_layers: int
    dense_layers: int
    dense_intermediate: int
    q_lora: int = 0
    kv_lora: int = 0
    nope: int = 0
    rope: int = 0
    v_dim: int = 0
    experts: int = 0
    top_k: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    dense_bytes: float = 2.0
    expert_bytes: float = 2.0
    head_bytes: float = 2.0

    def attention_params(self, tp: int) -> float:
        """Return attention parameters of one layer on one GPU; MLA down-projections are replicated on every rank."""
        h = self.hidden
        if self.kind == MLA:
            query = (
                h * self.q_lora + self.q_lora * self.heads * (self.nope + self.rope) / tp
                if self.q_lora
                else h * self.heads * (self.nope + self.rope) / tp
            )
            latent = h * (self.kv_lora + self.rope) + self.kv_lora * self.heads * (self.nope + self.v_dim) / tp
            return query + latent + self.heads * self.v_dim * h / tp
        kv_heads = max(1.0, self.kv_heads / tp)
        return h * self.head_dim * (2 * self.heads / tp + 2 * kv_heads)

    def dense_params(self, tp: int) -> float:
        """Return all parameters on one GPU that every token passes (attention, shared expert, router, dense MLP),
        without head."""
        attention = self.layers * self.attention_params(tp)
        moe_layers = self.layers - self.dense_layers
        shared = moe_layers * (3 * self.hidden * self.shared_intermediate / tp + self.hidden * self.experts)
        return attention + shared + self.dense_layers * 3 * self.hidden * self.dense_intermediate / tp

    def kv_values(self, tp: int) -> float:
        """Return KV elements per token and layer on one rank: the whole latent for MLA, this rank's heads for GQA."""
        if self.kind == MLA:
            return self.kv_lora + self.rope
        return 2 * max(1, self.kv_heads // tp) * self.head_dim


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """Return the shape described by a model's ``config.json``. Raises ConfigError naming the first field that is
    missing."""
    text = config.get("text_config") if isinstance(config.get("text_config"), Mapping) else config
    assert isinstance(text, Mapping)

    def need(*names: str) -> int:
        for name in names:
            if isinstance(text.get(name), int):
                return int(text[name])
        raise ConfigError(f"model: config.json has none of {', '.join(names)}, which the step-time model needs")

    def have(*names: str) -> int:
        return next((int(text[name]) for name in names if isinstance(text.get(name), int)), 0)

    layers, hidden, heads = need("num_hidden_layers"), need("hidden_size"), need("num_attention_heads")
    kind = MLA if have("kv_lora_rank") else GQA
    experts = have("n_routed_experts", "num_experts", "num_local_experts")
    expert_intermediate = have("moe_intermediate_size") or (have("intermediate_size") if experts else 0)
    dense_layers = have("first_k_dense_replace") if experts else layers
    shared = have("shared_expert_intermediate_size") or have("n_shared_experts") * expert_intermediate
    types = text.get("layer_types")
    full = sum(1 for name in types if name == "full_attention") if isinstance(types, list) and types else layers
    dense_bytes, expert_bytes = _weight_bytes(config, text)
    return ModelShape(
        layers,
        hidden,
        need("vocab_size"),
        kind,
        heads,
        have("num_key_value_heads") or heads,
        have("head_dim") or hidden // heads,
        full,
        dense_layers,
        have("intermediate_size"),
        have("q_lora_rank"),
        have("kv_lora_rank"),
        have("qk_nope_head_dim"),
        have("qk_rope_head_dim"),
        have("v_head_dim"),
        experts,
        have("num_experts_per_tok", "num_experts_per_token", "moe_top_k"),
        expert_intermediate,
        shared if experts else 0,
        dense_bytes,
        expert_bytes,
    )


def _weight_bytes(config: Mapping[str, Any], text: Mapping[str, Any]) -> tuple[float, float]:
    """Return bytes per parameter of (dense matrices, routed experts) from ``quantization_config``.

    A four-bit recipe that ignores attention (compressed-tensors ``ignore`` with self_attn, as Kimi-K2.5's) covers
    experts only.
    """
    recipe = text.get("quantization_config") or config.get("quantization_config")
    if not isinstance(recipe, Mapping):
        return 2.0, 2.0
    method = str(recipe.get("quant_method", "")).lower()
    if method == "fp8":
        return WEIGHT_BYTES["fp8"], WEIGHT_BYTES["fp8"]
    ignored = " ".join(str(name) for name in recipe.get("ignore") or [])
    four = WEIGHT_BYTES["int4"]
    return (2.0 if "self_attn" in ignored or "attn" in ignored else four), four
