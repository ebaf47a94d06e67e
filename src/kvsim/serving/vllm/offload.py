"""vLLM's OffloadingConnector, both its sides (kv_transfer/kv_connector/v1/offloading/scheduler.py, worker.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.kv.vllm_offload import ArcTier, CpuTier, LookupCounts
from kvsim.serving.vllm.connector import Connector
from kvsim.serving.vllm.state import ENDED, VllmStep

if TYPE_CHECKING:
    from kvsim.serving.port import Transfers
    from kvsim.serving.vllm.core import VllmCore
    from kvsim.serving.vllm.state import VllmRequest


class Job:
    """One copy operation of one request. ``pending``: not processed yet; ``ticket``, ``since``: of its submission."""

    __slots__ = ("is_load", "keys", "owner", "pending", "since", "ticket")

    def __init__(self, owner: VllmRequest, keys: list[int], is_load: bool) -> None:
        self.owner, self.keys, self.is_load = owner, keys, is_load
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
        self.tier = (ArcTier if params.cpu_policy == "arc" else CpuTier)(params.cpu_blocks)
        self.counts = LookupCounts(params.store_threshold)
        self._jobs: dict[VllmRequest, list[Job]] = {}
        self._deferred: list[Job] = []  # stores decided in the last pass, submitted at the start of the next one
        self._loads: list[Job] = []  # loads of this pass
        self._submitted: list[Job] = []
        self._in_flight = [0, 0]  # stores, loads

    def _keys(self, request: VllmRequest, start: int, stop: int) -> list[int]:
        """Names of the request's offloaded blocks [start, stop): each that of its last GPU block."""
        factor = self.params.offload_factor
        if start >= stop:
            return []
        return request.chain(start * factor, stop * factor)[factor - 1 :: factor]

    # ------------------------------------------------------------------ lookup and load
    def lookup(self, request: VllmRequest, local: int) -> int | None:
        """Return loadable tokens beyond the local hit, or None (get_num_new_matched_tokens)."""
        if self._jobs.get(request):
            return None
        unit = self.unit
        whole = request.known // unit
        first = local // unit
        walk = self._walk(request, first, whole) if whole * unit - local >= unit else []
        self.tier.touch(self._keys(request, 0, whole))
        if not all(self.tier.ready(key) for key in walk):
            return None
        external = (first + len(walk)) * unit - local
        if external < unit:
            return 0
        if self.params.enable_prefix_caching and any(self.tier.loading(key) for key in walk):
            return None
        return external

    def _walk(self, request: VllmRequest, first: int, stop: int) -> list[int]:
        out: list[int] = []
        for key in self._keys(request, first, stop):
            self.counts.note(key)
            if not self.tier.present(key):
                break
            out.append(key)
        return out

    def load(self, request: VllmRequest, local: int, tokens: int) -> None:
        """Pin what will be loaded; the store cursor goes behind it."""
        stop = (local + tokens) // self.unit
        keys = self._keys(request, local // self.unit, stop)
        self.tier.pin(keys)
        request.store_from = stop
        self._loads.append(self._new_job(request, keys, True))

    def _new_job(self, request: VllmRequest, keys: list[int], is_load: bool) -> Job:
        job = Job(request, keys, is_load)
        if is_load:
            self.loaded_tokens += len(keys) * self.unit
        else:
            self.stored_tokens += len(keys) * self.unit
        self._jobs.setdefault(request, []).append(job)
        self._in_flight[is_load] += 1
        return job

    # ------------------------------------------------------------------ the end of schedule()
    def build(self, step: VllmStep, now: int) -> None:
        """Submit the last pass's stores, wait for what must be finished, submit loads, decide new stores."""
        for job in self._deferred:
            job.ticket = self.transfers.write(len(job.keys) * self.unit, now)
        self._submitted.extend(self._deferred)
        self._deferred = []
        self._flush(step, now)
        for job in self._loads:
            job.since, job.ticket = now, self.transfers.load(len(job.keys) * self.unit, now)
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
                if (
                    (table is None or id(table) in users)
                    and job.pending
                    and isinstance(job, Job)
                    and job.owner.phase == ENDED
                ):
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
        keys = self._keys(request, start, stop)
        new = [key for key in keys if not self.tier.present(key) and self.counts.worthy(key)]
        if new:
            before = self.tier.evicted
            if not self.tier.store(new, set(keys)):
                if self.log is not None:
                    self.log.refused.append(request)
                return
            self.tier.touch(self._keys(request, 0, request.known // self.unit))
            self._deferred.append(self._new_store(request, start, keys, new))
            if self.log is not None:
                self.log.stored.append((request, len(new)))
                self.log.cpu_evicted += self.tier.evicted - before
        request.store_from = stop

    def _new_store(self, request: VllmRequest, start: int, keys: list[int], new: list[int]) -> Job:
        job = self._new_job(request, new, False)
        factor, wanted = self.params.offload_factor, set(new)
        at = 0
        while at < len(keys):
            stop = at
            while stop < len(keys) and keys[stop] in wanted:
                stop += 1
            if stop > at:
                self.pool.mark(request.table, (start + at) * factor, (start + stop) * factor, job)
            at = stop + 1
        return job

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
        """Only stores in flight: their completions can be processed later, in the same order, with the same effect."""
        return not waiting and not self._deferred and not self._in_flight[1]

    def poll_idle(self, now: int) -> None:
        """Process what completed while the engine had no requests."""
        step = VllmStep("idle", 0)
        self.forwarded(step, now)
        self.process(step, now)

    def host_tokens(self) -> int:
        """Return the tokens resident on the CPU."""
        return len(self.tier.entries) * self.unit

    def host_evicted_tokens(self) -> int:
        """Return the tokens that left the CPU tier so far."""
        return self.tier.evicted * self.unit

    def holds(self, key: int) -> bool:
        """Tell whether the CPU tier holds the block of this name."""
        return self.tier.present(key)

    def state(self) -> tuple[int, ...]:
        """Return (keys resident, idle ones, store jobs, load jobs in flight)."""
        return len(self.tier.entries), self.tier.idle, *self._in_flight
