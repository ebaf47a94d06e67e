"""vLLM V1's rules as data: one ``VllmRules`` per engine version, one ``VllmParams`` per engine.

Each field names the engine's file and function that it was read from (paths inside the ``vllm`` package). The
recordings in shared/oracle_vllm (0.24.0) decide them; 0.19.0 and 0.23.0 are described by vllm_scheduler.md 13 for the
plain scheduler only: their connectors are not described by any recording, and ``connectors`` says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FCFS, PRIORITY = "fcfs", "priority"
OFFLOADING, SIMPLE = "OffloadingConnector", "SimpleCPUOffloadConnector"


def _rule(default: Any, words: str, source: str) -> Any:
    return field(default=default, metadata={"words": words, "source": source})


@dataclass(frozen=True, slots=True)
class VllmRules:
    """The choices in which engine versions differ; defaults are 0.24.0.

    Each field's metadata holds ``words`` (what the rule says) and ``source`` (file: function).
    """

    name: str
    unhashed_first: bool = _rule(
        True, "a released block without a hash is re-used first", "v1/core/block_pool.py: free_blocks"
    )
    watermark: bool = _rule(True, "the option watermark exists", "config/scheduler.py")
    gpu_memory_utilization: float = _rule(0.92, "default of gpu_memory_utilization", "config/cache.py")
    graph_estimate: bool = _rule(
        True,
        "an estimate of the CUDA graphs is taken from the KV memory",
        "v1/worker/gpu_worker.py: determine_available_memory",
    )
    prompt_only: bool = _rule(True, "OffloadingConnector stores prompt blocks only by default", "v1/kv_offload/base.py")
    connectors: bool = _rule(True, "the CPU offloading connectors of this version are described", "v1/kv_offload")


RULES: dict[str, VllmRules] = {
    "vllm-0.24.0": VllmRules("vllm-0.24.0"),
    "vllm-0.23.0": VllmRules("vllm-0.23.0", unhashed_first=False, watermark=False, connectors=False),
    "vllm-0.19.0": VllmRules(
        "vllm-0.19.0",
        unhashed_first=False,
        watermark=False,
        gpu_memory_utilization=0.9,
        graph_estimate=False,
        prompt_only=False,
        connectors=False,
    ),
}


@dataclass(frozen=True, slots=True)
class VllmParams:
    """One engine's settings after ``resolve``: numbers only. Names are the engine's own.

    ``num_gpu_blocks`` includes the null block (one fewer is usable). ``long_prefill_token_threshold`` 0: off.
    ``async_scheduling``: results lag one step. ``server_limits``: the OpenAI server's length checks apply
    (renderers/params.py); a recording drives the engine below them. ``connector`` "": no CPU tier; ``cpu_blocks``:
    OffloadingConnector: offloaded blocks of ``offload_factor`` GPU blocks each; SimpleCPUOffloadConnector: blocks
    including its own null block. ``cpu_policy``: lru | arc. ``store_threshold``: lookups before a key is stored (0, 1:
    all).
    """

    rules: VllmRules
    num_gpu_blocks: int
    max_model_len: int
    block_size: int = 16
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 1024
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    policy: str = FCFS
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    enable_prefix_caching: bool = True
    async_scheduling: bool = True
    connector: str = ""
    cpu_blocks: int = 0
    cpu_policy: str = "lru"
    offload_prompt_only: bool = True
    offload_factor: int = 1
    store_threshold: int = 0
    lazy_offload: bool = False
    server_limits: bool = True
