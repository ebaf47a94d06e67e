"""vLLM's memory arithmetic: bytes of a block, blocks of a card, blocks of the CPU tier, defaults (vllm_scheduler.md 1).

Numbers in, numbers out; ``vllm_resolve`` feeds them from a scenario and keeps the arithmetic as text. Sources are files
inside the ``vllm`` package.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GIB = 2**30
DEFAULT_BLOCK_SIZE = 16
#: Cards with at least this much memory, A100 excepted, get the large batch defaults (engine/arg_utils.py).
LARGE_CARD_BYTES = 70 * GIB
FP8_DS_MLA_BYTES = 656
#: Smallest block sizes of attention backends that do not support 16 (v1/attention/backends).
BACKEND_BLOCK_SIZES = {"FLASHMLA": 64, "FLASHINFER_MLA": 32, "CUTLASS_MLA": 128}
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}


@dataclass(frozen=True, slots=True)
class KvShape:
    """The KV of one attention layer. MLA: ``lora_rank`` and ``rope_dim`` (> 0); else heads and their dimensions."""

    kv_heads: int = 0
    head_dim: int = 0
    value_dim: int = 0
    lora_rank: int = 0
    rope_dim: int = 0

    @property
    def mla(self) -> bool:
        """Whether keys and values are one latent vector, the same on every rank."""
        return self.lora_rank > 0


def page_bytes(shape: KvShape, block_size: int, tp: int, dtype: str = "bfloat16") -> int:
    """Return the bytes of one block of one layer on one GPU (v1/kv_cache_interface.py page_size_bytes).

    ``dtype``: the KV cache's own; nvfp4 packs two values in a byte and adds one fp8 scale per 16.
    """
    if shape.mla:
        if dtype == "fp8_ds_mla":
            return block_size * FP8_DS_MLA_BYTES
        return block_size * _vector_bytes(shape.lora_rank + shape.rope_dim, dtype)
    heads = max(1, shape.kv_heads // tp)
    return block_size * heads * _vector_bytes(shape.head_dim + shape.value_dim, dtype)


def _vector_bytes(values: int, dtype: str) -> int:
    return values // 2 + values // 16 if dtype == "nvfp4" else values * ITEM_BYTES[dtype]


def gpu_blocks(kv_bytes: int, page: int, layers: int) -> int:
    """Return num_gpu_blocks, the null block included, of one group of equal layers (v1/core/kv_cache_utils.py)."""
    return kv_bytes // page // layers if kv_bytes > 0 else 0


def requested_bytes(card_bytes: int, utilization: float) -> int:
    """Return what an instance may use of the whole card, whatever is free (v1/worker/utils.py request_memory)."""
    return math.ceil(card_bytes * utilization)


def printed_tokens(blocks: int, max_model_len: int, block_size: int) -> int:
    """Return n of the line "GPU KV cache size: n tokens"."""
    return int(blocks / math.ceil(max_model_len / block_size) * max_model_len)


def printed_concurrency(blocks: int, max_model_len: int, block_size: int) -> float:
    """Return x of the line "Maximum concurrency for L tokens per request: x"."""
    return blocks / math.ceil(max_model_len / block_size)


def blocks_of_printed(tokens: int, max_model_len: int, block_size: int) -> int:
    """Return the smallest block count for which the engine prints ``tokens``."""
    guess = max(1, tokens * math.ceil(max_model_len / block_size) // max_model_len - 1)
    while printed_tokens(guess, max_model_len, block_size) < tokens:
        guess += 1
    return guess


def offload_blocks(size_gib: float, page: int, layers: int, ranks: int, factor: int = 1) -> int:
    """Return OffloadingConnector's offloaded blocks: the flag is a total over all ranks (v1/kv_offload/cpu/spec.py)."""
    return int(size_gib * GIB) // (page * layers * ranks * factor)


def simple_blocks(size_gib: float, blocks: int, kv_bytes: int, ranks: int) -> int:
    """Return SimpleCPUOffloadConnector's CPU blocks, its null block included (v1/simple_kv_offload/manager.py)."""
    return int(blocks * (size_gib * GIB / ranks) // kv_bytes) if kv_bytes > 0 else 0


def default_block_size(backend: str | None, mla: bool, architecture: str) -> tuple[int, str]:
    """Return (block size, attention backend): 16 unless the backend's smallest size is larger."""
    if backend is None:
        backend = ("FLASHINFER_MLA" if _datacenter_blackwell(architecture) else "MLA") if mla else "FLASH_ATTN"
    return BACKEND_BLOCK_SIZES.get(backend.upper(), DEFAULT_BLOCK_SIZE), backend


def _datacenter_blackwell(architecture: str) -> bool:
    return architecture.lower() in ("blackwell", "sm100")


def batch_defaults(card_bytes: int, card_name: str) -> tuple[int, int]:
    """Return (max_num_batched_tokens, max_num_seqs) of the API server on such a card (get_batch_defaults)."""
    if card_bytes >= LARGE_CARD_BYTES and "a100" not in card_name.lower():
        return 8192, 1024
    return 2048, 256
