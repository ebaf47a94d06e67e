"""SGLang's rules as data: one ``SglangRules`` per engine version, one ``SglangParams`` per server.

A version differs from another by the values here and by a few functions chosen by them; there is one scheduler and one
tree. Each field names the engine's file and function that it was read from. Recordings in shared/oracle (0.5.9) and
shared/oracle_0523 (0.5.23) decide them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SglangRules:
    """Every choice an engine version makes; the cache owns the first block, the scheduler the second."""

    name: str


@dataclass(frozen=True, slots=True)
class SglangParams:
    """One server's settings after ``resolve``: numbers only, no derivation left to do. Tokens unless said otherwise.

    ``host_tokens`` 0: HiCache off. ``chunked_prefill_size`` None: chunking off. ``max_input_tokens``: prompts of at least
    this length are refused; None: the engine's length limits are off and only prompt + output > device_tokens is refused
    (the toy world of the field reports). ``clip_max_new_tokens``: SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION.
    ``max_total_len``: cap of prompt + new tokens (srt/managers/tp_worker.py max_req_len).
    """

    rules: SglangRules
    page_size: int
    device_tokens: int
    host_tokens: int = 0
    write_policy: str = "write_through"
    eviction: str = "lru"
    load_back_threshold: int = 10
    radix_cache: bool = True
    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    chunked_prefill_size: int | None = 8192
    max_prefill_tokens: int = 16384
    max_running_requests: int = 2048
    mixed_chunk: bool = False
    overlap: bool = True
    clip_max_new_tokens: int = 4096
    retract_decode_steps: int = 20
    init_new_token_ratio: float = 0.7
    min_new_token_ratio_factor: float = 0.14
    new_token_ratio_decay_steps: int = 600
    max_input_tokens: int | None = None
    max_total_len: int | None = None
    lpm_fallback_length: int | None = 128
    priority_scheduling: bool = False
    low_priority_values_first: bool = False
    priority_preemption_threshold: int = 10
    max_queued_requests: int | None = None
    seed: int = 1
