"""The engine block under vLLM's rules: its flags with underscores, letter for letter."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from kvsim.config.schema.types import Block, Bytes, Count, Name, Number, PositiveCount, Share


class Offload(Block):
    """How the native CPU offload works (kv_connector_extra_config); ``kv_offloading_size`` switches it on.

    ``connector``: simple is VLLM_USE_SIMPLE_KV_OFFLOAD=1, with ``lazy_offload``; the other keys are OffloadingConnector's.
    ``block_size``: tokens of an offloaded block, a multiple of the engine's. ``cpu_blocks`` overrides the derivation.
    """

    connector: Literal["offloading", "simple"] = "offloading"
    block_size: Annotated[Count, Field(ge=1, le=65_536)] | None = None
    eviction_policy: Literal["lru", "arc"] = "lru"
    store_threshold: Annotated[Count, Field(ge=0)] = 0
    offload_prompt_only: bool | None = None
    lazy_offload: bool = False
    cpu_blocks: PositiveCount | None = None


class VllmEngine(Block):
    """One vLLM server. Absent values are chosen as the engine would choose them.

    ``kv_offloading_size``: GiB, in total over all ranks. ``tp``: short for tensor_parallel_size.
    """

    rules: Name | dict[str, Any]
    command: Name | None = None
    tensor_parallel_size: PositiveCount | None = None
    tp: PositiveCount | None = None
    pipeline_parallel_size: PositiveCount = 1
    data_parallel_size: PositiveCount = 1
    enable_expert_parallel: bool = False
    gpu_memory_utilization: Share | None = None
    kv_cache_memory_bytes: Bytes | None = None
    num_gpu_blocks_override: PositiveCount | None = None
    block_size: Annotated[Count, Field(ge=1, le=65_536)] | None = None
    max_model_len: PositiveCount | Literal["auto"] | None = None
    max_num_batched_tokens: PositiveCount | None = None
    max_num_seqs: PositiveCount | None = None
    max_num_partial_prefills: PositiveCount = 1
    long_prefill_token_threshold: Annotated[Count, Field(ge=0)] = 0
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: bool = True
    scheduler_reserve_full_isl: bool = True
    watermark: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    performance_mode: Literal["balanced", "interactivity", "throughput"] = "balanced"
    enforce_eager: bool = False
    kv_cache_dtype: Literal["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla", "nvfp4"] = "auto"
    attention_backend: Name | None = None
    kv_offloading_size: Annotated[Number, Field(ge=0)] = 0
    kv_offloading_backend: Literal["native"] = "native"
    offload: Offload = Field(default={}, validate_default=True)
    # What an engine printed, or what a study fixes: wins over the derivation.
    gpu_kv_cache_tokens: PositiveCount | None = None
    available_kv_cache_memory: Bytes | None = None
    weights_resident: Bytes | None = None
    non_kv_memory: Bytes | None = None
    cudagraph_memory: Bytes | None = None
    memory_source: Name | None = None
    # The toy world.
    kv_bytes_per_token: PositiveCount | None = None
    length_limits: bool = True
