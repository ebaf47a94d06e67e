"""The copies of one engine between device and host: FIFO per direction, fluid sharing between directions and GPUs.

All GPUs of an engine copy the same operation at once (a cache operation is done by every rank); it is complete when the
slowest has finished. Work is counted in integer byte-picoseconds, rates in whole B/s, and state moves only at its own
events (a flow starts, a flow ends), so asking more or less often changes nothing, to the picosecond.

A plan of the future is kept (``_steps``) as far as somebody asked. A new operation joins its direction's FIFO; where
that direction had run dry inside the plan, the plan is taken back to the moment of submission and made again.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING

from kvsim.cost.topology import DIRECTIONS, H2D, Topology

if TYPE_CHECKING:
    from collections.abc import Sequence

PS_PER_S = 10**12


@dataclass(frozen=True, slots=True)
class CopyMode:
    """How the engine copies. Bytes are per GPU, times ps.

    ``bytes_per_token``: (h2d, d2h) of one GPU. ``setup_ps``: latency before a copy's first byte. ``floor_ps``: least
    duration after it (launching one copy per layer). ``layerwise``: layers of a step wait for their own part only.
    ``cpu_ps_per_token``: time the scheduler is blocked to submit a load (``direct`` mode builds descriptors on the
    CPU).
    ``interference``: how much compute slows while a load by kernel runs (0.05: 5 %).
    """

    bytes_per_token: tuple[int, int]
    setup_ps: int = 0
    floor_ps: int = 0
    layerwise: bool = True
    cpu_ps_per_token: int = 0
    interference: float = 0.0
    name: str = "constant"


class Copy:
    """One operation (the ticket). ``end`` is known once planned; ``course``: how it goes on from then on.

    ``steady``: (setup_ps, rate) of a copy whose rate never changes; its course is made when somebody asks for it.
    """

    __slots__ = ("bytes", "end", "pieces", "start", "steady", "submit", "tokens", "way")

    def __init__(self, way: int, tokens: int, size: int, submit: int, steady: tuple[int, int] | None = None) -> None:
        self.way, self.tokens, self.bytes, self.submit, self.steady = way, tokens, size, submit, steady
        self.start = -1
        self.end = -1
        if steady is None:
            self.pieces: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []

    def course(self) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
        """Return (time, left, rate per class of GPUs) from each change on."""
        if self.steady is None:
            return self.pieces
        setup, rate = self.steady
        return [(self.start + setup, (self.bytes * PS_PER_S,), (rate,))]


#: One direction's position: index of the copy at work in its FIFO (== len: idle), its phase, when that phase ends,
#: bytes left.
Lane = tuple[int, int, int, tuple[int, ...]]
SETUP, FLOW, FLOOR, IDLE = 0, 1, 2, 3


class Links:
    """Implements ``serving.port.Transfers`` in picoseconds for one engine, and what the machine asks on top of it."""

    def __init__(self, topology: Topology, mode: CopyMode) -> None:
        self.topology, self.mode = topology, mode
        self._classes = topology.classes()
        self._queues: tuple[list[Copy], list[Copy]] = ([], [])
        self._lanes: list[Lane] = [(0, IDLE, 0, ()), (0, IDLE, 0, ())]
        self._time = 0
        self._history: list[tuple[int, Lane, Lane]] = []
        self._drained = [0, 0]
        self._open = [0, 0]
        self._steady = self._steady_rates()
        self._free_at = [0, 0]
        self._setup, self._floor = mode.setup_ps, mode.floor_ps
        self._rate_of: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]] = {}

    # ------------------------------------------------------------------ Transfers
    def write(self, tokens: int, now: int) -> Copy:
        """Submit a device-to-host copy; return its ticket."""
        return self._submit(1, tokens, now)

    def load(self, tokens: int, now: int) -> Copy:
        """Submit a host-to-device copy; return its ticket."""
        return self._submit(0, tokens, now)

    def done(self, ticket: object, now: int) -> bool:
        """Tell whether the copy is complete at ``now``."""
        return self.finish_time(ticket, now) <= now

    def finish_time(self, ticket: object, now: int) -> int:
        """Return when the copy will be complete if nothing more is submitted."""
        assert isinstance(ticket, Copy)
        while ticket.end < 0:
            self._next()
        return ticket.end

    # ------------------------------------------------------------------ what the machine asks
    def next_done(self, now: int) -> int | None:
        """Return when the next copy under way completes (> now), or None if none is; ``now`` never goes back."""
        ends = []
        for way, queue in enumerate(self._queues):
            at = self._open[way]
            while at < len(queue) and self.finish_time(queue[at], now) <= now:
                at += 1
            self._open[way] = at
            if at < len(queue):
                ends.append(queue[at].end)
        return min(ends, default=None)

    def duration(self, ticket: object) -> int:
        """Return how long the copy takes once started, in ps."""
        assert isinstance(ticket, Copy)
        return self.finish_time(ticket, ticket.submit) - ticket.start

    def finish_with_load(self, ticket: object, start_ps: int, compute_ps: int, layers: int) -> int:
        """Return when a step ends that starts at ``start_ps``, computes ``compute_ps`` over ``layers`` layers and
        needs the load.

        Layer-wise: layer i starts when layer i-1 is done and its part of the load (bytes in proportion) has arrived, so
        end = max(start + L c, max over i of ready_i + (L - i) c); with a load at constant rate from the step's start
        this is a + (L - 1) max(a, c) + c. Otherwise load, then compute. While a copy kernel runs compute is slower by
        ``interference``.
        """
        assert isinstance(ticket, Copy)
        loaded = self.finish_time(ticket, start_ps)
        start = max(start_ps, ticket.submit + self.mode.cpu_ps_per_token * ticket.tokens)
        if not self.mode.layerwise:
            return max(start, loaded) + compute_ps
        if loaded <= start:
            return start + compute_ps
        slow = self.mode.interference
        slowed = compute_ps if not slow else round(compute_ps * (1 + slow))
        end = max(start + slowed, _last_layer_bound(ticket, slowed, layers))
        if slow and end > loaded:
            end = loaded + max(0, round((end - loaded) / (1 + slow)))
        return end

    def drain_completed(self) -> list[tuple[str, int, int, int, int, int]]:
        """Return the copies not returned before: (direction, submit, start, end, tokens, bytes), by submission per
        direction.

        Copies still under way are included with the end they will have if nothing more is submitted.
        """
        rows = []
        for way, queue in enumerate(self._queues):
            name = DIRECTIONS[way]
            for copy in queue[self._drained[way] :]:
                if copy.end < 0:
                    self.finish_time(copy, copy.submit)
                rows.append((name, copy.submit, copy.start, copy.end, copy.tokens, copy.bytes))
            self._drained[way] = len(queue)
        rows.sort(key=itemgetter(1, 2))  # stable: loads, appended first, stay before stores of the same instant
        return rows

    def busy_ps(self, way: str, start_ps: int, end_ps: int) -> int:
        """Return how long a direction had a copy at work in [start_ps, end_ps)."""
        queue = self._queues[0 if way == H2D else 1]
        for copy in queue:
            self.finish_time(copy, copy.submit)
        return sum(max(0, min(copy.end, end_ps) - max(copy.start, start_ps)) for copy in queue)

    # ------------------------------------------------------------------ FIFO and time
    def _steady_rates(self) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Return (setup_ps, rate) of each direction if neither rate ever changes: all GPUs alike, and no direction slows
        the other."""
        if len(self._classes) > 1:
            return None
        gpus = range(self.topology.gpus)
        (load, _), (_, store), (both_load, both_store) = (
            self.topology.rates(gpus, ()),
            self.topology.rates((), gpus),
            self.topology.rates(gpus, gpus),
        )
        rates, setup = (min(load), min(store)), self.mode.setup_ps
        if rates != (min(both_load), min(both_store)) or min(rates) <= 0:
            return None
        return (setup, rates[0]), (setup, rates[1])

    def _submit(self, way: int, tokens: int, now: int) -> Copy:
        steady = self._steady
        copy = Copy(way, tokens, tokens * self.mode.bytes_per_token[way], now, steady and steady[way])
        if copy.steady is not None:
            return self._submit_steady(copy, copy.steady[1])
        self._plan_to(now)
        self._forget_before(now)
        if self._lanes[way][1] == IDLE and self._time > now:
            self._take_back(now)
        self._queues[way].append(copy)
        if self._lanes[way][1] == IDLE:
            self._move_both(now)
            self._begin(way, now)
        return copy

    def _submit_steady(self, copy: Copy, rate: int) -> Copy:
        """Put a copy behind the others of its direction; at a rate that never changes its end is known at once."""
        way, now, free = copy.way, copy.submit, self._free_at
        start = free[way]
        if start < now:
            start = now
        copy.start = start
        flow, work = start + self._setup, copy.bytes * PS_PER_S
        end, least = flow - (-work // rate), flow + self._floor
        copy.end = free[way] = end if end > least else least
        self._queues[way].append(copy)
        return copy

    def _begin(self, way: int, at: int) -> None:
        """Put the next copy of a direction to work at ``at``, or leave the lane idle."""
        index = self._lanes[way][0]
        queue = self._queues[way]
        if index >= len(queue):
            self._lanes[way] = (index, IDLE, 0, ())
            return
        copy = queue[index]
        copy.start = at
        work = copy.bytes * PS_PER_S
        self._lanes[way] = (index, SETUP, at + self.mode.setup_ps, (work,) * len(self._classes))

    def _forget_before(self, now: int) -> None:
        history = self._history
        keep = len(history)
        while keep and history[keep - 1][0] > now:
            keep -= 1
        if keep > 1:
            del history[: keep - 1]

    def _take_back(self, now: int) -> None:
        """Undo planned events after ``now``."""
        history = self._history
        while history and self._time > now:
            self._time, self._lanes[0], self._lanes[1] = history.pop()
        for way, queue in enumerate(self._queues):
            index = self._lanes[way][0]
            for copy in queue[index + 1 :]:
                copy.start = copy.end = -1
                copy.pieces.clear()
            if index < len(queue):
                copy = queue[index]
                copy.end = -1
                while copy.pieces and copy.pieces[-1][0] >= self._time:
                    copy.pieces.pop()

    def _plan_to(self, now: int) -> None:
        while self._time < now and (self._lanes[0][1] != IDLE or self._lanes[1][1] != IDLE):
            if self._peek() > now:
                return
            self._next()

    def _peek(self) -> int:
        rates = self._rates()
        return int(min(self._phase_end(0, rates[0]), self._phase_end(1, rates[1])))

    def _rates(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the B/s of each class of GPUs, per direction, in the present state."""
        busy = tuple(tuple(i for i, left in enumerate(lane[3]) if left > 0) if lane[1] == FLOW else () for lane in self._lanes)
        key = (busy[0], busy[1])
        known = self._rate_of.get(key)
        if known is None:
            gpus = [[gpu for i in busy[way] for gpu in self._classes[i]] for way in (0, 1)]
            shares = self.topology.rates(gpus[0], gpus[1])
            known = self._rate_of[key] = (
                self._spread(busy[0], gpus[0], shares[0]),
                self._spread(busy[1], gpus[1], shares[1]),
            )
        return known

    def _spread(self, busy: Sequence[int], gpus: list[int], shares: list[int]) -> tuple[int, ...]:
        of = dict(zip(gpus, shares, strict=True))
        return tuple(min(of[gpu] for gpu in members) if i in busy else 0 for i, members in enumerate(self._classes))

    def _phase_end(self, way: int, rates: tuple[int, ...]) -> float:
        _, phase, until, left = self._lanes[way]
        if phase == IDLE:
            return inf
        if phase != FLOW:
            return until
        return self._time + min((-(-work // rate) for work, rate in zip(left, rates, strict=True) if work > 0), default=0)

    def _next(self) -> None:
        """Move to the next event: a phase of a copy ends."""
        self._history.append((self._time, self._lanes[0], self._lanes[1]))
        at = self._peek()
        self._move_both(at)
        for way in (0, 1):
            self._finish_phase(way, at)

    def _move_both(self, at: int) -> None:
        rates = self._rates()
        for way in (0, 1):
            self._move(way, rates[way], at)
        self._time = at

    def _move(self, way: int, rates: tuple[int, ...], at: int) -> None:
        index, phase, until, left = self._lanes[way]
        if phase == FLOW:
            pieces = self._queues[way][index].pieces
            if not pieces or pieces[-1][2] != rates:
                pieces.append((self._time, left, rates))
            span = at - self._time
            left = tuple(max(0, work - rate * span) for work, rate in zip(left, rates, strict=True))
            self._lanes[way] = (index, FLOW, until, left)

    def _finish_phase(self, way: int, at: int) -> None:
        index, phase, until, left = self._lanes[way]
        copy = self._queues[way][index] if phase != IDLE else None
        if copy is None or (phase == FLOW and any(left)) or (phase != FLOW and until > at):
            return
        floor = copy.start + self.mode.setup_ps + self.mode.floor_ps
        if phase == SETUP:
            self._lanes[way] = (index, FLOW, 0, left)
            if not any(left):
                self._finish_phase(way, at)
        elif phase == FLOW and floor > at:
            self._lanes[way] = (index, FLOOR, floor, ())
        else:
            copy.end = at
            self._lanes[way] = (index + 1, IDLE, 0, ())
            self._begin(way, at)


def _last_layer_bound(copy: Copy, compute: int, layers: int) -> int:
    """Return max over layers i = 1..L of ready_i + compute x (L - i + 1) / L, ready_i: when i/L of the bytes have
    arrived.

    Within a piece of constant rate both parts are linear in i, so only the first and last layer of each piece count.
    """
    total = copy.bytes * PS_PER_S
    worst = copy.end + -(-compute // layers)
    course = copy.course()
    for number in range(len(course[0][1]) if course else 0):
        for k, (at, left, rates) in enumerate(course):
            if not rates[number]:
                continue
            moved = total - left[number]
            after = course[k + 1][1][number] if k + 1 < len(course) else 0
            first = moved * layers // total + 1 if total else layers
            last = (total - after) * layers // total if total else layers
            for i in {first, last}:
                if first <= i <= last:
                    ready = at + -(-(total * i - moved * layers) // (rates[number] * layers))
                    worst = max(worst, ready + compute * (layers - i + 1) // layers)
    return worst
