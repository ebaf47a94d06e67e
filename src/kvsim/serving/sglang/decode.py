"""Decode steps: the memory check, retraction, allocation; and what happens to results.

Engine: srt/managers/schedule_batch.py (check_decode_mem, retract_decode, prepare_for_decode), scheduler.py
(update_running_batch), scheduler_output_processor_mixin.py / batch_result_processor.py (process_batch_result).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.errors import InputError
from kvsim.kv.tiers import EngineFailure
from kvsim.serving.port import ABORTED, FINISHED, QUEUED, Request, Settled, Step
from kvsim.serving.sglang.cohort import Cohort
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

    ``running``: the running batch in the engine's order, ``ended_in_running`` who of it has finished; the others are the
    members of ``cohort``. ``full``: its batch_is_full flag; ``chunked``: the request in the middle of its prompt;
    ``last``: the batch planned last; ``inflight``: the batch whose result is not processed yet; ``ratio``: new-token
    ratio.
    """

    def __init__(self, params: SglangParams, cache: KvCache) -> None:
        self.params, self.cache, self.rules = params, cache, params.rules
        self.ordering = Ordering(params, cache)
        self.waiting: list[SglangRequest] = []
        self.running: list[SglangRequest] = []
        self.ended_in_running: list[SglangRequest] = []
        if not 0 < params.page_size <= params.device_tokens:
            raise InputError(f"a page of {params.page_size} tokens does not fit a pool of {params.device_tokens}")
        self.foresees = params.rules.foresee_length_finish and params.overlap
        self.cohort = Cohort(params.page_size, foresees=self.foresees)
        self.full = False
        self.chunked: SglangRequest | None = None
        self.last: SglangStep | None = None
        self.inflight: SglangStep | None = None
        self.now = 0
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
        if self.ended_in_running:
            self._drop_finished()
        finishing = self._let_finishing_go() if self.foresees else False
        if not self.running:
            self.full = False
            return None
        if self._decode_fits(now):
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
        self._allocate_decode(now)
        return self._decode_step()

    def _drop_finished(self) -> None:
        self.running = [r for r in self.running if not r.finished]
        self.ended_in_running = []

    def _decode_step(self) -> SglangStep:
        """Return the step of the running batch; its list is shared: ``running`` is replaced, never changed in place."""
        step, batch, cohort = SglangStep("decode"), self.running, self.cohort
        step.batch = batch
        step.requests = batch  # type: ignore[assignment]
        step.decoders = step.decode_batch = len(batch)
        step.sum_context, step.max_context = cohort.context, cohort.longest()
        return step

    def _let_finishing_go(self) -> bool:
        """Take out of the running batch whose token in flight is the last by length (an EOS is not foreseen)."""
        pending = self.inflight
        if pending is None:
            return False
        if pending.kind == "decode":
            gone = pending.leaving = self.cohort.at_limit_next()
        else:
            inside = [r for r in pending.batch if r.joined and r is not pending.chunked]
            gone = [r for r in inside if r.output_done + 1 >= r.mnt]
        if not gone:
            return False
        for request in gone:
            self.cohort.leave(request)
        self.running = [r for r in self.running if r.joined or r.finished]
        return True

    def _decode_fits(self, now: int) -> bool:
        cache = self.cache
        need = self.cohort.pages_now() * cache.page
        if need > cache.free:
            cache.make_room(need, now)
        return cache.free >= need

    def _allocate_decode(self, now: int) -> None:
        """Take one token for each (a page where the last one is full); evicts first if the free part looks short."""
        cache, cohort = self.cache, self.cohort
        need = cohort.pages_now() * cache.page
        cache.make_room(cohort.size * cache.page, now)
        if need and not cache.take(need):
            raise EngineOutOfMemory(f"{self.rules.name} fails here: decode out of memory ({need} slots wanted)")
        cohort.step()

    # ------------------------------------------------------------------ retraction
    def _retract(self, now: int) -> None:
        """Send requests back to the queue until the rest can decode: fewest outputs first, then the longest prompt."""
        params = self.params
        batch = self.running = sorted(self.running, key=lambda r: (r.output_done, -r.spec.prompt_tokens), reverse=True)
        self.cohort.rerank(batch)
        victims: list[SglangRequest] = []
        while len(batch) > 1 and (not victims or not self._decode_fits(now)):
            victim = batch.pop()
            self._release(victim)
            victims.append(victim)
            self.cache.make_room(params.retract_decode_steps * len(batch), now)
        if len(batch) == 1 and not self._decode_fits(now):
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
        self._leave(last)
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

    def _leave(self, request: SglangRequest) -> None:
        """Take a member out of the cohort; the result of a decode step in flight will not reach it."""
        self.cohort.leave(request)
        if self.inflight is not None and self.inflight.kind == "decode":
            self.inflight.gone += 1

    def _release(self, request: SglangRequest) -> None:
        """Free a running request's private KV; nothing of it is inserted."""
        self._leave(request)
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
        if step.kind == "decode":
            self._decoded(step, out, now)
        else:
            prompts = len(step.batch) - step.decoders
            for request in step.batch[:prompts] if step.decoders else step.batch:
                if not (request.finished or request.retracted or request is step.chunked):
                    self._first_token(request, out, now)
            if step.decoders:
                self._rode_along(step.batch[prompts:], out, now)
        self.cache.flush(now)
        return out

    def _decoded(self, step: SglangStep, out: Settled, now: int) -> None:
        """Give one token to everybody who is still there; who has its last one finishes, in the order of the batch."""
        for request in self.ended_in_running:
            request.limit_at += 1  # its reservation stays what it was until it is filtered out
        ended = self.cohort.result()
        out.emitted += len(step.batch) - step.gone
        if step.leaving:
            ended += [r for r in step.leaving if r.add_token() >= r.length or r.abort_wanted]
            ended.sort(key=lambda request: request.rank)
        for request in ended:
            self._finish(request, out, now)

    def _rode_along(self, batch: Sequence[SglangRequest], out: Settled, now: int) -> None:
        """Give the decoders of a mixed step their tokens."""
        alive = [request for request in batch if not (request.finished or request.retracted)]
        out.emitted += len(alive)
        ended = [request for request in alive if request.add_token() >= request.length or request.abort_wanted]
        for request in ended:
            self._finish(request, out, now)

    def _first_token(self, request: SglangRequest, out: Settled, now: int) -> None:
        """Give the token that comes out of a prefill; put the prompt into the tree."""
        done = request.add_token()
        out.emitted += 1
        if request.first_token_ps is None:
            request.first_token_ps = now
            out.first.append(request)
        else:
            out.again.append(request)
        if done >= request.length or request.abort_wanted:
            self._finish(request, out, now)
        else:
            self.cache.checkpoint(request.kv, request.extend_end, now, chunked=False)

    def _finish(self, request: SglangRequest, out: Settled, now: int) -> None:
        kv = request.kv
        if request.joined:
            self._leave(request)
            self.ended_in_running.append(request)
        upto = min(kv.committed, kv.total)
        if not self.rules.last_token_cached:
            upto = min(upto, kv.total - 1)
        request.finished = True
        request.offered = upto
        request.status = ABORTED if request.abort_wanted and request.output_done < request.length else FINISHED
        if request.status == ABORTED:
            request.reason = "the client gave up"
        request.end_ps = now
        self.cache.finish(kv, upto, now)
        out.finished.append(request)
