"""SGLang's scheduler: one iteration at a time, exact to the recordings of 0.5.9 and 0.5.23.

Engine: srt/managers/scheduler.py (get_next_batch_to_run, _get_new_batch_prefill_raw, update_running_batch). ``plan`` is
one iteration; decode steps, retraction and results (``settle``) are in decode.py, the running batch's counters in
cohort.py, closed-form runs in runs.py, budgets in admission.py, queue orders in order.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.kv.cache import KvCache
from kvsim.serving.port import ABORTED, QUEUED, REFUSED, RUNNING, Request, Step
from kvsim.serving.sglang.admission import CONTINUE, NO_TOKEN, OTHER, Admission, reservations
from kvsim.serving.sglang.decode import EngineOutOfMemory
from kvsim.serving.sglang.request import SglangRequest, SglangStep
from kvsim.serving.sglang.runs import Runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.rules.sglang import SglangParams
    from kvsim.serving.port import Transfers
    from kvsim.workload.spec import RequestSpec

QUEUE_FULL = "the request queue is full"


class SglangScheduler(Runs):
    """One SGLang server (one TP group); implements ``serving.port.Scheduler``."""

    def __init__(self, params: SglangParams, transfers: Transfers | None) -> None:
        super().__init__(params, KvCache.from_params(params, transfers))
        self.overlap = params.overlap
        self.occupancy = self.cache
        self.prefill_held = False  # set by a prefill delayer
        self._seq = 0
        self._reserved_at: tuple[int, float, int] | None = None
        self._reserved_sum = 0.0

    # ------------------------------------------------------------------ arrivals
    def submit(self, spec: RequestSpec, now: int) -> Request:
        """Queue a request, or refuse it with the engine's reason."""
        self._seq += 1
        refusal = self._refusal(spec)
        request = SglangRequest(spec, now, 0 if refusal else self._clipped(spec), self._seq)
        if not refusal and not self._make_queue_room(request, now):
            refusal = QUEUE_FULL
        if refusal:
            request.status, request.reason = REFUSED, refusal
            return request
        request.status = QUEUED
        self.waiting.append(request)
        return request

    def _refusal(self, spec: RequestSpec) -> str:
        params = self.params
        tokens = spec.prompt_tokens
        if params.max_input_tokens is not None and tokens >= params.max_input_tokens:
            return f"prompt too long: {_spaced(tokens)} >= {_spaced(params.max_input_tokens)}"
        pool = self.cache.device_tokens
        if params.max_input_tokens is None and tokens + spec.output_tokens > pool:
            return f"needs {_spaced(tokens + spec.output_tokens)}, pool {_spaced(pool)}"
        return ""

    def _make_queue_room(self, request: SglangRequest, now: int) -> bool:
        """Whether the queue takes one more; under priorities its worst request is ejected for a more urgent one."""
        limit = self.params.max_queued_requests
        if limit is None or len(self.waiting) < limit:
            return True
        if not self.params.priority_scheduling or not self.waiting:
            return False
        urgency = self.ordering.urgency
        worst = max(self.waiting, key=lambda queued: (urgency(queued), queued.seq))
        if urgency(request) >= urgency(worst):
            return False
        self.waiting.remove(worst)
        worst.status, worst.end_ps, worst.reason = ABORTED, now, QUEUE_FULL
        self.ended.append(worst)
        return True

    def _clipped(self, spec: RequestSpec) -> int:
        """Return max_new_tokens after the engine's clipping on arrival (init_req_max_new_tokens)."""
        params = self.params
        wanted = spec.output_tokens if spec.max_new_tokens is None else spec.max_new_tokens
        if params.max_total_len is not None:
            wanted = min(wanted, params.max_total_len - spec.prompt_tokens - 1)
            if params.rules.mnt_leaves_page:
                page = params.page_size
                wanted = min(wanted, params.device_tokens - self.cache.pages_up(spec.prompt_tokens) - page - 1)
        return max(wanted, 0)

    def abort(self, request: Request, now: int) -> None:
        """Drop a queued request; a running one ends at its next processed result."""
        assert isinstance(request, SglangRequest)
        if request.status == QUEUED and request in self.waiting:
            self.waiting.remove(request)
            request.status, request.end_ps, request.reason = ABORTED, now, "the client gave up"
            return
        request.abort_wanted = True
        if request.joined:
            self.cohort.end_next(request)

    # ------------------------------------------------------------------ one iteration
    def plan(self, now: int) -> Step | None:
        """Decide and allocate the next batch: prefill first, else decode, else None."""
        rules, cache = self.rules, self.cache
        self.now = now
        self.retracted_now = []
        if rules.poll_every_iteration:
            cache.poll(now)
        self._stash()
        self._merge_last()
        if rules.filter_running_always:
            self._filter_running()
        step = self._plan_prefill(now)
        if step is None and self.running:
            step = self._plan_decode(now)
        self.last = self.inflight = step
        if step is not None:
            step.retracted = self.retracted_now
            step.blocked_until = cache.stall_until if cache.stall_until > now else 0
        cache.stall_until = 0
        return step

    def _stash(self) -> None:
        """Put what the chunked request computed so far into the tree."""
        chunked = self.chunked
        if chunked is not None and (chunked.progressed or not self.rules.stash_only_progress):
            self.cache.checkpoint(chunked.kv, chunked.kv.committed, self.now, chunked=True)
            chunked.progressed = False

    def _merge_last(self) -> None:
        """Move the last prefill batch's unfinished requests into the running batch."""
        last = self.last
        if last is None or not last.is_extend:
            return
        keep = [r for r in last.batch if not (r.finished or r is self.chunked or r is last.chunked)]
        if len(keep) < len(last.batch):
            self.full = False
        if not keep:
            return
        self.cohort.join(keep, pending=int(self.inflight is last))
        if self.running:
            self.running = self.running + keep
        else:
            self.running, self.full = keep, False  # the batch object is replaced, and its flag with it

    def _filter_running(self) -> None:
        if self.ended_in_running:
            before = len(self.running)
            self._drop_finished()
            if len(self.running) < before:
                self.full = False

    # ------------------------------------------------------------------ prefill
    def _plan_prefill(self, now: int) -> SglangStep | None:
        rules, params = self.rules, self.params
        if params.priority_scheduling or (rules.empty_running_is_never_full and not self.running):
            self.full = False
        if (self.full or not self.waiting) and self.chunked is None:
            return None
        slots = params.max_running_requests - len(self.running)
        if slots <= 0 and not params.priority_scheduling and self._no_slot():
            return None
        if not rules.poll_every_iteration:
            self.cache.poll(now)
        self.ordering(self.waiting, self.running, now)
        mixed = len(self.running) if params.mixed_chunk else 0
        adder = Admission(params, self.cache, self.running, self._reserved(), self.ratio, mixed, now)
        adder.held = self.prefill_held
        if self.chunked is not None:
            self.chunked = adder.add_chunked(self.chunked)
        self._admit_queue(adder, slots)
        return self._build_prefill(adder, now)

    def _reserved(self) -> float:
        """Return what the running batch may still need, summed again only when something of it has changed."""
        key = (self.cohort.changes, self.ratio, len(self.running))
        if key != self._reserved_at:
            self._reserved_at, self._reserved_sum = key, reservations(self.params, self.running, self.cohort, self.ratio)
        return self._reserved_sum

    def _no_slot(self) -> bool:
        """Whether a full running batch ends the pass at once (and marks it full)."""
        if self.rules.chunked_needs_free_slot:
            ends = self.chunked is not None
        else:
            ends = self.rules.slot_check_before_order and self.chunked is None
        if ends:
            self.full = True
        return ends

    def _admit_queue(self, adder: Admission, slots: int) -> None:
        rules = self.rules
        stop_early = rules.stop_before_candidate
        for request in self.waiting:
            if stop_early and adder.state == OTHER:
                return
            if len(adder.admitted) >= slots:
                self.full = True
            if self.full and not self._preempt_for(request, adder):
                return
            verdict = adder.add(request)
            if verdict == CONTINUE:
                continue
            if not adder.admitted and self._is_hopeless():
                self._give_up_head(verdict)
                self._admit_queue(adder, slots)
            elif verdict == NO_TOKEN:
                self._mark_full(adder)
            return

    def _is_hopeless(self) -> bool:
        """Whether a refusal is for ever: nothing runs, nothing is locked or in flight (the engine itself would hang)."""
        cache = self.cache
        if self.running or self.prefill_held or self.params.stop_at_engine_failure:
            return False
        return cache.free + cache.evictable == cache.device_tokens and cache.idle_transfers

    def _give_up_head(self, verdict: str) -> None:
        """Abort the queue's head, which can never be admitted."""
        request, params = self.waiting.pop(0), self.params
        tokens = f"{_spaced(request.kv.total)} tokens"
        why = f"{tokens} and what it may generate do not fit the pool of {_spaced(self.cache.device_tokens)}"
        if verdict == OTHER:
            why = f"{tokens} in chunks of {params.chunked_prefill_size}, less than a page of {params.page_size}"
        request.status, request.end_ps, request.reason = ABORTED, self.now, f"can never be admitted: {why}"
        self.ended.append(request)

    def _mark_full(self, adder: Admission) -> None:
        company = bool(adder.admitted) or bool(self.running)
        policy = self.rules.refusal_fills
        if policy == "always" or (policy == "with_hicache_if_company" and not self.cache.hicache):
            self.full = True
        else:
            self.full = company

    def _preempt_for(self, request: SglangRequest, adder: Admission) -> bool:
        """Make room for an urgent request by releasing less urgent running ones (priority scheduling); False: none."""
        params = self.params
        if not params.priority_scheduling:
            return False
        urgency = self.ordering.urgency
        own = urgency(request)
        victims = sorted((r for r in self.running if not r.finished), key=lambda r: (-urgency(r), -r.seq))
        missing = request.matched + min(request.mnt, params.clip_max_new_tokens) - adder.rem_total
        chosen: list[SglangRequest] = []
        for victim in victims:
            if urgency(victim) - own <= params.priority_preemption_threshold:
                break
            chosen.append(victim)
            missing -= min(victim.mnt - victim.output_done, params.clip_max_new_tokens) * self.ratio
            if missing <= 0:
                break
        if not chosen or missing > 0:
            return False
        self.running = [request for request in self.running if request not in chosen]
        for victim in chosen:
            adder.off_total -= min(victim.mnt - victim.output_done, params.clip_max_new_tokens) * self.ratio
            self._release(victim)
            adder.preempted.append(victim)
        return True

    def _build_prefill(self, adder: Admission, now: int) -> SglangStep | None:
        cache, admitted = self.cache, adder.admitted
        if not admitted:
            if adder.preempted and self.rules.requeue_preempted_always:
                self._requeue(adder.preempted)
            return None
        self._leave_queue(admitted, adder)
        if adder.new_chunked is not None:
            self.chunked = adder.new_chunked
        step = SglangStep("prefill")
        step.chunked = self.chunked
        step.batch = admitted
        step.load_ticket, step.load_tokens = cache.start_loads(now)
        self._make_prefill_room(adder, now)
        for request, prefix, hits in zip(admitted, adder.prefixes, adder.hits, strict=True):
            self._extend(step, request, prefix, hits)
        if self.params.mixed_chunk and self.running:
            self._mix(step, now)
        step.requests = step.batch  # type: ignore[assignment]
        return step

    def _make_prefill_room(self, adder: Admission, now: int) -> None:
        """Evict for the batch; EngineOutOfMemory where the engine's allocation fails (a continued chunk is not
        tested)."""
        cache, admitted, prefixes = self.cache, adder.admitted, adder.prefixes
        page = cache.page
        extend = need = sum([r.extend_end for r in admitted]) - sum(prefixes)
        if page == 1:
            cache.make_room(extend, now)
        else:
            cache.make_room(extend + page * len(admitted), now)
            need = (sum([-(-r.extend_end // page) for r in admitted]) - sum([-(-prefix // page) for prefix in prefixes])) * page
        if need > cache.free:
            raise EngineOutOfMemory(f"{self.rules.name} fails here: prefill out of memory ({need} slots wanted, {cache.free} free)")

    def _leave_queue(self, admitted: list[SglangRequest], adder: Admission) -> None:
        """Take the admitted requests out of the queue: they are its head, since a pass stops at the first refusal."""
        continued = 1 if adder.hits[0] is None else 0
        del self.waiting[: len(admitted) - continued]
        self._requeue(adder.preempted)

    def _requeue(self, requests: Sequence[SglangRequest]) -> None:
        """Put requests at the queue's tail with a fresh entry time."""
        for request in requests:
            self._seq += 1
            request.seq, request.queued_at = self._seq, self.now
            request.status = QUEUED
            self.waiting.append(request)

    def _extend(self, step: SglangStep, request: SglangRequest, prefix: int, hits: tuple[int, int] | None) -> None:
        """Allocate a request's tokens of this batch and note what they cost."""
        new = request.extend_end - prefix
        self.cache.extend(request.kv, request.extend_end)
        request.progressed = True
        request.status = RUNNING
        request.retracted = False
        step.prefills.append((request, prefix, new))
        step.hits.append(hits)
        step.new_tokens += new
        step.pairs2 += new * (2 * prefix + new + 1)
        step.cached_tokens += prefix
        if hits is not None:
            step.admitted.append(request)
            if request.retractions:
                request.recompute_hit += prefix
            else:
                request.device_hit = hits[0]
                request.host_hit = prefix - hits[0]

    def _mix(self, step: SglangStep, now: int) -> None:
        """Let the running batch ride along with one token each (mixed chunk)."""
        before = len(self.running)
        self._drop_finished()
        if self.rules.mixed_needs_room:
            finishing = self._let_finishing_go() if self.foresees else False
            if len(self.running) < before or finishing:
                self.full = False
            if self.running and not self._decode_fits(now):
                return
        riders = self.running
        if not riders:
            return
        self._allocate_decode(now)
        step.kind = "mixed"
        step.decoders = step.decode_batch = len(riders)
        step.sum_context, step.max_context = self.cohort.context, self.cohort.longest()
        step.batch = step.batch + riders
        for request in riders:
            self.cohort.leave(request)
        if self.inflight is not None and self.inflight.kind == "decode":
            self.inflight.leaving = self.inflight.leaving + riders
        self.running = []

    # ------------------------------------------------------------------ bookkeeping
    def idle(self, now: int) -> None:
        """Reset the new-token ratio when there was nothing to do."""
        if self.rules.idle_needs_copies_done and not self._fully_idle():
            return
        self.ratio = self.ratio_init

    def _fully_idle(self) -> bool:
        return not self.running and self.chunked is None and not self.waiting and self.cache.idle_transfers

    def has_work(self) -> bool:
        """Tell whether anything is queued, running or in the middle of its prompt."""
        return bool(self.waiting or self.running or self.chunked is not None or (self.last is not None and self.last.is_extend))

    def could_prefill(self) -> bool:
        """Tell whether the next plan tries a prefill."""
        return self.chunked is not None or bool(self.waiting and not self.full)

    def arrival_matters(self) -> bool:
        """An arrival changes the next plan unless the running batch is marked full."""
        return not self.full or self.params.priority_scheduling

    def counts(self) -> tuple[int, int]:
        """Return (running, waiting); who has finished is neither, though the engine's batch keeps it until the next decode plan."""
        last = self.last
        fresh = sum([not r.finished for r in last.batch]) if last is not None and last.is_extend else 0
        return len(self.running) - len(self.ended_in_running) + fresh, len(self.waiting)

    def pending(self) -> Sequence[Request]:
        """Return everybody queued or running."""
        seen = {id(r): r for r in (*self.waiting, *self.running)}
        for step in (self.last, self.inflight):
            if step is not None:
                seen.update((id(r), r) for r in (*step.batch, *step.leaving))
        if self.chunked is not None:
            seen[id(self.chunked)] = self.chunked
        return [request for request in seen.values() if not request.finished]


def _spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")
