"""The state of one vLLM engine, and what ends or preempts a request (v1/core/sched/scheduler.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.kv.blocks import BlockPool
from kvsim.kv.blocks_extent import ExtentPool
from kvsim.kv.blocks_keys import BlockKeys
from kvsim.rules.vllm import OFFLOADING, PRIORITY, SIMPLE
from kvsim.serving.port import FINISHED, QUEUED
from kvsim.serving.vllm.cohort import Cohort, LiveOutputs
from kvsim.serving.vllm.connector import Connector
from kvsim.serving.vllm.state import ENDED, PREEMPTED, RUNNING, PriorityQueue, Queue, VllmRequest, VllmStep

if TYPE_CHECKING:
    from kvsim.kv.blocks import Pool
    from kvsim.rules.vllm import VllmParams
    from kvsim.serving.port import Transfers
    from kvsim.serving.vllm.log import Log


class VllmCore:
    """Queues, running list and block pool. ``Admission``, ``Passes`` and ``VllmScheduler`` build on it, in this order.

    Requests that decode plainly live in the ``cohort``, summed up; ``special`` are the other running ones. A pass in
    which everything fits takes the cohort as a whole; any shortage dissolves it and goes request by request.
    """

    def __init__(self, params: VllmParams, transfers: Transfers, log: Log | None = None) -> None:
        self.params = params
        self.overlap = params.async_scheduling
        self.log = log
        self.pool: Pool = self.make_pool(params.num_gpu_blocks - 1, params.rules.unhashed_first)
        self.names = BlockKeys(params.block_size)
        make = PriorityQueue if params.policy == PRIORITY else Queue
        self.waiting: Queue = make()
        self.skipped: Queue = make()
        self.running: list[VllmRequest] = []
        self.now = 0  # when the present pass is planned
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
        self._withheld: dict[int, list[Any]] = {}
        self._orphans: dict[VllmRequest, None] = {}  # aborted while their load runs
        self._wm = int(params.watermark * params.num_gpu_blocks) if params.rules.watermark else 0
        self.connector = self._connect(transfers)
        self._lets_go = isinstance(self.pool, ExtentPool)  # the other pool wants to know who gets which block

    def make_pool(self, usable: int, unhashed_first: bool) -> Pool:
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
        """Give a request's blocks back; with a connector only when its last step was processed (defer_block_free)."""
        if self.overlap and self.connector.present and request.step > self.processed:
            self._withheld.setdefault(request.step, []).append(request.table)
            request.table = self.pool.table()
        else:
            self.pool.release(request.table)

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

    def dissolve(self) -> None:
        """Give every running request its own counters back; all of them are special now."""
        for request in self.cohort.dissolve(self.pool):
            request.step = self._cohort_step - (self.cohort.tick - min(self.cohort.tick, request.last_tick))
        self.special = list(self.running)

    def _forget_special(self, request: VllmRequest) -> None:
        if request in self.special:
            self.special.remove(request)
