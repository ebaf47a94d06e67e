"""Mutations that no recording of a version decides, and why: equivalent, out of reach, or decided by an example."""

from __future__ import annotations

EQUIVALENT = "equivalent: "
ELSEWHERE = "decided by a worked example: "
NOT_RECORDED = "no recording reaches it: "

BOTH = {
    "write_through_hits=0": EQUIVALENT + "no node is passed with 0 hits",
    "clip_max_new_tokens=4095": NOT_RECORDED + "the clip is met often, its last token never decides",
    "clip_max_new_tokens=4097": NOT_RECORDED + "the clip is met often, its last token never decides",
    "IN_BATCH_CHECK=33": NOT_RECORDED + "no waiting request matches exactly 33 tokens on the device",
    "the verdict ignores the current budget": EQUIVALENT + "it is never below the total budget",
    "ignore_eos: pairs behind equals": NOT_RECORDED + "equal pairs have equal occupancy there",
    "retraction: only while it does not fit": EQUIVALENT + "it is called only when the step does not fit",
    "lpm: the last token counts": NOT_RECORDED + "no exactly repeated prompt is ranked there",
    "in-batch rule: copies are entered too": EQUIVALENT + "a copy matches what flagged it at least as far",
    "stash_only_progress": EQUIVALENT + "a second stash of the same tokens changes nothing",
    "empty_running_is_never_full": EQUIVALENT + "an emptied batch has its flag cleared when it shrinks",
    "chunked_needs_free_slot": EQUIVALENT + "without pipeline stages a chunked request always has a slot",
    "slot_check_before_order": NOT_RECORDED + "only recency of lpm's matches while the batch is full",
    "chunk_ends_on_page": EQUIVALENT + "the prefix of a new request is whole pages",
    "mnt_leaves_page": ELSEWHERE + "recordings state max_new after clipping; test_0_5_23_leaves_a_page_when_it_clips",
    "requeue_preempted_always": ELSEWHERE + "no priorities there; test_a_preempted_request_is_lost_in_0_5_9",
}

ONLY_0_5_9 = {
    "slru_protected_hits=3": EQUIVALENT + "0.5.9 offers no slru",
    "slru_protected_hits=1": EQUIVALENT + "0.5.9 offers no slru",
    "slru evicts as lru": EQUIVALENT + "0.5.9 offers no slru",
    "prompt_priority_bonus=1": EQUIVALENT + "needs split_at_prompt_end",
    "merge_writes=True": NOT_RECORDED + "copies queued within one op or result are submitted within it",
    "backup_chain=True": EQUIVALENT + "the host is larger than the device, so no backup fails for good",
    "write_back_one_by_one=True": NOT_RECORDED + "only which victim of one eviction leaves the host again",
    "refusal_fills=if_company": NOT_RECORDED + "without HiCache a refusal with nothing running is followed by a new batch",
    "skip_step_for_finishing=True": EQUIVALENT + "needs foresee_length_finish",
    "abort_last=True": ELSEWHERE + "the engine fails there; test_0_5_9_fails_when_not_even_the_last_request_fits",
    "mixed_needs_room=True": NOT_RECORDED + "mixed steps always had room and nobody finishing",
    "REFRESH_DEPTH=64": EQUIVALENT + "0.5.9 does not refresh",
    "refresh: head first": EQUIVALENT + "0.5.9 does not refresh",
    "refresh: never": EQUIVALENT + "0.5.9 does not refresh",
    "finishing: one token early": EQUIVALENT + "0.5.9 does not foresee finishes",
    "finishing: EOS is foreseen": EQUIVALENT + "0.5.9 does not foresee finishes",
    "result: no flush of copies": EQUIVALENT + "0.5.9 queues no copies",
    "mixed: decoders first": NOT_RECORDED + "the order decides only between full ties of a retraction",
    "lpm: shortest prefix first (with host)": EQUIVALENT + "0.5.9 ranks by device hits",
}

ONLY_0_5_23 = {
    "raise_priority_before_split=True": NOT_RECORDED + "recorded requests have priority 0",
    "prompt_priority_bonus=2": EQUIVALENT + "only the order of priorities matters, and all requests have 0",
    "refusal_fills=with_hicache_if_company": EQUIVALENT + "an empty running batch is never full",
    "refusal_fills=always": EQUIVALENT + "an empty running batch is never full",
    "lpm_fallback_length=127": ELSEWHERE + "no queue of exactly 128 there; the 0.5.9 probes lpm128 decide it",
    "lpm_fallback_length=129": ELSEWHERE + "no queue of exactly 129 there; the 0.5.9 probes lpm128 decide it",
    "IN_BATCH_CHECK=31": NOT_RECORDED + "the 0.5.9 probes inbatch decide it",
    "IN_BATCH_FLAG=31": NOT_RECORDED + "the 0.5.9 probes inbatch decide it",
    "IN_BATCH_FLAG=33": NOT_RECORDED + "the 0.5.9 probes inbatch decide it",
    "0.5.23: admission charges mnt minus outputs": NOT_RECORDED + "few re-admissions with company",
    "0.5.23: first chunk reserves output": EQUIVALENT + "a chunked request spends the chunk budget, which ends the pass",
    "the last token may be cached too": ELSEWHERE + "no exactly repeated prompt; test_e3 runs both rule sets",
    "running requests reserve everything": NOT_RECORDED + "running requests there ignore EOS, which reserves all",
    "running requests reserve unclipped": NOT_RECORDED + "running requests there ignore EOS or are short",
    "finished requests reserve nothing": EQUIVALENT + "finished requests are filtered in every iteration",
    "a continued chunk ignores the token budget": NOT_RECORDED + "the 0.5.9 probes chunkload decide it",
    "a continued chunk without room takes one token": NOT_RECORDED + "the 0.5.9 probe noradix_s32 decides it",
    "a final chunk charges mnt minus outputs": NOT_RECORDED + "no retracted request is chunked there with company",
    "ignore_eos: pairs in order without the off-by-one": NOT_RECORDED + "no recording without radix cache",
    "ignore_eos: no reserve of a token each": NOT_RECORDED + "no recording without radix cache",
    "ignore_eos: nothing is freed by finishers": NOT_RECORDED + "no recording without radix cache",
    "ignore_eos: chunk floored to pages": NOT_RECORDED + "no recording without radix cache",
    "ignore_eos: ratio for everybody": NOT_RECORDED + "no recording without radix cache",
    "retraction: last one back is first in the queue": NOT_RECORDED + "the 0.5.9 probes multiretract decide it",
    "result: a retracted request still gets its first token": NOT_RECORDED
    + "no prefill in flight is retracted there; the 0.5.9 probes multiretract decide it",
    "decode: an emptied batch stays full": EQUIVALENT + "an empty running batch is never full",
    "prefill end counts as chunked": EQUIVALENT + "chunked inserts count like others",
    "slots: the chunked request needs none": NOT_RECORDED + "the 0.5.9 probe slots_s3 decides it",
    "a refusal never fills": NOT_RECORDED + "the refused head is refused again until the batch shrinks",
    "polls never": EQUIVALENT + "0.5.23 polls at the start of every iteration",
    "a stash is no chunked insert": EQUIVALENT + "chunked inserts count like others",
    "lpm ranks all but the last token": NOT_RECORDED + "no exactly repeated prompt is ranked there",
    "lpm: shortest prefix first": EQUIVALENT + "0.5.23 ranks by device and host hits",
    "lof: smallest first": NOT_RECORDED + "no lof there; test_lof_takes_the_largest_limit_first",
    "dfs-weight: lighter first": NOT_RECORDED + "no dfs-weight there; the 0.5.9 probes dfs decide it",
    "dfs-weight: own requests first": NOT_RECORDED + "no dfs-weight there; the 0.5.9 probes dfs decide it",
}


def survivors(version: str) -> dict[str, str]:
    """Return mutation -> reason for one version; rules named without a value stand for their other value."""
    own = ONLY_0_5_9 if version == "sglang-0.5.9" else ONLY_0_5_23
    return BOTH | own


def reason(version: str, mutation: str) -> str | None:
    """Return why ``mutation`` survives, or None if it must be caught."""
    known = survivors(version)
    return known.get(mutation) or known.get(mutation.partition("=")[0])
