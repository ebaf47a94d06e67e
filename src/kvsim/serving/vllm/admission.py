"""The second half of ``schedule``: waiting requests are admitted in order while tokens, slots and blocks last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.vllm import PRIORITY
from kvsim.serving.port import RUNNING as ADMITTED
from kvsim.serving.vllm.core import VllmCore
from kvsim.serving.vllm.state import LOADING, PREEMPTED, RUNNING, WAITING

if TYPE_CHECKING:
    from kvsim.serving.vllm.state import Queue, VllmRequest, VllmStep


class Admission(VllmCore):
    """Head-of-line blocking: the first request that does not fit ends it; loading, deferred ones are stepped over."""

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
        if aside:
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
        """Admit the head of a queue; return its tokens, 0: step over it (load, ask later), None: admission ends."""
        size = self.params.block_size
        hit = external = 0
        computed = request.computed
        if not computed:
            if self.params.enable_prefix_caching:
                hit = self.pool.lookup(request.keys, (request.known - 1) // size)
            if self.connector.present:
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
        request.load_start = self.now
        if not request.resumed and request.admitted_ps is None:
            request.admitted_ps = self.now  # it leaves the queue now; what it waits for is its load
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
        if request.load_start >= 0 and request.first_token_ps is None:
            request.load_wait_ps += self.now - request.load_start
        request.load_start = -1
        request.phase, request.status = RUNNING, ADMITTED
        self._places += 1
        request.place = self._places
        request.prefilling = True
        request.readmitted = request.resumed
        self.running.append(request)
        self.special.append(request)
        if request.computed + count < request.known:
            self.inflight_prefills[request] = None
        step.admitted.append(request)
        self.connector.admitted(request)
        step.work.append((request, count, False))
