"""The running requests as one cohort: what every decode step changes for all of them is counted once, not per request.

``allocated`` counts decode steps whose slots were taken, ``decoded`` those whose result was processed. A request that
joined keeps only its difference to these counters; its own numbers are made when it leaves. So a decode step, or a
thousand of them, cost the same whatever the batch.

A step always covers the whole cohort, and a result reaches everybody in it: requests join only after a prefill step,
whose result is processed before that of the decode step they take part in first.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.serving.sglang.request import SglangRequest

Heap = list[tuple[int, int, "SglangRequest"]]
NEVER = 1 << 60


class Cohort:
    """Counters, sums and orders of the requests that decode together.

    ``context``: tokens of all of them; ``largest_limit``: the largest max_new_tokens that was ever a member's; ``changes``:
    counts whatever changes how much a member may still generate.
    """

    __slots__ = (
        "_ends",
        "_foresees",
        "_limits",
        "_longest",
        "_ring",
        "_serial",
        "allocated",
        "changes",
        "context",
        "decoded",
        "largest_limit",
        "page",
        "size",
    )

    def __init__(self, page: int, *, foresees: bool) -> None:
        self.page, self._foresees = page, foresees
        self.allocated = self.decoded = self.context = self.size = self.largest_limit = self._serial = self.changes = 0
        self._ring = [0] * page  # how many take a new page when ``allocated`` modulo ``page`` is the index
        self._ends: Heap = []  # by the value of ``decoded`` at which a request has its last token
        self._limits: Heap = []  # by the value at which it reaches max_new_tokens
        self._longest: Heap = []  # by length, longest first

    # ------------------------------------------------------------------ members
    def join(self, requests: Iterable[SglangRequest], pending: int) -> None:
        """Take requests in, in the order of the batch; ``pending``: tokens on their way from their prefill (0, 1)."""
        allocated, decoded = self.allocated, self.decoded
        self.changes += 1
        for request in requests:
            self._serial = serial = self._serial + 1
            done, committed = request.output_done, request.kv.committed
            request.cohort, request.joined, request.rank = self, serial, serial
            request.slot_base, request.out_base = committed - allocated, done - decoded
            request.limit_at = decoded + request.mnt - done
            if request.mnt > self.largest_limit:
                self.largest_limit = request.mnt
            self.size += 1
            self.context += committed
            self._ring[-request.slot_base % self.page] += 1
            left = 1 if request.abort_wanted else request.length - done - pending
            heappush(self._ends, (decoded + left, serial, request))
            if self._foresees:
                heappush(self._limits, (request.limit_at - pending, serial, request))
            heappush(self._longest, (-request.slot_base, serial, request))
        if len(self._longest) > 64 + 8 * self.size:
            self._longest = [entry for entry in self._longest if entry[2].joined == entry[1]]
            heapify(self._longest)

    def leave(self, request: SglangRequest) -> None:
        """Let one go; its own numbers are made."""
        self.changes += 1
        committed = request.slot_base + self.allocated
        done = request.out_base + self.decoded
        request.joined = 0
        request.kv.committed, request.kv.outputs, request.output_done = committed, done, done
        self.size -= 1
        self.context -= committed
        self._ring[-request.slot_base % self.page] -= 1

    def rerank(self, requests: Iterable[SglangRequest]) -> None:
        """Put members in a new order."""
        for request in requests:
            self._serial += 1
            request.rank = self._serial

    def end_next(self, request: SglangRequest) -> None:
        """Let a member end with its next token."""
        heappush(self._ends, (self.decoded + 1, request.joined, request))

    # ------------------------------------------------------------------ steps
    def step(self) -> None:
        """One decode step's slots are taken."""
        self.allocated += 1
        self.context += self.size

    def result(self) -> list[SglangRequest]:
        """One decode step's tokens reach the members; return who ends with it, in the order of the batch."""
        self.decoded = decoded = self.decoded + 1
        self.changes += 1
        ends = self._ends
        if not ends or ends[0][0] > decoded:
            return []
        found: dict[int, SglangRequest] = {}
        while ends and ends[0][0] <= decoded:
            _, serial, request = heappop(ends)
            if request.joined == serial:
                found[request.rank] = request
        return [found[rank] for rank in sorted(found)]

    def skip(self, slots: int, results: int) -> None:
        """Many steps at once, in which nobody ends."""
        self.allocated += slots
        self.context += slots * self.size
        self.decoded += results
        self.changes += 1

    # ------------------------------------------------------------------ members that gain more than one token
    def take(self, request: SglangRequest, slots: int) -> None:
        """Give one member more slots than the others."""
        page = self.page
        self._ring[-request.slot_base % page] -= 1
        request.slot_base += slots
        self._ring[-request.slot_base % page] += 1
        self.context += slots
        heappush(self._longest, (-request.slot_base, request.joined, request))

    def gain(self, request: SglangRequest, tokens: int) -> None:
        """Give one member more outputs than the others."""
        request.out_base += tokens
        request.limit_at -= tokens
        self.changes += 1
        ends = self.decoded + request.length - request.output_done
        heappush(self._ends, (ends, request.joined, request))
        if self._foresees:
            heappush(self._limits, (request.limit_at, request.joined, request))

    # ------------------------------------------------------------------ what comes next
    def results_until_end(self) -> int:
        """Return after how many results somebody ends."""
        return self._first(self._ends) - self.decoded

    def results_until_limit(self) -> int:
        """Return after how many results somebody reaches max_new_tokens."""
        return self._first(self._limits) - self.decoded

    def _first(self, heap: Heap) -> int:
        while heap:
            at, serial, request = heap[0]
            if request.joined == serial:
                return at
            heappop(heap)
        return NEVER

    def at_limit_next(self) -> list[SglangRequest]:
        """Return, and forget, who reaches max_new_tokens with the next result."""
        limits, soon, found = self._limits, self.decoded + 1, []
        while limits and limits[0][0] <= soon:
            _, serial, request = heappop(limits)
            if request.joined == serial:
                found.append(request)
        return found

    def longest(self) -> int:
        """Return the tokens of the longest member."""
        return self.allocated - self._first(self._longest)

    # ------------------------------------------------------------------ pages
    def pages_now(self) -> int:
        """Return how many pages the next step takes."""
        return self.size if self.page == 1 else self._ring[self.allocated % self.page]

    def crossings(self, most: int = NEVER) -> Crossings:
        """Return how many pages the next steps take, looking at up to ``most`` steps."""
        page = self.page
        if page == 1:
            return Crossings(self.size, 1, [self.size])
        at, ring = self.allocated % page, self._ring
        turns = ring[at : at + most]
        if len(turns) < most and at:
            turns += ring[: min(at, most - len(turns))]
        return Crossings(self.size, page, turns)


class Crossings:
    """When the members of a cohort need their next pages, from now on: ``turns[i]`` of them in the i-th step.

    ``turns`` holds one page's worth of steps, or fewer if nobody asks for more than those.
    """

    __slots__ = ("_until", "page", "size")

    def __init__(self, size: int, page: int, turns: list[int]) -> None:
        self.size, self.page = size, page
        self._until = list(accumulate(turns))

    def until(self, steps: int) -> int:
        """Return how many pages the next ``steps`` steps take."""
        rounds, rest = divmod(steps, self.page)
        return self.size * rounds + (self._until[rest - 1] if rest else 0)

    def most_steps(self, pages: int) -> int:
        """Return the most steps that take at most ``pages`` pages (of those looked at)."""
        if pages < 0:
            return -1
        rounds, left = divmod(pages, self.size)
        if rounds and len(self._until) < self.page:
            return len(self._until)
        return rounds * self.page + bisect_right(self._until, left)
