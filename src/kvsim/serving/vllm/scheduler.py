"""The vLLM engine as the machine sees it: requests in and out, plan and settle, runs of decode steps in closed form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.content import join
from kvsim.rules.vllm import PRIORITY
from kvsim.serving.port import ABORTED, REFUSED, Settled
from kvsim.serving.vllm.occupancy import DeviceOccupancy, VllmOccupancy
from kvsim.serving.vllm.passes import Passes
from kvsim.serving.vllm.state import ENDED, LOADING, RUNNING, VllmRequest, VllmStep

if TYPE_CHECKING:
    from kvsim.rules.vllm import VllmParams
    from kvsim.serving.port import Request, Step, Transfers
    from kvsim.serving.vllm.log import Log
    from kvsim.workload.spec import RequestSpec


#: Preemptions of the whole batch without a token in between, after which it is a circle.
MOST_ROUNDS = 500


class VllmScheduler(Passes):
    """Implements ``serving.port.Scheduler``.

    An engine pass without tokens takes no time; asynchronously it is processed one pass later like any other
    (``_empty``). A request waits for its load outside the running list; the machine asks again when a copy completes.
    """

    def __init__(self, params: VllmParams, transfers: Transfers, log: Log | None = None) -> None:
        super().__init__(params, transfers, log)
        self.occupancy = VllmOccupancy(self) if self.connector.present else DeviceOccupancy(self)
        self._orders = 0
        self._empty: VllmStep | None = None
        self._resting = False
        self._giving_up: list[VllmRequest] = []
        self.ended: list[Request] = []
        self._stuck = 0  # empty passes in a row with nothing under way
        self._rounds = 0  # preemptions of the whole batch since the last token

    # ------------------------------------------------------------------ requests in and out
    def submit(self, spec: RequestSpec, now: int) -> VllmRequest:
        """Queue a request, or refuse it as the server's front end does (renderers/params.py)."""
        request = VllmRequest(spec, now, self._orders, self.pool.table())
        self._orders += 1
        reason = self._refusal(request) if self.params.server_limits else ""
        if reason:
            request.status, request.reason, request.phase = REFUSED, reason, ENDED
            return request
        if self.params.enable_prefix_caching or self.connector.present:
            self._name_blocks(request)
        self.waiting.add(request)
        return request

    def _refusal(self, request: VllmRequest) -> str:
        longest, size = self.params.max_model_len, self.params.block_size
        if request.prompt >= longest:
            return f"prompt of {request.prompt} tokens, max_model_len {longest}: it must be shorter"
        if request.total_limit > longest and request.spec.max_new_tokens is not None:
            return f"prompt of {request.prompt} + max_tokens {request.limit} exceeds max_model_len {longest}"
        most = min(request.prompt + request.outputs, longest) - 1
        if -(-most // size) > self.pool.usable:
            return f"grows to {most} tokens, the pool holds {self.pool.usable * size}: the engine would wait for ever"
        return ""

    def _name_blocks(self, request: VllmRequest) -> None:
        """Name all its blocks, and find out whose future blocks it shares: those requests are followed one by one."""
        spec, size = request.spec, self.params.block_size
        content = join(spec.prompt, ((spec.output_first, spec.output_tokens),)) if spec.output_tokens else spec.prompt
        request.keys = self.names.chain(content, spec.namespace)
        matched = self.names.matched
        if self.connector.present:
            self.connector.submitted(request, content)
        first = request.prompt // size
        request.entangled = matched > first
        for other in self.live_outputs.inside(request.keys):
            if not other.entangled:
                other.entangled = True
                self.entangling |= other.joined >= 0
        if own := request.chain(first, first + 1):
            self.live_outputs.add(request, own[0])

    def abort(self, request: Request, now: int) -> None:
        """The client gave up: a queued request ends at once, a running one just before the next result is processed."""
        assert isinstance(request, VllmRequest)
        if request.phase == RUNNING:
            self._giving_up.append(request)
        elif request.phase != ENDED:
            self.abort_now(request, now)

    def abort_now(self, request: VllmRequest, now: int) -> None:
        """End a request wherever it is (finish_requests); its blocks follow when nothing uses them any more."""
        if request.phase == RUNNING:
            self.dissolve()
        loading = request.phase == LOADING and not request.loaded
        self._end(request, "abort", now, keep=loading)
        request.status, request.reason = ABORTED, "client gave up"
        self.refused = False
        if loading:
            self._orphans[request] = None

    def reset_prefix_cache(self, reset_connector: bool = False) -> bool:
        """Forget all cached blocks if none is in use; tell whether it was done (v1/core/block_pool.py).

        ``reset_connector``: also what the CPU tier could evict now. No recording decides a reset while copies run.
        """
        done = self.pool.reset()
        if done and reset_connector:
            self.connector.reset()
        return done

    # ------------------------------------------------------------------ the machine's loop
    def plan(self, now: int) -> VllmStep | None:
        """Decide the next pass; None if it computes nothing."""
        if self._resting:
            self._resting = False
            self.connector.poll_idle(now)
        step = self.schedule(now)
        pending, self._empty = self._empty, None
        if step.kind == "idle":
            self.forwarded(step, now)
            if self.overlap:
                self._empty = step
            else:
                self.process(step, now)
        if pending is not None:
            self.process(pending, now)
        if step.preempted and not self.running:
            self._break_circle(now)
        if step.kind != "idle":
            self._stuck = 0
            return step
        self._break_stall(now)
        return None

    def _break_stall(self, now: int) -> None:
        """End the first request of a queue that can never move again: the engine would wait for ever."""
        if self.running or self.connector.busy() or not self.has_work():
            self._stuck = 0
            return
        self._stuck += 1
        if self._stuck > 2:
            self._stuck = 0
            self._give_up_first(now, "the engine stalls: nothing runs and the first request in the queue does not fit")

    def _break_circle(self, now: int) -> None:
        """End the first request when everybody is admitted and preempted again and again without a single token.

        Asynchronously with a connector one shortage can preempt the whole batch; with chunks below a block nothing is left of
        it, and the engine would go round for ever.
        """
        self._rounds += 1
        if self._rounds > MOST_ROUNDS:
            self._rounds = 0
            self._give_up_first(now, "the engine goes in a circle: the whole batch is preempted again and again")

    def _give_up_first(self, now: int, why: str) -> None:
        queue = self._next_queue()
        if queue is not None:
            request = queue.head()
            self.abort_now(request, now)
            request.reason = why
            self.ended.append(request)

    def settle(self, step: Step, now: int) -> Settled:
        """Process a step that ended at ``now``."""
        assert isinstance(step, VllmStep)
        if self.connector.present:
            self.forwarded(step, now)
        if not self._giving_up:
            return self._processed(step, now)
        gone = [request for request in self._giving_up if request.phase != ENDED]
        self._giving_up.clear()
        for request in gone:
            self.abort_now(request, now)
        settled = self._processed(step, now)
        settled.finished.extend(gone)
        return settled

    def _processed(self, step: VllmStep, now: int) -> Settled:
        settled = self.process(step, now)
        if settled.emitted:
            self._rounds = 0
        return settled

    def idle(self, now: int) -> None:
        """Remember that the loop rests: an engine would go on polling its copies until the next arrival."""
        self._resting = not self.has_work()

    # ------------------------------------------------------------------ closed form
    def quiet(self, previous: Step | None) -> int:
        """Return how many further passes only repeat the decode step just planned."""
        cohort = self.cohort
        if self._giving_up or self.entangling or not cohort.count or len(self.running) != cohort.count or self._cohort_step != self.number:
            return 0
        if self.overlap and not self._repeats(previous):
            return 0
        waiting = bool(self.waiting or self.skipped)
        if waiting and not self._shut():
            return 0
        if not self.connector.quiet(waiting):
            return 0
        return max(cohort.quiet(self.pool.free), 0)

    def _repeats(self, previous: Step | None) -> bool:
        """Tell whether the unsettled step before is a decode step of the same requests."""
        if not isinstance(previous, VllmStep) or previous.work or previous.cohort != self.cohort.count:
            return False
        return self.cohort.changed < self.cohort.tick

    def _shut(self) -> bool:
        """Tell whether nobody can be admitted before something ends: no slot, no token, or the first does not fit."""
        full = len(self.running) >= self.params.max_num_seqs or self.cohort.count >= self.params.max_num_batched_tokens
        return full or self.refused

    def arrival_matters(self) -> bool:
        """Tell whether an arrival now could change the next plan."""
        if len(self.running) >= self.params.max_num_seqs or self.cohort.count >= self.params.max_num_batched_tokens:
            return False
        return not self.refused or self.params.policy == PRIORITY

    def advance(self, iterations: int, step: Step) -> None:
        """Carry out quiet passes."""
        assert isinstance(step, VllmStep)
        cohort = self.cohort
        blocks = cohort.advance(iterations)
        if blocks:
            self.pool.pop(blocks)
        self.number += iterations
        self.processed += iterations
        self._cohort_step += iterations
        step.number += iterations
        step.sum_context, step.max_context = cohort.context, cohort.longest_context()
        cohort.finish_plan()

    # ------------------------------------------------------------------ questions
    def has_work(self) -> bool:
        """Tell whether a request waits or runs."""
        return bool(self.running or self.waiting or self.skipped)

    def busy(self) -> bool:
        """Tell whether the engine loop would call ``schedule`` (has_requests)."""
        return self.has_work() or bool(self._orphans) or (self.connector.keeps_engine_stepping and self.connector.busy())

    def counts(self) -> tuple[int, int]:
        """Return (running, waiting) requests; deferred and loading ones wait."""
        return len(self.running), len(self.waiting) + len(self.skipped)

    def pending(self) -> list[VllmRequest]:
        """Return all requests still queued or running, with their tokens counted."""
        if self.cohort.count:
            self.dissolve()
        return [*self.running, *self.skipped, *self.waiting]

    def holders(self) -> list[VllmRequest]:
        """Return everybody who may hold blocks: pending requests, and aborted ones whose load still runs."""
        return [*self.running, *self.skipped, *self.waiting, *self._orphans]

    def withheld(self) -> dict[int, list[Any]]:
        """Return tables that are released when a step's output is processed, by the step's number."""
        return self._withheld

    def refresh(self) -> None:
        """Bring the hash counters up to date with what the cohort completed."""
        self.cohort.refresh(self.pool)
