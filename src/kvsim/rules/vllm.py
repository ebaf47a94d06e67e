"""vLLM V1's rules as data: one ``VllmRules`` per engine version, one ``VllmParams`` per engine.

Each field names the engine's file and function that it was read from (paths inside the ``vllm`` package). The
recordings in shared/oracle_vllm (0.24.0) decide them; 0.19.0 and 0.23.0 are described by vllm_scheduler.md 13 for the
plain scheduler only: their connectors are not described by any recording, and ``connectors`` says so.
"""

from __future__ import annotations

from dataclasses import dataclass

FCFS, PRIORITY = "fcfs", "priority"
OFFLOADING, SIMPLE = "OffloadingConnector", "SimpleCPUOffloadConnector"


@dataclass(frozen=True, slots=True)
class VllmRules:
    """The choices in which engine versions differ.

    ``unhashed_first``: a released block without a hash goes to the front of the free queue, not to its back
    (v1/core/block_pool.py free_blocks; from 0.24.0). ``watermark``: ``scheduler.watermark`` exists
    (config/scheduler.py; from 0.24.0). ``gpu_memory_utilization``: default of config/cache.py. ``graph_estimate``: the
    CUDA-graph estimate is subtracted from the KV bytes (v1/worker/gpu_worker.py;
    VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS). ``prompt_only``: default of ``offload_prompt_only``
    (v1/kv_offload/base.py). ``connectors``: the CPU offloading connectors are described. ``counts_every_lookup``:
    prefix-cache counters count each retry of a waiting request (v1/core/kv_cache_manager.py).
    """

    name: str
    unhashed_first: bool = True
    watermark: bool = True
    gpu_memory_utilization: float = 0.92
    graph_estimate: bool = True
    prompt_only: bool = True
    connectors: bool = True
    counts_every_lookup: bool = True


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
