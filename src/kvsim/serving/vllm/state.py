"""What the vLLM rules keep per request and per step, and the two waiting queues."""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING

from kvsim.content import EMPTY
from kvsim.kv.blocks import expand
from kvsim.serving.port import Request, Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvsim.content import Runs
    from kvsim.kv.blocks import AnyTable
    from kvsim.workload.spec import RequestSpec

#: Where a request stands (v1/request.py RequestStatus). LOADING: WAITING_FOR_REMOTE_KVS.
WAITING, PREEMPTED, LOADING, RUNNING, ENDED = "waiting", "preempted", "loading", "running", "ended"


class VllmRequest(Request):
    """A request under the vLLM rules.

    ``computed``: num_computed_tokens; ``in_flight``: num_output_placeholders (async: sampled tokens not yet known);
    ``order``: arrival order; ``step``: number of the last step that scheduled it; ``resumed``: it was preempted before
    it last waited; ``loaded``: a load of it completed and it was not promoted yet; ``load_pending``: it started a load
    and has not run since; ``prefilling``: it is admitted and its known tokens are not all computed. ``store_from``: the
    connector's cursor. ``outputs``: how many tokens it will generate; ``place``: order of admissions (the running list
    is sorted by it). ``joined``, ``last_tick``: its ticks in the cohort (joined < 0: not in it). ``entangled``: another
    live request contains blocks that it will generate, so it never joins. ``own_key``: name of its first block with
    generated tokens.
    """

    __slots__ = (
        "computed",
        "entangled",
        "in_flight",
        "joined",
        "keys",
        "last_tick",
        "limit",
        "load_start",
        "loaded",
        "order",
        "outputs",
        "own_key",
        "phase",
        "place",
        "prefilling",
        "priority",
        "prompt",
        "readmitted",
        "resumed",
        "step",
        "store_from",
        "table",
        "total_limit",
        "unit_keys",
    )

    def __init__(self, spec: RequestSpec, now: int, order: int, table: AnyTable) -> None:
        super().__init__(spec, now)
        self.prompt = spec.prompt_tokens
        self.limit = spec.output_tokens if spec.max_new_tokens is None else spec.max_new_tokens
        self.total_limit = self.prompt + self.limit
        self.outputs = min(max(spec.output_tokens, 1), self.limit)
        self.place = 0
        self.entangled = False
        self.own_key = -1
        self.joined = -1
        self.last_tick = 0
        self.priority = spec.priority or 0
        self.order = order
        self.table = table
        self.keys: Runs = EMPTY
        self.unit_keys: Runs = EMPTY  # names of its offloaded blocks
        self.computed = 0
        self.in_flight = 0
        self.phase = WAITING
        self.step = 0
        self.resumed = False
        self.readmitted = False
        self.loaded = False
        self.load_start = -1
        self.prefilling = False
        self.store_from = 0

    @property
    def known(self) -> int:
        """Prompt tokens and outputs received so far (num_tokens)."""
        return self.prompt + self.output_done

    def chain(self, start: int, stop: int) -> list[int]:
        """Return the names of its full blocks ``[start, stop)``."""
        return expand(self.keys, start, stop)

    def rank(self) -> tuple[int, int]:
        """The order of the priority policy: the smaller, the earlier."""
        return (self.priority, self.order)


class VllmStep(Step):
    """One pass of ``schedule``: ``work`` holds (request, tokens, sampled) in scheduling order.

    ``number`` counts passes.     ``cohort``: members of the cohort that decode in it. ``report``: what the connector's
    worker reported.
    """

    __slots__ = ("cohort", "forwarded", "number", "preempted", "report", "work")

    def __init__(self, kind: str, number: int) -> None:
        super().__init__(kind)
        self.number = number
        self.work: list[tuple[VllmRequest, int, bool]] = []
        self.preempted: list[VllmRequest] = []
        self.cohort = 0
        self.report: list[object] = []
        self.forwarded = False

    def __copy__(self) -> VllmStep:
        """Copy without going through pickling: the machine copies the step of every run."""
        twin = VllmStep.__new__(VllmStep)
        for name in _STEP_SLOTS:
            setattr(twin, name, getattr(self, name))
        return twin

    def take_report(self) -> list[object]:
        """Return the report and empty it, for copies of this step too."""
        report = list(self.report)
        self.report.clear()
        return report


_STEP_SLOTS = (*Step.__slots__, *VllmStep.__slots__)


class Queue:
    """First come, first served, with a way back to the head (v1/core/sched/request_queue.py FCFSRequestQueue)."""

    def __init__(self) -> None:
        self._items: deque[VllmRequest] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[VllmRequest]:
        return iter(self._items)

    def add(self, request: VllmRequest) -> None:
        """Put a new request in."""
        self._items.append(request)

    def put_first(self, request: VllmRequest) -> None:
        """Put a request back at the head."""
        self._items.appendleft(request)

    def put_all_first(self, requests: Iterable[VllmRequest]) -> None:
        """Put requests back at the head, in their order."""
        self._items.extendleft(reversed(list(requests)))

    def head(self) -> VllmRequest:
        """Return the next request without taking it."""
        return self._items[0]

    def pop(self) -> VllmRequest:
        """Take the next request."""
        return self._items.popleft()

    def remove(self, request: VllmRequest) -> bool:
        """Take a certain request out; tell whether it was here."""
        if request in self._items:
            self._items.remove(request)
            return True
        return False


class PriorityQueue(Queue):
    """Smallest (priority, arrival) first, wherever a request comes from (PriorityRequestQueue)."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, VllmRequest]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[VllmRequest]:
        return (request for _, _, request in sorted(self._heap, key=lambda item: item[:2]))

    def add(self, request: VllmRequest) -> None:
        """Put a request in."""
        heapq.heappush(self._heap, (request.priority, request.order, request))

    def put_first(self, request: VllmRequest) -> None:
        """Put a request back."""
        self.add(request)

    def put_all_first(self, requests: Iterable[VllmRequest]) -> None:
        """Put requests back."""
        for request in requests:
            self.add(request)

    def head(self) -> VllmRequest:
        """Return the next request without taking it."""
        return self._heap[0][2]

    def pop(self) -> VllmRequest:
        """Take the next request."""
        return heapq.heappop(self._heap)[2]

    def remove(self, request: VllmRequest) -> bool:
        """Take a certain request out; tell whether it was here."""
        kept = [item for item in self._heap if item[2] is not request]
        found = len(kept) < len(self._heap)
        if found:
            heapq.heapify(kept)
            self._heap = kept
        return found
