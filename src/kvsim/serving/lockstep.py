"""DP attention: several schedulers that step together, as one scheduler.

Each rank has its own queue, pool and tree; all ranks run every iteration together, so the slowest one sets its time and a rank
without work runs along (SGLang --enable-dp-attention; vLLM data parallel with expert parallel). A request stays on the
rank that it was given to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from kvsim.serving.port import Request, Scheduler, Settled, Step

if TYPE_CHECKING:
    from kvsim.workload.spec import RequestSpec

#: Picks a rank for a request from the ranks' (running, waiting) counts and the number of requests given out so far.
RankChoice = Callable[[Sequence[tuple[int, int]], int], int]


def round_robin(loads: Sequence[tuple[int, int]], given: int) -> int:
    """Give requests to the ranks in turn (SGLang's default, srt/managers/data_parallel_controller.py)."""
    return given % len(loads)


def least_loaded(loads: Sequence[tuple[int, int]], given: int) -> int:
    """Give the request to the rank with the fewest requests, the first of equals (SGLang --load-balance-method total_requests)."""
    del given
    totals = [running + waiting for running, waiting in loads]
    return totals.index(min(totals))


def least_weighted(loads: Sequence[tuple[int, int]], given: int) -> int:
    """Give the request to the rank with the smallest 4 x waiting + running, the first of equals (vLLM's data parallel client)."""
    del given
    scores = [4 * waiting + running for running, waiting in loads]
    return scores.index(min(scores))


class LockstepStep(Step):
    """One iteration of all ranks; ``ranks`` holds each rank's step, None where a rank had nothing to do."""

    __slots__ = ("ranks",)

    def __init__(self, ranks: list[Step | None]) -> None:
        busy = [step for step in ranks if step is not None]
        kinds = {step.kind for step in busy}
        super().__init__(kinds.pop() if len(kinds) == 1 else "mixed")
        self.ranks = ranks
        for step in busy:
            self.prefills.extend(step.prefills)
            self.admitted.extend(step.admitted)
            self.retracted.extend(step.retracted)
            self.new_tokens += step.new_tokens
            self.pairs2 += step.pairs2
            self.cached_tokens += step.cached_tokens
            self.decode_batch += step.decode_batch
            self.sum_context += step.sum_context
            self.max_context = max(self.max_context, step.max_context)
            self.load_tokens += step.load_tokens
            self.blocked_until = max(self.blocked_until, step.blocked_until)


class LockstepOccupancy:
    """The ranks' memory counters, added up when they are read."""

    def __init__(self, ranks: Sequence[Scheduler]) -> None:
        self._ranks = ranks
        self._readers: dict[str, Callable[[Scheduler], int]] = {}

    def __getattr__(self, name: str) -> int:
        """Return the sum of one counter over the ranks."""
        if name.startswith("_"):
            raise AttributeError(name)
        read = self._readers.get(name)
        if read is None:
            self._readers[name] = read = attrgetter(f"occupancy.{name}")
        return sum(map(read, self._ranks))


class LockstepScheduler:
    """``ranks`` schedulers driven as one; implements the Scheduler protocol without closed-form runs (``quiet`` is 0).

    ``before_plan`` is called before the ranks plan (SGLang's prefill delayer); it may hold all work for ``idle_passes``
    plans in a row. Plans in which no rank runs take no time.
    """

    def __init__(
        self, ranks: list[Scheduler], choose: RankChoice, before_plan: Callable[[], None] | None = None, idle_passes: int = 0
    ) -> None:
        self.ranks, self.choose, self.before_plan, self.idle_passes = ranks, choose, before_plan, idle_passes
        self.overlap = ranks[0].overlap
        self.occupancy = LockstepOccupancy(ranks)
        self._home: dict[int, Scheduler] = {}
        self._given = 0
        self.ended: list[Request] = []

    def submit(self, spec: RequestSpec, now: int) -> Request:
        """Give the request to a rank; it stays there."""
        rank = self.ranks[self.choose([rank.counts() for rank in self.ranks], self._given)]
        self._given += 1
        request = rank.submit(spec, now)
        self._home[id(request)] = rank
        return request

    def abort(self, request: Request, now: int) -> None:
        """Abort on the request's own rank."""
        self._home[id(request)].abort(request, now)

    def plan(self, now: int) -> Step | None:
        """Plan every rank; None only if no rank has a step."""
        if self.before_plan is not None:
            self.before_plan()
        steps = [rank.plan(now) for rank in self.ranks]
        for rank in self.ranks:
            self.ended += rank.ended
            rank.ended.clear()
        return LockstepStep(steps) if any(step is not None for step in steps) else None

    def settle(self, step: Step, now: int) -> Settled:
        """Settle every rank's step at the common end."""
        assert isinstance(step, LockstepStep)
        total = Settled()
        for rank, own in zip(self.ranks, step.ranks, strict=True):
            if own is not None:
                settled = rank.settle(own, now)
                total.first += settled.first
                total.again += settled.again
                total.finished += settled.finished
                total.emitted += settled.emitted
        for request in total.finished:
            self._home.pop(id(request), None)
        return total

    def idle(self, now: int) -> None:
        """All ranks are idle together."""
        for rank in self.ranks:
            rank.idle(now)

    def has_work(self) -> bool:
        """Tell whether any rank has work."""
        return any(rank.has_work() for rank in self.ranks)

    def quiet(self, previous: Step | None) -> int:
        """No closed form: the slowest rank can change from step to step."""
        del previous
        return 0

    def arrival_matters(self) -> bool:
        """An arrival may always start a prefill on some rank."""
        return True

    def advance(self, iterations: int, step: Step) -> None:
        """Never called: ``quiet`` is 0."""
        raise NotImplementedError("lockstep ranks have no closed-form run")

    def counts(self) -> tuple[int, int]:
        """Return (running, waiting) over all ranks."""
        counts = [rank.counts() for rank in self.ranks]
        return sum(running for running, _ in counts), sum(waiting for _, waiting in counts)

    def pending(self) -> Sequence[Request]:
        """Return every rank's pending requests."""
        return [request for rank in self.ranks for request in rank.pending()]
