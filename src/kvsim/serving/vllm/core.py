"""The two halves of a vLLM V1 engine pass: decide (schedule) and process a result (update_from_output); v1/core/sched/scheduler.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.kv.blocks import BlockPool, Table
from kvsim.kv.blocks_extent import ExtentPool
from kvsim.kv.blocks_keys import BlockKeys
from kvsim.rules.vllm import OFFLOADING, PRIORITY, SIMPLE
from kvsim.serving.port import FINISHED, QUEUED, Settled
from kvsim.serving.port import RUNNING as ADMITTED
from kvsim.serving.vllm.cohort import Cohort, LiveOutputs
from kvsim.serving.vllm.connector import Connector
from kvsim.serving.vllm.state import ENDED, LOADING, PREEMPTED, RUNNING, WAITING, PriorityQueue, Queue, VllmRequest, VllmStep

if TYPE_CHECKING:
    from kvsim.rules.vllm import VllmParams
    from kvsim.serving.port import Transfers
    from kvsim.serving.vllm.log import Log


class VllmCore:
    """Running requests first, then waiting ones, from one token budget. ``VllmScheduler`` adds requests and the machine's seam.

    Requests that decode plainly live in the ``cohort``, summed up; ``special`` are the other running ones. A pass in which
    everything fits takes the cohort as a whole; any shortage dissolves it and goes request by request.
    """

    def __init__(self, params: VllmParams, transfers: Transfers, log: Log | None = None) -> None:
        self.params = params
        self.overlap = params.async_scheduling
        self.log = log
        self.pool = self.make_pool(params.num_gpu_blocks - 1, params.rules.unhashed_first)
        self.names = BlockKeys(params.block_size)
        make = PriorityQueue if params.policy == PRIORITY else Queue
        self.waiting: Queue = make()
        self.skipped: Queue = make()
        self.running: list[VllmRequest] = []
        self.number = 0  # passes of schedule so far
        self.processed = 0  # number of the last one whose output was processed
        self.inflight_prefills: dict[VllmRequest, None] = {}
        self.special: list[VllmRequest] = []
        self.cohort = Cohort(params.block_size, params.max_model_len, params.async_scheduling, params.enable_prefix_caching)
        self.live_outputs = LiveOutputs()
        self.refused = False  # the last pass ended with a waiting request that did not fit
        self.entangling = False  # a member became entangled since the last pass
        self._cohort_step = 0  # number of the pass of the last tick
        self._places = 0
        self._withheld: dict[int, list[Table]] = {}
        self._orphans: dict[VllmRequest, None] = {}  # aborted while their load runs
        self._wm = int(params.watermark * params.num_gpu_blocks) if params.rules.watermark else 0
        self.connector = self._connect(transfers)
        self._lets_go = isinstance(self.pool, ExtentPool)  # the other pool wants to know who gets which block

    def make_pool(self, usable: int, unhashed_first: bool) -> BlockPool | ExtentPool:
        """Return the block pool: by extents, unless the connector walks single blocks."""
        return (BlockPool if self.params.connector == SIMPLE else ExtentPool)(usable, unhashed_first)

    def _connect(self, transfers: Transfers) -> Connector:
        if self.params.connector == OFFLOADING:
            from kvsim.serving.vllm.offload import Offloading

            return Offloading(self, transfers)
        if self.params.connector == SIMPLE:
            from kvsim.serving.vllm.simple import SimpleOffload

            return SimpleOffload(self, transfers)
        return Connector()

    # ------------------------------------------------------------------ the end of a request
    def _end(self, request: VllmRequest, how: str, now: int, keep: bool = False) -> None:
        if request.phase == RUNNING:
            self.running.remove(request)
            self._forget_special(request)
        elif not self.waiting.remove(request):
            self.skipped.remove(request)
        self.inflight_prefills.pop(request, None)
        self.live_outputs.remove(request)
        request.status, request.end_ps = FINISHED, now
        if self.log is not None:
            self.log.finished.append((request, how))
        self.connector.ended(request)
        request.phase = ENDED
        if not keep:
            self._release(request)

    def _release(self, request: VllmRequest) -> None:
        """Give a request's blocks back; with a connector and its last step in flight only when that is processed (defer_block_free)."""
        if self.overlap and self.connector.present and request.step > self.processed:
            self._withheld.setdefault(request.step, []).append(request.table)
            request.table = self.pool.table()
        else:
            self.pool.release(request.table)

    # ------------------------------------------------------------------ one pass
    def schedule(self, now: int) -> VllmStep:
        """Decide one pass: what runs, with how many tokens, in which blocks. The step is empty if nothing can run."""
        self.number += 1
        step = VllmStep("idle", self.number)
        if self.entangling:
            self.entangling = False
            self.dissolve()
        left = self._run_all(step, self.params.max_num_batched_tokens)
        if left < 0:
            self.dissolve()
            left = self._schedule_running(step, self.params.max_num_batched_tokens)
        self.refused = False
        if not step.preempted:
            self._schedule_waiting(step, left)
        self._after(step)
        self.connector.build(step, now)
        if step.work or step.cohort:
            step.kind = "decode" if not step.prefills else "mixed" if step.decode_batch else "prefill"
        return step

    def _wanted(self, request: VllmRequest, budget: int) -> int:
        """Tokens a running request would compute with this budget; 0: it is passed over."""
        flying = request.in_flight
        if flying and request.computed + 2 - flying >= request.total_limit:
            return 0  # async: its last token is in flight
        count = request.prompt + request.output_done + flying - request.computed
        threshold = self.params.long_prefill_token_threshold
        if 0 < threshold < count:
            count = threshold
        return min(count, budget, self.params.max_model_len - 1 - request.computed)

    def _run_all(self, step: VllmStep, budget: int) -> int:
        """Schedule every running request if tokens and blocks are enough for all; return the budget left, or -1 (nothing done).

        Only the last running request may get less than it wants. Amounts do not depend on the order then.
        """
        cohort, size = self.cohort, self.params.block_size
        joining: list[VllmRequest] = []
        others: list[tuple[VllmRequest, int]] = []
        left = budget - cohort.count
        for request in self.special:
            if self._lets_go and cohort.can_join(request) and self.connector.indifferent(request):
                joining.append(request)
                left -= 1
            else:
                count = self._wanted(request, budget)
                if count > 0:
                    others.append((request, count))
                    left -= count
        if left < 0:
            if not others or others[-1][0] is not self.running[-1] or others[-1][1] + left < 1:
                return -1
            others[-1] = (others[-1][0], others[-1][1] + left)
            left = 0
        needs = [max(-(-(request.computed + count) // size) - request.table.held, 0) for request, count in others]
        need = cohort.need(joining) if joining or cohort.count else 0
        if need + sum(needs) > self.pool.free:
            return -1
        self._tick(step, joining, need)
        for (request, count), blocks in zip(others, needs, strict=True):
            self._allocate(request, blocks, count)
            step.work.append((request, count, False))
        return left

    def _tick(self, step: VllmStep, joining: list[VllmRequest], need: int) -> None:
        cohort = self.cohort
        for request in joining:
            cohort.join(request)
        if joining:
            self.special = [request for request in self.special if request.joined < 0]
        if not cohort.count:
            return
        cohort.start_tick()
        if need:
            self.pool.pop(need)
        step.cohort = cohort.count
        self._cohort_step = step.number

    def dissolve(self) -> None:
        """Give every running request its own counters back; all of them are special now."""
        for request in self.cohort.dissolve(self.pool):
            request.step = self._cohort_step - (self.cohort.tick - min(self.cohort.tick, request.last_tick))
        self.special = list(self.running)

    def _forget_special(self, request: VllmRequest) -> None:
        if request in self.special:
            self.special.remove(request)

    def _schedule_running(self, step: VllmStep, budget: int) -> int:
        index, size, running = 0, self.params.block_size, self.running
        while index < len(running) and budget > 0:
            request = running[index]
            count = self._wanted(request, budget)
            if count <= 0:
                index += 1
                continue
            need = -(-(request.computed + count) // size) - request.table.held
            while need > self.pool.free:
                victim = self._victim()
                back = self._unschedule(step, victim)
                if back:
                    budget += back
                    index -= 1
                self._preempt(step, victim)
                if victim is request:
                    return budget
            self._allocate(request, need, count)
            step.work.append((request, count, False))
            budget -= count
            index += 1
        return budget

    def _victim(self) -> VllmRequest:
        if self.params.policy != PRIORITY:
            return self.running[-1]
        return max(self.running, key=VllmRequest.rank)

    def _unschedule(self, step: VllmStep, victim: VllmRequest) -> int:
        for at, (request, count, _) in enumerate(step.work):
            if request is victim:
                del step.work[at]
                return count
        return 0

    def _preempt(self, step: VllmStep, victim: VllmRequest) -> None:
        self.running.remove(victim)
        self._forget_special(victim)
        self._release(victim)
        self.inflight_prefills.pop(victim, None)
        self.connector.preempted(victim)
        victim.retractions += 1
        victim.retracted_tokens += victim.computed
        victim.computed = 0
        victim.phase, victim.status = PREEMPTED, QUEUED
        victim.resumed = True
        self.waiting.put_first(victim)
        step.preempted.append(victim)
        step.retracted.append(victim)

    def _allocate(self, request: VllmRequest, need: int, count: int) -> None:
        table = request.table
        if need > 0:
            self.pool.grow(table, need)
        if self.params.enable_prefix_caching:
            upto = min(request.computed + count, request.prompt + request.output_done) // self.params.block_size
            if upto > table.cached:
                self.pool.cache(table, request.keys, upto)

    # ------------------------------------------------------------------ admission
    def _schedule_waiting(self, step: VllmStep, budget: int) -> None:
        aside: list[VllmRequest] = []
        while budget > 0 and len(self.running) < self.params.max_num_seqs:
            queue = self._next_queue()
            if queue is None:
                break
            request = queue.head()
            if request.phase == LOADING and not self._promote(request):
                aside.append(queue.pop())
                continue
            took = self._try_admit(step, request, budget)
            if took is None:
                self.refused = True
                break
            queue.pop()
            if took:
                budget -= took
            else:
                aside.append(request)
        self.skipped.put_all_first(aside)

    def _next_queue(self) -> Queue | None:
        waiting, skipped = self.waiting, self.skipped
        if not skipped:
            return waiting if waiting else None
        if self.params.policy != PRIORITY or not waiting:
            return skipped
        return skipped if skipped.head().rank() < waiting.head().rank() else waiting

    def _promote(self, request: VllmRequest) -> bool:
        """Make a request whose load completed schedulable; False: its load still runs."""
        if not request.loaded:
            return False
        request.loaded = False
        if self.params.enable_prefix_caching:
            self.pool.cache(request.table, request.keys, request.computed // self.params.block_size)
        if request.computed == request.known:
            request.computed -= 1
        request.phase = PREEMPTED if request.resumed else WAITING
        return True

    def _try_admit(self, step: VllmStep, request: VllmRequest, budget: int) -> int | None:
        """Admit the head of a queue: tokens scheduled; 0: step over it (it loads, or asks later); None: admission ends."""
        size = self.params.block_size
        hit = external = 0
        computed = request.computed
        if not computed:
            if self.params.enable_prefix_caching:
                hit = self.pool.lookup(request.keys, (request.known - 1) // size)
            found = self.connector.lookup(request, hit * size)
            if found is None:
                if self.log is not None:
                    self.log.deferred.append(request)
                return 0
            external = found
            computed = hit * size + external
        count = 0 if external else self._admit_count(request, computed, budget)
        if count < 0 or not self._fits(request, computed + count, hit, external > 0):
            return None
        if hit:
            self.pool.take(request.table, request.keys, hit)
        request.computed = computed
        self._allocate_admitted(request, count, external)
        if external:
            self._start_load(request, hit * size, external)
            return 0
        self._admit(step, request, count)
        return count

    def _admit_count(self, request: VllmRequest, computed: int, budget: int) -> int:
        count = request.known - computed
        threshold = self.params.long_prefill_token_threshold
        if 0 < threshold < count:
            count = threshold
        if count > budget and not self.params.enable_chunked_prefill:
            return -1
        return min(count, budget)

    def _fits(self, request: VllmRequest, upto: int, hit: int, load: bool) -> bool:
        """The admission test (v1/core/kv_cache_manager.py allocate_slots)."""
        params, pool = self.params, self.pool
        size, longest, table = params.block_size, params.max_model_len, request.table
        extra = self._wm if self.running else 0
        if hit:
            extra += pool.idle_hits(request.keys, hit)
        have = hit + table.held
        if params.scheduler_reserve_full_isl and max(-(-min(request.known, longest) // size) - have, 0) + extra > pool.free:
            return False
        reserved = self._reserved() if load else 0
        return max(-(-min(upto, longest) // size) - have, 0) + extra <= pool.free - reserved

    def _reserved(self) -> int:
        """Blocks that unfinished prefills and loads still need; a load must leave them."""
        size, longest = self.params.block_size, self.params.max_model_len
        return sum(max(-(-min(r.known, longest) // size) - r.table.held, 0) for r in self.inflight_prefills)

    def _allocate_admitted(self, request: VllmRequest, count: int, external: int) -> None:
        need = -(-(request.computed + count) // self.params.block_size) - request.table.held
        if external:
            self.pool.grow(request.table, need)
        else:
            self._allocate(request, need, count)

    def _start_load(self, request: VllmRequest, local: int, tokens: int) -> None:
        request.phase = LOADING
        request.loaded = False
        self.inflight_prefills[request] = None
        if not request.resumed and request.admitted_ps is None:
            request.device_hit = local
            request.host_hit = min(tokens, request.known - 1 - local)
        self.connector.load(request, local, tokens)
        self.connector.admitted(request)
        if self.log is not None:
            self.log.loads.append((request, local, tokens))

    def _admit(self, step: VllmStep, request: VllmRequest, count: int) -> None:
        if self.log is not None:
            self.log.admitted.append((request, request.resumed, request.computed, count))
        if request.resumed:
            request.recompute_hit += request.computed
        elif not request.host_hit:
            request.device_hit = request.computed
        request.phase, request.status = RUNNING, ADMITTED
        self._places += 1
        request.place = self._places
        request.prefilling = True
        self.running.append(request)
        self.special.append(request)
        if request.computed + count < request.known:
            self.inflight_prefills[request] = None
        step.admitted.append(request)
        self.connector.admitted(request)
        step.work.append((request, count, False))

    # ------------------------------------------------------------------ after the decisions, after the forward
    def _after(self, step: VllmStep) -> None:
        """Count the scheduled tokens as computed and see which requests sample (_update_after_schedule)."""
        cohort = self.cohort
        if step.cohort:
            step.decode_batch, step.sum_context, step.max_context = step.cohort, cohort.context, cohort.longest_context()
            cohort.finish_plan()
        for at, (request, count, _) in enumerate(step.work):
            start = request.computed
            request.computed = end = start + count
            request.step = step.number
            goal = request.known + request.in_flight
            sampled = end == goal
            if sampled:
                self.inflight_prefills.pop(request, None)
                if self.overlap:
                    request.in_flight += 1
            else:
                self.inflight_prefills[request] = None
            step.work[at] = (request, count, sampled)
            if count == 1 and sampled and not request.prefilling:
                step.decode_batch += 1
                step.sum_context += end
                step.max_context = max(step.max_context, end)
            else:
                step.prefills.append((request, start, count))
                step.new_tokens += count
                step.cached_tokens += start
                step.pairs2 += count * (2 * start + count + 1)
            request.prefilling = not sampled

    def forwarded(self, step: VllmStep, now: int) -> None:
        """Let the connector's worker report what completed by the end of the step's forward."""
        if not step.forwarded:
            step.forwarded = True
            self.connector.forwarded(step, now)

    def process(self, step: VllmStep, now: int) -> Settled:
        """Process one step's output: withheld releases, tokens and stops in scheduling order, then transfers (update_from_output)."""
        self.processed += 1
        for table in self._withheld.pop(self.processed, ()):
            self.pool.release(table)
        settled = Settled()
        if step.cohort:
            self._settle_tick(step, now, settled)
        else:
            self._settle_work(step.work, step, now, settled)
        for request in self.connector.process(step, now):
            if request in self._orphans:
                del self._orphans[request]
                self.pool.release(request.table)
            else:
                request.loaded = True
        return settled

    def _settle_work(self, work: list[tuple[VllmRequest, int, bool]], step: VllmStep, now: int, settled: Settled) -> None:
        fresh = {id(request) for request, _, _ in step.prefills}
        for request, _, sampled in work:
            if sampled and request.phase != ENDED:
                self._receive(request, now, settled, id(request) in fresh)

    def _settle_tick(self, step: VllmStep, now: int, settled: Settled) -> None:
        """Settle a step with members of the cohort: only those that end are looked at, in scheduling order with the others."""
        tokens, ended, one_by_one = self.cohort.settle(step.cohort, self.pool)
        settled.emitted += tokens
        if not ended and not one_by_one:
            self._settle_work(step.work, step, now, settled)
            return
        ended_now = {id(request): None for request in ended}
        for request in ended:
            request.step = self._cohort_step if request.last_tick > self.cohort.settled else self.processed
        everybody = [(request, 1, True) for request in (*ended, *one_by_one)]
        work = sorted([*everybody, *step.work], key=lambda item: item[0].place) if step.work or len(everybody) > 1 else everybody
        fresh = {id(request) for request, _, _ in step.prefills}
        for request, _, sampled in work:
            if id(request) in ended_now:
                settled.finished.append(request)
                self._end(request, self._stops(request), now)
            elif sampled and request.phase != ENDED:
                self._receive(request, now, settled, id(request) in fresh)

    def _receive(self, request: VllmRequest, now: int, settled: Settled, fresh: bool) -> None:
        """Give a request its token and see whether it stops (check_stop)."""
        request.output_done += 1
        settled.emitted += 1
        if request.first_token_ps is None:
            request.first_token_ps = now
            settled.first.append(request)
        elif fresh:
            settled.again.append(request)
        if self.overlap:
            request.in_flight -= 1
        how = self._stops(request)
        if self.overlap and request.phase == RUNNING and self.params.enable_prefix_caching:
            upto = min(request.computed - request.in_flight, request.known) // self.params.block_size
            if upto > request.table.cached:
                self.pool.cache(request.table, request.keys, upto)
        if how:
            settled.finished.append(request)
            self._end(request, how, now)

    def _stops(self, request: VllmRequest) -> str:
        done = request.output_done
        if done >= request.spec.output_tokens < request.limit:
            return "stop"
        return "len" if done >= request.limit or request.known >= self.params.max_model_len else ""
