"""Runs of decode steps in closed form: how many iterations repeat the last one, and all of them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.serving.port import Step
from kvsim.serving.sglang.cohort import Crossings
from kvsim.serving.sglang.decode import Decoding
from kvsim.serving.sglang.request import SglangStep

if TYPE_CHECKING:
    from kvsim.kv.cache import KvCache
    from kvsim.rules.sglang import SglangParams


class Runs(Decoding):
    """Adds ``quiet`` and ``advance`` to the scheduler."""

    def __init__(self, params: SglangParams, cache: KvCache) -> None:
        super().__init__(params, cache)
        self._decays: list[float] = []
        self._decayed_at: dict[float, int] = {}

    def quiet(self, previous: Step | None) -> int:
        """Return how many further iterations repeat the decode step just planned (see serving.port.Scheduler)."""
        step = self.last
        if step is None or step.kind != "decode" or self.retracted_now or self.ended:
            return 0
        if self.chunked is not None or (self.waiting and (not self.full or self.params.priority_scheduling)):
            return 0
        if self.params.overlap and (previous is None or previous.kind != "decode" or previous.decode_batch != step.decode_batch):
            return 0
        until_finish = self._until_finish()
        return max(0, min(until_finish, self._until_memory(until_finish))) if until_finish > 0 else 0

    def before_eviction(self) -> int:
        """Return how many further steps of the batch planned last need no eviction (a replay looks at every one)."""
        return self._before_eviction(self.cohort.crossings())

    def _until_finish(self) -> int:
        """Iterations whose results finish nobody (and, where the engine foresees it, remove nobody)."""
        if self.ended_in_running:
            return 0
        left = self.cohort.results_until_end() - 1
        return min(left, self.cohort.results_until_limit() - 2) if self.foresees else left

    def _until_memory(self, wanted: int) -> int:
        """Iterations whose slots can be had; without any eviction where one would block or copies may be done by then."""
        cache = self.cache
        if self.cohort.size * (wanted + 1) * cache.page <= cache.free:
            return wanted
        crossings = self.cohort.crossings(wanted)
        if cache.write_back or (self.rules.poll_every_iteration and not cache.idle_transfers):
            return self._before_eviction(crossings)
        return crossings.most_steps((cache.free + cache.evictable) // cache.page)

    def _before_eviction(self, crossings: Crossings) -> int:
        """Return how many steps can be allocated before a step finds too little free and evicts."""
        spare = (self.cache.free - crossings.size * self.cache.page) // self.cache.page
        return crossings.most_steps(spare) + 1 if spare >= 0 else 0

    def advance(self, iterations: int, step: Step) -> None:
        """Carry out quiet iterations: their slots and evictions, tokens, the ratio's decay."""
        assert isinstance(step, SglangStep)
        left = iterations
        while left:
            left -= self._advance_slots(left)
        self.cohort.skip(0, iterations)
        self._decay(iterations)
        step.sum_context += iterations * step.decode_batch
        step.max_context += iterations

    def _advance_slots(self, most: int) -> int:
        """Take the slots of some steps: all up to the next eviction, or one that evicts; return how many."""
        cache, cohort = self.cache, self.cohort
        page = cache.page
        if page == 1 and cohort.size * (most + 1) <= cache.free:
            cache.take(cohort.size * most)
            cohort.skip(most, 0)
            return most
        crossings = cohort.crossings(most)
        steps = most if cohort.size * (most + 1) * page <= cache.free else min(most, self._before_eviction(crossings))
        if not steps and not cache.evictable:  # nothing to evict: the steps take what is free
            steps = min(most, crossings.most_steps(cache.free // page))
        if not steps:
            cache.make_room(cohort.pages_now() * page, self.now)
            self._allocate_decode(self.now)
            return 1
        if pages := crossings.until(steps):
            cache.take(pages * page)
        cohort.skip(steps, 0)
        return steps

    def _decay(self, times: int) -> None:
        """Let the new-token ratio fall ``times`` times: the same subtractions as step by step, each made once per start."""
        at = self._decayed_at.get(self.ratio)
        if at is None:
            self._decays, self._decayed_at, at = [self.ratio], {self.ratio: 0}, 0
        decays, decay, floor = self._decays, self.ratio_decay, self.ratio_min
        at += times
        while at + 1 >= len(decays) and (last := decays[-1]) > floor and last - decay < last:  # and one more, for the next plan
            self._decayed_at[max(last - decay, floor)] = len(decays)
            decays.append(max(last - decay, floor))
        self.ratio = decays[at] if at < len(decays) else decays[-1]
