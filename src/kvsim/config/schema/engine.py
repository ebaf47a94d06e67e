"""The engine block under SGLang's rules: its flags with underscores, letter for letter."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from kvsim.config.schema.types import Block, Bytes, Count, Name, Number, PositiveCount, PositiveNumber, Share


def _ratio(value: object) -> object:
    if value in ("off", False):
        return 0.0
    if value is True:
        raise ValueError("must be a number or off; YAML reads yes and on as true")
    return value


def _off(value: object) -> object:
    return "off" if value is False else value


class Hicache(Block):
    """The host tier. ``ratio`` 0 or off: no host tier. ``size``: per rank, in 1e9 bytes, overrides the ratio."""

    ratio: Annotated[Number, BeforeValidator(_ratio), Field(ge=0)] | None = None
    size: Annotated[Number, Field(ge=0)] = 0
    write_policy: Literal["write_through", "write_through_selective", "write_back"] = "write_through"
    io_backend: Literal["kernel", "direct", "kernel_ascend"] = "kernel"
    mem_layout: Name | None = None
    load_back_threshold: Annotated[Count, Field(ge=0)] = 10
    host_copies: Literal["per_rank", "shared"] = "per_rank"
    host_tokens: Annotated[Count, Field(ge=0)] | None = None
    storage_backend: Name | None = None
    storage_prefetch_policy: Name | None = None


class SglangEngine(Block):
    """One SGLang server. Absent values are chosen as the engine would choose them."""

    rules: Name | dict[str, Any] = "sglang-0.5.9"
    command: Name | None = None
    tp: PositiveCount | None = None
    pp: PositiveCount = 1
    ep_size: PositiveCount = 1
    dp_size: PositiveCount = 1
    enable_dp_attention: bool = False
    load_balance_method: Literal["round_robin", "total_requests", "total_tokens"] = "round_robin"
    enable_prefill_delayer: bool = False
    prefill_delayer_max_delay_passes: Annotated[Count, Field(le=10_000)] = 30
    mem_fraction_static: Share | None = None
    max_total_tokens: PositiveCount | None = None
    page_size: Annotated[Count, Field(ge=1, le=65_536)] | None = None
    chunked_prefill_size: Count | None = None
    max_prefill_tokens: PositiveCount = 16384
    max_running_requests: PositiveCount | None = None
    max_queued_requests: PositiveCount | None = None
    schedule_policy: Name = "fcfs"
    schedule_conservativeness: PositiveNumber = 1.0
    cuda_graph_max_bs: Annotated[Count, Field(gt=0, le=100_000)] | None = None
    cuda_graph_bs: list[PositiveCount] | None = None
    disable_cuda_graph: bool = False
    disable_cuda_graph_padding: bool = False
    kv_cache_dtype: Literal["auto", "bf16", "bfloat16", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1"] = "auto"
    attention_backend: Name | None = None
    context_length: PositiveCount | None = None
    disable_radix_cache: bool = False
    disable_overlap_schedule: bool = False
    enable_mixed_chunk: bool = False
    radix_eviction_policy: Name = "lru"
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    priority_scheduling_preemption_threshold: Count = 10
    allow_auto_truncate: bool = False
    speculative_algorithm: Name | None = None
    speculative_num_steps: PositiveCount | None = None
    speculative_eagle_topk: PositiveCount | None = None
    speculative_num_draft_tokens: PositiveCount | None = None
    hicache: Hicache = Field(default={}, validate_default=True)
    # What an engine printed, or what a study fixes: wins over the derivation.
    max_total_num_tokens: PositiveCount | None = None
    free_before_weights: Annotated[Bytes, Field(ge=1)] | None = None
    weights_resident: Bytes | None = None
    memory_source: Name | None = None
    # The toy world.
    device_tokens: PositiveCount | None = None
    kv_bytes_per_token: PositiveCount | None = None
    length_limits: bool = True
    # Environment settings of the server (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION, SGLANG_RETRACT_DECODE_STEPS, SGLANG_INIT_NEW_TOKEN_RATIO, ...).
    clip_max_new_tokens: Annotated[Count, Field(ge=0)] = 4096
    retract_decode_steps: Annotated[Count, Field(ge=0)] = 20
    init_new_token_ratio: Annotated[Number, Field(gt=0, le=1)] = 0.7
    min_new_token_ratio_factor: Annotated[Number, Field(ge=0, le=1)] = 0.14
    new_token_ratio_decay_steps: PositiveCount = 600
    lpm_fallback_length: Annotated[PositiveCount | Literal["off"], BeforeValidator(_off)] = 128
