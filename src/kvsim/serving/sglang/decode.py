"""Decode steps: the memory check, retraction, allocation; and what happens to results.

Engine: srt/managers/schedule_batch.py (check_decode_mem, retract_decode, prepare_for_decode), scheduler.py
(update_running_batch),
scheduler_output_processor_mixin.py / batch_result_processor.py (process_batch_result).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.kv.tiers import EngineFailure
from kvsim.serving.port import ABORTED, FINISHED, QUEUED, Request, Settled, Step
from kvsim.serving.sglang.order import Ordering
from kvsim.serving.sglang.request import SglangRequest, SglangStep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.kv.cache import KvCache
    from kvsim.rules.sglang import SglangParams


class EngineOutOfMemory(EngineFailure):
    """The engine stops here: a prefill or a decode step finds no room although its budgets had promised it."""


class Decoding:
    """The state every part of the scheduler shares, and the decode half of it.

    ``running``: the running batch in the engine's order; ``full``: its batch_is_full flag; ``chunked``: the request
    in the middle of its
    prompt; ``last``: the batch planned last; ``inflight``: the batch whose result is not processed yet; ``ratio``:
    new-token ratio.
    """

    def __init__(self, params: SglangParams, cache: KvCache) -> None:
        self.params, self.cache, self.rules = params, cache, params.rules
        self.ordering = Ordering(params, cache)
        self.waiting: list[SglangRequest] = []
        self.running: list[SglangRequest] = []
        self.ended_in_running = False  # somebody in it may have finished since it was filtered
        self.full = False
        self.chunked: SglangRequest | None = None
        self.last: SglangStep | None = None
        self.inflight: SglangStep | None = None
        self.now = 0
        self.aborting = False  # somebody running may be about to be aborted
        self.retracted_now: list[Request] = []
        self.ended: list[Request] = []
        init = min(params.init_new_token_ratio * params.schedule_conservativeness, 1.0)
        self.ratio_init = init
        self.ratio_min = min(init * params.min_new_token_ratio_factor, 1.0)
        self.ratio_decay = (self.ratio_init - self.ratio_min) / params.new_token_ratio_decay_steps
        self.ratio = init

    def _requeue(self, requests: Sequence[SglangRequest]) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------------ planning a decode step
    def _plan_decode(self, now: int) -> SglangStep | None:
        before = len(self.running)
        finishing: list[SglangRequest] = []
        if self.ended_in_running:
            self._drop_finished()
        if self.rules.foresee_length_finish and self.params.overlap:
            finishing = self._finishing(self.running)
            if finishing:
                self.running = [r for r in self.running if r not in finishing]
        if not self.running:
            self.full = False
            return None
        if self._decode_fits(self.running, now):
            ratio = self.ratio - self.ratio_decay
            self.ratio = ratio if ratio > self.ratio_min else self.ratio_min
        elif finishing and self.rules.skip_step_for_finishing:
            self.full = False
            return None
        else:
            self._retract(now)
        if len(self.running) < before:
            self.full = False
        if not self.running:
            return None
        self._allocate_decode(self.running, now)
        return self._decode_step()

    def _drop_finished(self) -> None:
        self.running = [r for r in self.running if not r.finished]
        self.ended_in_running = False

    def _decode_step(self) -> SglangStep:
        """Return the step of the running batch; its list is shared: ``running`` is replaced, never changed in place."""
        step, last, batch = SglangStep("decode"), self.last, self.running
        step.batch = batch
        step.requests = batch  # type: ignore[assignment]
        step.decoders = step.decode_batch = size = len(batch)
        if last is not None and last.batch is batch and last.kind == "decode":
            step.sum_context, step.max_context = last.sum_context + size, last.max_context + 1
        else:
            step.sum_context, step.max_context = self._contexts(batch)
        return step

    def _finishing(self, candidates: Sequence[SglangRequest]) -> list[SglangRequest]:
        """Return whose token in flight is the last by length (an EOS is not foreseen)."""
        pending = self.inflight
        if pending is None:
            return []
        last = [r for r in candidates if r.output_done + 1 >= r.mnt]
        return [r for r in last if r in pending.batch and r is not pending.chunked] if last else last

    @staticmethod
    def _contexts(batch: Sequence[SglangRequest]) -> tuple[int, int]:
        lengths = [r.kv.committed for r in batch]
        return sum(lengths), max(lengths)

    def _decode_need(self, batch: Sequence[SglangRequest]) -> int:
        page = self.cache.page
        if page == 1:
            return len(batch)
        return page * sum([r.kv.committed % page == 0 for r in batch])

    def _decode_fits(self, batch: Sequence[SglangRequest], now: int) -> bool:
        need = self._decode_need(batch)
        self.cache.make_room(need, now)
        return self.cache.free >= need

    def _allocate_decode(self, batch: Sequence[SglangRequest], now: int) -> None:
        """Take one token for each (a page where the last one is full); evicts first if the free part looks short."""
        cache = self.cache
        need = self._decode_need(batch)
        cache.make_room(len(batch) * cache.page, now)
        if need and not cache.take(need):
            raise EngineOutOfMemory(f"{self.rules.name} fails here: decode out of memory ({need} slots wanted)")
        for request in batch:
            request.kv.committed += 1

    # ------------------------------------------------------------------ retraction
    def _retract(self, now: int) -> None:
        """Send requests back to the queue until the rest can decode: fewest output tokens first, then the longest
        prompt."""
        params = self.params
        batch = self.running = sorted(self.running, key=lambda r: (r.output_done, -r.spec.prompt_tokens), reverse=True)
        victims: list[SglangRequest] = []
        while len(batch) > 1 and (not victims or not self._decode_fits(batch, now)):
            victim = batch.pop()
            self._release(victim)
            victims.append(victim)
            self.cache.make_room(params.retract_decode_steps * len(batch), now)
        if len(batch) == 1 and not self._decode_fits(batch, now):
            self._last_does_not_fit(batch, now)
        done = sum(r.output_done for r in batch)
        limit = sum(r.mnt for r in batch)
        self.ratio = min(1.0, (done + params.retract_decode_steps * len(batch)) / (limit + 1)) if batch else 0.0
        self.retracted_now.extend(victims)
        self._requeue(victims)

    def _last_does_not_fit(self, batch: list[SglangRequest], now: int) -> None:
        """Abort the last request (0.5.23), or say that 0.5.9 fails here: it raises, and the server dies."""
        reason = "not even this one request fits the pool"
        if not self.rules.abort_last:
            reason = f"{self.rules.name} fails here: out of memory with one request left{self._locked_by_copies()}"
            if self.params.stop_at_engine_failure:
                raise EngineOutOfMemory(reason)
        last = batch.pop()
        self.cache.retract(last.kv, now)
        self.cache.make_room(0, now)
        last.retracted = last.finished = True
        last.status, last.end_ps, last.reason = ABORTED, now, reason
        self.ended.append(last)

    def _locked_by_copies(self) -> str:
        cache = self.cache
        if cache.idle_transfers:
            return ""
        return f" ({cache.protected:,} tokens locked, {cache.in_flight_writes} backups waiting for an event check)"

    def _release(self, request: SglangRequest) -> None:
        """Free a running request's private KV; nothing of it is inserted."""
        request.retractions += 1
        request.retracted_tokens += request.kv.committed - request.kv.owned
        request.retracted = True
        request.status = QUEUED
        self.cache.retract(request.kv, self.now)

    # ------------------------------------------------------------------ results
    def settle(self, step: Step, now: int) -> Settled:
        """Process a step's result: tokens reach their requests, finished ones leave their KV to the tree."""
        assert isinstance(step, SglangStep)
        self.now = now
        if self.inflight is step or not self.params.overlap:
            self.inflight = None
        out = Settled()
        prompts = len(step.batch) - step.decoders
        for request in step.batch[:prompts] if step.decoders else step.batch:
            if not (request.finished or request.retracted or request is step.chunked):
                self._first_token(request, out, now)
        if step.decoders:
            self._decoded(step.batch[prompts:] if prompts else step.batch, out, now)
        self.cache.flush(now)
        return out

    def _decoded(self, batch: Sequence[SglangRequest], out: Settled, now: int) -> None:
        """Give one token to everybody who is still there."""
        emitted, ended = len(batch), []
        for request in batch:
            if request.finished or request.retracted:
                emitted -= 1
                continue
            request.output_done = done = request.output_done + 1
            request.kv.outputs += 1
            if done >= request.length or request.abort_wanted:
                ended.append(request)
        out.emitted += emitted
        for request in ended:
            self._finish(request, out, now)

    def _first_token(self, request: SglangRequest, out: Settled, now: int) -> None:
        """Give the token that comes out of a prefill; put the prompt into the tree."""
        request.output_done += 1
        request.kv.outputs += 1
        out.emitted += 1
        if request.first_token_ps is None:
            request.first_token_ps = now
            out.first.append(request)
        else:
            out.again.append(request)
        if request.output_done >= request.length or request.abort_wanted:
            self._finish(request, out, now)
        else:
            self.cache.checkpoint(request.kv, request.extend_end, now, chunked=False)

    def _finish(self, request: SglangRequest, out: Settled, now: int) -> None:
        kv = request.kv
        upto = min(kv.committed, kv.total)
        if not self.rules.last_token_cached:
            upto = min(upto, kv.total - 1)
        request.finished = self.ended_in_running = True
        request.offered = upto
        request.status = ABORTED if request.abort_wanted and request.output_done < request.length else FINISHED
        if request.status == ABORTED:
            request.reason = "the client gave up"
        request.end_ps = now
        self.cache.finish(kv, upto, now)
        out.finished.append(request)
