"""Models and engines that several cost tests share (facts of public config.json files)."""

from __future__ import annotations

from kvsim.cost.adapt import EngineShape, analytic_inputs
from kvsim.cost.analytic import AnalyticTime
from kvsim.cost.kernels import CARDS
from kvsim.cost.shape import ModelShape, shape_of

KIMI = {
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "vocab_size": 163840,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 384,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "quantization_config": {"quant_method": "compressed-tensors", "ignore": ["re:.*self_attn.*"]},
}
LLAMA = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
}
QWEN_MOE = {
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "vocab_size": 151936,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
GRAPHS_128 = (1, 2, 4, 8, 12, *range(16, 129, 8))
VLLM_GRAPHS = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))


def shape(config: dict[str, object]) -> ModelShape:
    return shape_of(config)


def anchor(**engine: object) -> AnalyticTime:
    given = {"tp": 8, "graph_sizes": GRAPHS_128, **engine}
    return AnalyticTime(analytic_inputs(CARDS["rtx_pro_6000"], shape(KIMI), EngineShape(**given), key="rtx_pro_6000"))


def public_vllm() -> AnalyticTime:
    """The engine of the open decode matrix: vLLM, fp8 KV, one-shot all-reduce for small sizes, similar prompts."""
    return anchor(
        family="vllm",
        backend="flash_attn",
        kv_element_bytes=1,
        graph_sizes=VLLM_GRAPHS,
        allreduce="custom_nccl",
        routing_dispersion=0.5,
    )


def model_on(config: dict[str, object], card: str, tp: int = 1, **engine: object) -> AnalyticTime:
    given = {"tp": tp, "graph_sizes": VLLM_GRAPHS, **engine}
    return AnalyticTime(analytic_inputs(CARDS[card], shape(config), EngineShape(**given), key=card))
