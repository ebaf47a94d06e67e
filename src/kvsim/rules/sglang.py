"""SGLang's rules as data: one ``SglangRules`` per engine version, one ``SglangParams`` per server.

A version differs from another by the values here and by a few functions chosen by them; there is one scheduler and one
tree. Each field names the engine's file and function that it was read from. Recordings in shared/oracle (0.5.9) and
shared/oracle_0523 (0.5.23) decide them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def _rule(default: Any, words: str, source: str, choices: tuple[str, ...] = ()) -> Any:
    """Return a rule's field: its 0.5.9 value, what it says in words, the engine's file and function, allowed words."""
    return field(default=default, metadata={"words": words, "source": source, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangRules:
    """Every choice an engine version makes; the cache owns the first block, the scheduler the second.

    Defaults are 0.5.9. Each field's metadata holds ``words`` (what the rule says) and ``source`` (file: function).
    """

    name: str

    # ---- cache block (src/kvsim/kv) ----
    evict_full_amount: bool = _rule(
        True, "making room on the device evicts the full amount asked for, not only what is missing",
        "0.5.9 mem_cache/common.py: evict_from_tree_cache; 0.5.23 allocator/base.py: evict_to_free_tokens")
    load_back_evicts_full_amount: bool = _rule(
        True, "a load-back without room evicts its full length, not only what is missing",
        "0.5.9 hiradix_cache.py: load_back; 0.5.23 unified_radix_cache.py: load_back")
    host_evicts_full_amount: bool = _rule(
        True, "a backup without host room evicts its full length from the host, not only what is missing",
        "0.5.9 hiradix_cache.py: write_backup; 0.5.23 unified_radix_cache.py: _execute_kv_backup")
    write_through_hits: int = _rule(
        1, "write_through backs a node up at this many hits", "hiradix_cache.py: write_through_threshold")
    selective_hits: int = _rule(
        2, "write_through_selective backs a node up at this many hits", "hiradix_cache.py: write_through_threshold")
    slru_protected_hits: int = _rule(
        2, "slru protects a node from this many hits", "0.5.23 evict_policy.py: SLRUStrategy")
    plain_counts_hits: bool = _rule(
        False, "hits are counted without a host tier too, so lfu and slru are real there",
        "0.5.9 radix_cache.py: insert; 0.5.23 unified_tree_core.py: _insert_tail_step")
    chunked_inserts_count: bool = _rule(
        False, "inserts of a partly prefilled request count hits and issue copies",
        "0.5.9 hiradix_cache.py: _inc_hit_count; 0.5.23 unified_radix_cache.py: checkpoint_into_tree")
    restored_nodes_count: bool = _rule(
        False, "an evicted node that an insert puts on the device again counts a hit",
        "0.5.9 hiradix_cache.py: insert; 0.5.23 unified_tree_core.py: begin_insert")
    request_counts_once: bool = _rule(
        False, "a request's later inserts count only nodes that end beyond what it inserted before",
        "0.5.23 unified_radix_cache.py: checkpoint_into_tree (inserted_len)")
    split_keeps_creation_time: bool = _rule(
        False, "the upper part of a split node keeps the node's creation time (else: the time of the split)",
        "0.5.9 hiradix_cache.py: _split_node; 0.5.23 unified_tree_core.py: _split_node")
    raise_priority_before_split: bool = _rule(
        True, "with a host tier an insert raises the priority of a diverging node before it splits it, so both parts",
        "0.5.9 hiradix_cache.py: insert against radix_cache.py: _insert_helper")
    split_at_prompt_end: bool = _rule(
        False, "prompt and output never share a node: an insert splits at the page-aligned end of the prompt",
        "0.5.23 unified_radix_cache.py: checkpoint_into_tree")
    prompt_priority_bonus: int = _rule(
        0, "how much priority the prompt part of such an insert gets on top",
        "0.5.23 unified_radix_cache.py: checkpoint_into_tree")
    merge_writes: bool = _rule(
        False, "backups are queued and submitted as one operation after each result and at the event check",
        "0.5.9 cache_controller.py: write; 0.5.23 hybrid_cache_controller.py: start_writing")
    backup_chain: bool = _rule(
        False, "a backup first backs up the ancestors without a host copy, topmost first",
        "0.5.23 unified_radix_cache.py: _execute_and_commit_kv_backup")
    failed_attempts_count: bool = _rule(
        True, "each failed attempt to take room counts as a failure (two if eviction does not help), else the refusal",
        "0.5.9 hiradix_cache.py: write_backup, load_back; 0.5.23 unified_radix_cache.py: _execute_kv_backup, load_back")
    write_back_one_by_one: bool = _rule(
        False, "write_back copies, waits for and demotes each victim alone (else: all of one eviction together)",
        "0.5.9 hiradix_cache.py: evict; 0.5.23 unified_radix_cache.py: _evict_components")
    reclaim_host_duplicates: bool = _rule(
        False, "under write_back a full host first gives up copies of nodes that are on the device too",
        "0.5.23 unified_radix_cache.py: _reclaim_full_host_duplicates")
    defects: str = _rule(
        "repaired", "two write_back defects of 0.5.9 (stale host leaf, load-back source not pinned): repaired | keep",
        "0.5.9 hiradix_cache.py: evict, load_back", ("repaired", "keep"))

    # ---- scheduler block (src/kvsim/serving/sglang) ----
    poll_every_iteration: bool = _rule(
        False, "copies are acknowledged at the start of every iteration (else: only where a prefill pass is tried)",
        "0.5.9 scheduler.py: _get_new_batch_prefill_raw (check_hicache_events); 0.5.23: _process_hicache_events")
    stash_only_progress: bool = _rule(
        False, "a chunked request is stashed only if it computed something since (else: in every iteration)",
        "0.5.9 scheduler.py: get_next_batch_to_run; 0.5.23 scheduler.py: stash_chunked_request")
    filter_running_always: bool = _rule(
        False, "finished requests leave the running batch in every iteration (else: only on decode steps)",
        "0.5.9 schedule_batch.py: filter_batch via update_running_batch; 0.5.23 scheduler.py: get_next_batch_to_run")
    empty_running_is_never_full: bool = _rule(
        False, "an empty running batch always has its full flag cleared before a prefill pass",
        "0.5.23 scheduler.py: _get_new_batch_prefill_raw")
    chunked_needs_free_slot: bool = _rule(
        True, "without a free slot even a chunked request waits, and the batch counts as full (else: it goes on)",
        "0.5.9 scheduler.py: _get_new_batch_prefill_raw; 0.5.23: get_num_allocatable_reqs")
    slot_check_before_order: bool = _rule(
        False, "a full running batch ends the pass before the queue is ordered (else: at the first candidate)",
        "0.5.23 scheduler.py: _get_new_batch_prefill_raw")
    stop_before_candidate: bool = _rule(
        False, "a pass whose prefill budget is spent ends before the next candidate is matched",
        "0.5.23 scheduler.py: _get_new_batch_prefill_raw")
    refusal_fills: str = _rule(
        "with_hicache_if_company",
        "NO_TOKEN sets the full flag: with_hicache_if_company (with HiCache only if something runs or was admitted, "
        "without always) | if_company (only if something runs or was admitted) | always",
        "0.5.9 and 0.5.23 scheduler.py: _get_new_batch_prefill_raw",
        ("with_hicache_if_company", "if_company", "always"))
    reserve_extra_page: bool = _rule(
        False, "each admission is tested with and charged one extra page",
        "0.5.23 prefill_budget.py: PrefillBudget.reserve")
    ignore_eos_reserves_all: bool = _rule(
        False, "running requests that ignore EOS reserve their whole rest (ratio 1)",
        "0.5.23 schedule_policy.py: PrefillAdder")
    soft_max_prefill: bool = _rule(
        False, "with chunked prefill, max_prefill_tokens never refuses a candidate, it only ends the pass",
        "0.5.9 schedule_policy.py: add_one_req; 0.5.23: _select_prefill_admission")
    shape_before_load: bool = _rule(
        False, "the shape of an admission is chosen as if the load-back succeeded, and again if it does not",
        "0.5.23 schedule_policy.py: _select_prefill_admission")
    chunk_ends_on_page: bool = _rule(
        False, "a first chunk ends where prefix + chunk is a page multiple (else: its length is floored to pages)",
        "0.5.9 schedule_policy.py: add_one_req; 0.5.23: _select_prefill_admission")
    lpm_counts_host: bool = _rule(
        False, "lpm ranks by device + host hits, capped at all but the last token (else: by device hits)",
        "0.5.9 and 0.5.23 schedule_policy.py: calc_priority")
    refresh_waiting_passes: int = _rule(
        0,
        "with lru and a cache-agnostic policy, every so many passes the first 128 waiting ones are touched (0: never)",
        "0.5.23 schedule_policy.py: _touch_waiting_prefixes")
    foresee_length_finish: bool = _rule(
        False, "under overlap a request whose token in flight is its last by length leaves the decode batch at once",
        "0.5.23 scheduler.py: _reqs_finishing_inflight")
    skip_step_for_finishing: bool = _rule(
        False, "a decode step that does not fit is skipped once if somebody is about to finish (else: retraction)",
        "0.5.23 scheduler.py: update_running_batch")
    abort_last: bool = _rule(
        False, "if not even the last request fits it is aborted (else: the engine fails)",
        "0.5.9 and 0.5.23 schedule_batch.py: retract_decode")
    idle_needs_copies_done: bool = _rule(
        False, "the new-token ratio is reset only when no copy or load is in flight either",
        "0.5.9 scheduler.py: self_check_during_idle; 0.5.23 scheduler.py: is_fully_idle")
    mixed_needs_room: bool = _rule(
        False, "decoders ride along in a mixed batch only if the decode memory check passes; finishing ones never",
        "0.5.9 schedule_batch.py: mix_with_running; 0.5.23 scheduler.py: _get_new_batch_prefill_raw")
    mnt_leaves_page: bool = _rule(
        False, "max_new_tokens is clipped on arrival so that prompt, output and one page more fit the pool",
        "0.5.23 allocator/base.py: max_new_tokens_for_memory")
    requeue_preempted_always: bool = _rule(
        False, "preempted requests return to the queue even if nothing was admitted (else: they are lost)",
        "0.5.9 and 0.5.23 scheduler.py: _get_new_batch_prefill_raw")
    last_token_cached: bool = _rule(
        True, "a finished request caches every token whose KV was computed (else: never its last output token)",
        "mem_cache/common.py: release_kv_cache; public tables made with pipeline stages or overlap off act like no")


_CACHE_0523: dict[str, Any] = {
    "evict_full_amount": False,
    "load_back_evicts_full_amount": False,
    "host_evicts_full_amount": False,
    "plain_counts_hits": True,
    "chunked_inserts_count": True,
    "restored_nodes_count": True,
    "request_counts_once": True,
    "split_keeps_creation_time": True,
    "raise_priority_before_split": False,
    "split_at_prompt_end": True,
    "prompt_priority_bonus": 1,
    "merge_writes": True,
    "backup_chain": True,
    "failed_attempts_count": False,
    "write_back_one_by_one": True,
    "reclaim_host_duplicates": True,
}
_SCHEDULER_0523: dict[str, Any] = {
    "poll_every_iteration": True,
    "stash_only_progress": True,
    "filter_running_always": True,
    "empty_running_is_never_full": True,
    "chunked_needs_free_slot": False,
    "slot_check_before_order": True,
    "stop_before_candidate": True,
    "refusal_fills": "if_company",
    "reserve_extra_page": True,
    "ignore_eos_reserves_all": True,
    "soft_max_prefill": True,
    "shape_before_load": True,
    "chunk_ends_on_page": True,
    "lpm_counts_host": True,
    "refresh_waiting_passes": 32,
    "foresee_length_finish": True,
    "skip_step_for_finishing": True,
    "abort_last": True,
    "idle_needs_copies_done": True,
    "mixed_needs_room": True,
    "mnt_leaves_page": True,
    "requeue_preempted_always": True,
}

SGLANG_0_5_9 = SglangRules(name="sglang-0.5.9")
SGLANG_0_5_23 = SglangRules(name="sglang-0.5.23", **_CACHE_0523, **_SCHEDULER_0523)
RULES: dict[str, SglangRules] = {rules.name: rules for rules in (SGLANG_0_5_9, SGLANG_0_5_23)}


@dataclass(frozen=True, slots=True)
class SglangParams:
    """One server's settings after ``resolve``: numbers only, no derivation left to do. Tokens unless said otherwise.

    ``host_tokens`` 0: HiCache off. ``chunked_prefill_size`` None: chunking off. ``max_input_tokens``: prompts of at
    least this length are refused; None: the engine's length limits are off, only prompt + output > device_tokens is
    refused (the toy world of the field reports). ``clip_max_new_tokens``: SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION.
    ``max_total_len``: cap of prompt + new tokens (srt/managers/tp_worker.py max_req_len). ``stop_at_engine_failure``:
    stop where a rule set without ``abort_last`` fails (out of memory with one request left); else that request is
    aborted, with the failure as its reason, and the simulation goes on.
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
    stop_at_engine_failure: bool = False
    seed: int = 1
