"""vLLM's OffloadingConnector, both its sides (kv_transfer/kv_connector/v1/offloading/scheduler.py, worker.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.content import cut, length
from kvsim.kv.blocks import expand
from kvsim.kv.blocks_keys import BlockKeys
from kvsim.kv.vllm_offload import ArcTier, CpuTier, LookupCounts, stretches
from kvsim.kv.vllm_offload_extent import LruTier
from kvsim.serving.vllm.connector import Connector
from kvsim.serving.vllm.state import ENDED, VllmStep

if TYPE_CHECKING:
    from kvsim.content import Runs
    from kvsim.serving.port import Transfers
    from kvsim.serving.vllm.core import VllmCore
    from kvsim.serving.vllm.state import VllmRequest


class Job:
    """One copy operation of one request. ``pending``: not processed yet; ``ticket``, ``since``: of its submission."""

    __slots__ = ("is_load", "keys", "owner", "pending", "since", "ticket", "units")

    def __init__(self, owner: VllmRequest, keys: Runs, is_load: bool) -> None:
        self.owner, self.keys, self.is_load = owner, keys, is_load
        self.units = length(keys)
        self.pending = True
        self.since = 0
        self.ticket: object = None


class Offloading(Connector):
    """Stores whole offloaded blocks of scheduled requests, loads what the GPU cache misses, asynchronously both."""

    present = True
    keeps_engine_stepping = True

    def __init__(self, scheduler: VllmCore, transfers: Transfers) -> None:
        params = scheduler.params
        self.params, self.pool, self.log = params, scheduler.pool, scheduler.log
        self.transfers = transfers
        self.unit = params.offload_factor * params.block_size  # tokens of one offloaded block
        self.names = scheduler.names if params.offload_factor == 1 else BlockKeys(self.unit)
        self.tier: CpuTier | LruTier = (ArcTier if params.cpu_policy == "arc" else LruTier)(params.cpu_blocks)
        self.counts = LookupCounts(params.store_threshold)
        self._jobs: dict[VllmRequest, list[Job]] = {}
        self._deferred: list[Job] = []  # stores decided in the last pass, submitted at the start of the next one
        self._loads: list[Job] = []  # loads of this pass
        self._submitted: list[Job] = []
        self._in_flight = [0, 0]  # stores, loads

    def submitted(self, request: VllmRequest, content: Runs) -> None:
        """Name the request's offloaded blocks: an offloaded block's key is that of its last GPU block."""
        same = self.params.offload_factor == 1
        request.unit_keys = request.keys if same else self.names.chain(content, request.spec.namespace)

    # ------------------------------------------------------------------ lookup and load
    def lookup(self, request: VllmRequest, local: int) -> int | None:
        """Return loadable tokens beyond the local hit, or None (get_num_new_matched_tokens)."""
        if self._jobs.get(request):
            return None
        unit = self.unit
        whole = request.known // unit
        first = local // unit
        found, ready, loading = 0, True, False
        if whole * unit - local >= unit:
            rest = cut(request.unit_keys, first, whole)
            found, ready, loading = self.tier.walk(rest)
            self.counts.note(cut(rest, 0, found + 1))
        self.tier.touch(cut(request.unit_keys, 0, whole))
        if not ready:
            return None
        external = (first + found) * unit - local
        if external < unit:
            return 0
        if self.params.enable_prefix_caching and loading:
            return None
        return external

    def load(self, request: VllmRequest, local: int, tokens: int) -> None:
        """Pin what will be loaded; the store cursor goes behind it."""
        stop = (local + tokens) // self.unit
        keys = cut(request.unit_keys, local // self.unit, stop)
        self.tier.pin(keys)
        request.store_from = stop
        self._loads.append(self._new_job(request, keys, True))

    def _new_job(self, request: VllmRequest, keys: Runs, is_load: bool) -> Job:
        job = Job(request, keys, is_load)
        if is_load:
            self.loaded_tokens += job.units * self.unit
        else:
            self.stored_tokens += job.units * self.unit
        self._jobs.setdefault(request, []).append(job)
        self._in_flight[is_load] += 1
        return job

    # ------------------------------------------------------------------ the end of schedule()
    def build(self, step: VllmStep, now: int) -> None:
        """Submit the last pass's stores, wait for what must be finished, submit loads, decide new stores."""
        for job in self._deferred:
            job.ticket = self.transfers.write(job.units * self.unit, now)
        self._submitted.extend(self._deferred)
        self._deferred = []
        self._flush(step, now)
        for job in self._loads:
            job.since, job.ticket = now, self.transfers.load(job.units * self.unit, now)
        self._submitted.extend(self._loads)
        self._loads = []
        for request, _, _ in step.work:
            self._store(request)

    def _flush(self, step: VllmStep, now: int) -> None:
        """Wait for stores whose blocks change hands in this pass: those of victims, and of ended requests by block."""
        flushed = {job: None for request in step.preempted for job in self._jobs.get(request, ())}
        if self.pool.met:
            users = {id(request.table) for request, _, _ in step.work} | {id(job.owner.table) for job in self._loads}
            for table, job in self.pool.met:  # table None: the cohort's, all of it scheduled
                if (table is None or id(table) in users) and job.pending and isinstance(job, Job) and job.owner.phase == ENDED:
                    flushed[job] = None
            self.pool.met.clear()
        for job in flushed:
            step.blocked_until = max(step.blocked_until, self.transfers.finish_time(job.ticket, now))
        if self.log is not None:
            self.log.flushed = len(flushed)

    def _store(self, request: VllmRequest) -> None:
        """Store the complete offloaded blocks beyond the request's cursor (_build_store_jobs)."""
        tokens = min(request.computed, request.known)
        if self.params.offload_prompt_only:
            tokens = min(tokens, request.prompt)
        start, stop = request.store_from, tokens // self.unit
        if stop <= start:
            request.store_from = stop
            return
        keys = cut(request.unit_keys, start, stop)
        gaps = self.tier.missing(keys) if self.counts.threshold < 2 else self._worthy(keys)
        if gaps:
            before = self.tier.evicted
            new = keys if gaps == [(0, stop - start)] else tuple(run for lo, hi in gaps for run in cut(keys, lo, hi))
            if not self.tier.store(new, keys):
                if self.log is not None:
                    self.log.refused.append(request)
                return
            self.tier.touch(cut(request.unit_keys, 0, request.known // self.unit))
            job = self._new_job(request, new, False)
            factor = self.params.offload_factor
            for lo, hi in gaps:
                self.pool.mark(request.table, (start + lo) * factor, (start + hi) * factor, job)
            self._deferred.append(job)
            if self.log is not None:
                self.log.stored.append((request, job.units))
                self.log.cpu_evicted += self.tier.evicted - before
        request.store_from = stop

    def _worthy(self, keys: Runs) -> list[tuple[int, int]]:
        """Return the stretches of positions that are missing and were looked up often enough."""
        every = expand(keys, 0, length(keys))
        return stretches(not self.tier.holds(key) and self.counts.worthy(key) for key in every)

    # ------------------------------------------------------------------ completions
    def forwarded(self, step: VllmStep, now: int) -> None:
        """Report the copies that are complete by the end of the forward, in the order of their submission."""
        if not self._submitted:
            return
        rest = []
        for job in self._submitted:
            if self.transfers.done(job.ticket, now):
                step.report.append(job)
            else:
                rest.append(job)
        self._submitted = rest

    def process(self, step: VllmStep, now: int) -> list[VllmRequest]:
        """Make stored keys readable, drop the pins of loads; return the requests whose load completed."""
        loaded = []
        report = step.take_report()
        for job in report:
            assert isinstance(job, Job)
            job.pending = False
            self._in_flight[job.is_load] -= 1
            jobs = self._jobs[job.owner]
            jobs.remove(job)
            if not jobs:
                del self._jobs[job.owner]
            if job.is_load:
                self.tier.unpin(job.keys)
                job.owner.load_ps += self.transfers.finish_time(job.ticket, now) - job.since
                loaded.append(job.owner)
            else:
                self.tier.stored(job.keys)
        return loaded

    def busy(self) -> bool:
        """Tell whether a job is in flight."""
        return self._in_flight != [0, 0]

    def indifferent(self, request: VllmRequest) -> bool:
        """Tell whether nothing is left to store while the request decodes."""
        return self.params.offload_prompt_only and request.store_from == request.prompt // self.unit

    def quiet(self, waiting: bool) -> bool:
        """Tell whether passes that only decode leave the tier as it is.

        Stores in flight: their completions can be processed later, in the same order, with the same effect, if nobody is
        looked up in between. Somebody waiting is looked up in every pass; under lru, without counts, again and again alike.
        """
        if self._deferred or self._in_flight[1]:
            return False
        return not waiting or not (self._in_flight[0] or self.params.cpu_policy == "arc" or self.counts.threshold > 1)

    def reset(self) -> None:
        """Forget the idle keys."""
        self.tier.reset()

    def poll_idle(self, now: int) -> None:
        """Process what completed while the engine had no requests."""
        step = VllmStep("idle", 0)
        self.forwarded(step, now)
        self.process(step, now)

    def host_tokens(self) -> int:
        """Return the tokens resident on the CPU."""
        return self.tier.resident * self.unit

    def host_evicted_tokens(self) -> int:
        """Return the tokens that left the CPU tier so far."""
        return self.tier.evicted * self.unit

    def resident_among(self, first: int, count: int) -> int:
        """Return how many of the blocks named first .. first + count - 1 the CPU tier holds."""
        return self.tier.resident_among(first, count) if self.params.offload_factor == 1 else 0

    def state(self) -> tuple[int, ...]:
        """Return (keys resident, idle ones, store jobs, load jobs in flight)."""
        return self.tier.resident, self.tier.idle, *self._in_flight
