"""Runs of decode steps in closed form: how many iterations repeat the last one, and all of them at once."""

from __future__ import annotations

from bisect import bisect_left

from kvsim.serving.port import Step
from kvsim.serving.sglang.decode import Decoding
from kvsim.serving.sglang.request import SglangRequest, SglangStep

UNLIMITED = 1 << 60


class Crossings:
    """When the sequences of a batch need their next pages: ``until(steps)`` pages are taken by the next ``steps``
    decode steps."""

    __slots__ = ("batch", "page", "waits")

    def __init__(self, batch: list[SglangRequest], page: int) -> None:
        self.batch, self.page = len(batch), page
        self.waits = [] if page == 1 else sorted([-r.kv.committed % page for r in batch])

    def until(self, steps: int) -> int:
        """Return how many pages the next ``steps`` steps take."""
        if self.page == 1:
            return self.batch * steps
        rounds, rest = divmod(steps, self.page)
        return self.batch * rounds + bisect_left(self.waits, rest)

    def most_steps(self, pages: int) -> int:
        """Return the most steps that take at most ``pages`` pages."""
        if pages < 0:
            return -1
        if self.page == 1:
            return pages // self.batch
        rounds, left = divmod(pages, self.batch)
        return rounds * self.page + (self.waits[left] if left < self.batch else self.page)


class Runs(Decoding):
    """Adds ``quiet`` and ``advance`` to the scheduler."""

    def quiet(self, previous: Step | None) -> int:
        """Return how many further iterations repeat the decode step just planned (see serving.port.Scheduler)."""
        step = self.last
        if step is None or step.kind != "decode" or self.retracted_now or self.ended:
            return 0
        if self.chunked is not None or (self.waiting and (not self.full or self.params.priority_scheduling)):
            return 0
        if self.params.overlap and (
            previous is None or previous.kind != "decode" or previous.decode_batch != step.decode_batch
        ):
            return 0
        return max(0, min(self._until_finish(step.batch), self._until_memory(step.batch)))

    def before_eviction(self) -> int:
        """Return how many further steps of the batch planned last need no eviction (a replay looks at every
        eviction)."""
        assert self.last is not None
        return self._before_eviction(Crossings(self.last.batch, self.cache.page))

    def _until_finish(self, batch: list[SglangRequest]) -> int:
        """Iterations whose results finish nobody (and, where the engine foresees it, remove nobody)."""
        if self.aborting:
            if any(r.abort_wanted for r in batch):
                return 0
            self.aborting = False
        left = min([r.length - r.output_done for r in batch]) - 1
        if self.rules.foresee_length_finish and self.params.overlap:
            left = min(left, min([r.mnt - r.output_done for r in batch]) - 2)
        return left

    def _until_memory(self, batch: list[SglangRequest]) -> int:
        """Iterations whose slots can be had; without any eviction where one would block, or where copies may be
        acknowledged."""
        cache = self.cache
        crossings = Crossings(batch, cache.page)
        no_eviction = cache.write_back or (self.rules.poll_every_iteration and not cache.idle_transfers)
        if no_eviction:
            return self._before_eviction(crossings)
        return crossings.most_steps((cache.free + cache.evictable) // cache.page)

    def _before_eviction(self, crossings: Crossings) -> int:
        """Return how many steps can be allocated before a step finds too little free and evicts."""
        spare = (self.cache.free - crossings.batch * self.cache.page) // self.cache.page
        return crossings.most_steps(spare) + 1 if spare >= 0 else 0

    def advance(self, iterations: int, step: Step) -> None:
        """Carry out quiet iterations: their slots and evictions, tokens, the ratio's decay."""
        assert isinstance(step, SglangStep)
        batch, left = step.batch, iterations
        while left:
            crossings = Crossings(batch, self.cache.page)
            free_run = min(left, self._before_eviction(crossings))
            if free_run:
                pages = crossings.until(free_run)
                if pages:
                    self.cache.take(pages * self.cache.page)
                if free_run == iterations:
                    self._add_tokens(batch, iterations, iterations)
                    break
                self._add_tokens(batch, free_run, 0)
                left -= free_run
            else:
                self.cache.make_room(self._decode_need(batch), self.now)
                self._allocate_decode(batch, self.now)
                left -= 1
        else:
            self._add_tokens(batch, 0, iterations)
        self._decay(iterations)
        step.sum_context += iterations * step.decode_batch
        step.max_context += iterations

    @staticmethod
    def _add_tokens(batch: list[SglangRequest], slots: int, outputs: int) -> None:
        for request in batch:
            kv = request.kv
            kv.committed += slots
            kv.outputs += outputs
            request.output_done += outputs

    def _decay(self, times: int) -> None:
        ratio, decay, floor = self.ratio, self.ratio_decay, self.ratio_min
        while times and ratio > floor:
            ratio = max(ratio - decay, floor)
            times -= 1
        self.ratio = ratio
