"""A closed loop over a long trace that is never in memory as a whole: read once for its sessions' turns, and again as it is sent."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator

from kvsim.workload.closed import think_of, with_answer
from kvsim.workload.spec import RequestSpec


class Scan:
    """The first reading: how many turns every session has, which think times there are, whether requests wait for other sessions'."""

    def __init__(self, think_ps: int | None) -> None:
        self.turns: dict[str, int] = {}
        self.alone = 0  # requests without a session
        self.sources: set[str] = set()
        self.agents = False
        self._think = think_ps
        self._ended: set[str] = set()  # sessions whose last turn has a recorded end

    def add(self, spec: RequestSpec) -> None:
        """Take a request in."""
        self.agents |= bool(spec.after)
        session = spec.session
        if not session:
            self.alone += 1
            return
        before = self.turns.get(session, 0)
        self.turns[session] = before + 1
        if before:
            self.sources.add(think_of(0, 0 if session in self._ended else None, spec, self._think)[1])
        if spec.recorded_end_ps is not None:
            self._ended.add(session)
        else:
            self._ended.discard(session)

    @property
    def kept(self) -> str:
        """Which think times are kept."""
        return ", ".join(sorted(self.sources)) or "no second turns"


class _Talk:
    """A session: turns still in the file, turns read and not sent with their think times, what the next one is made from."""

    __slots__ = ("arrival", "failed", "last", "left", "queue", "wanted")

    def __init__(self, first: RequestSpec, left: int) -> None:
        self.last, self.arrival, self.left = first, first.arrival_ps, left
        self.queue: deque[tuple[RequestSpec, int]] = deque()
        self.wanted: int | None = None
        self.failed = False


class StreamedSessions:
    """Sends what ``closed.Sessions`` over the whole trace would, bit for bit; memory grows with sessions under way and turns read ahead.

    The file is read as far as the next session's first turn, and as far as a turn that is due; turns met on the way are kept.
    """

    def __init__(self, specs: Iterable[RequestSpec], scan: Scan, rate_scale: float, *, outputs_cached: bool, think_ps: int | None) -> None:
        self.kept = scan.kept
        self._rows = iter(specs)
        self._turns, self._scale, self._cached, self._think = scan.turns, rate_scale, outputs_cached, think_ps
        self._talks: dict[str, _Talk] = {}
        self._of: dict[str, _Talk] = {}
        self._due: list[tuple[int, int, RequestSpec, _Talk]] = []
        self._order = 0
        self._dropped: list[RequestSpec] = []
        self._firsts: deque[tuple[int, RequestSpec, _Talk]] = deque()
        self._starts = len(scan.turns) + scan.alone  # sessions not begun yet in the file
        self._fill()

    @property
    def held(self) -> int:
        """How many turns are read and not sent."""
        waiting = [*(talk for _, _, talk in self._firsts), *(due[3] for due in self._due), *self._of.values()]
        return sum(len(talk.queue) for talk in waiting) + len(self._due) + len(self._firsts)

    def _fill(self) -> None:
        """Read on to the next session's first turn, if there is one."""
        while not self._firsts and self._starts:
            self._read()

    def _read(self) -> None:
        spec = next(self._rows)
        if self._later(spec):
            return
        self._starts -= 1
        talk = _Talk(spec, (self._turns.pop(spec.session) if spec.session else 1) - 1)
        if talk.left and spec.session:
            self._talks[spec.session] = talk
        self._firsts.append((round(spec.arrival_ps / self._scale), spec, talk))

    def _later(self, spec: RequestSpec) -> bool:
        """Put a later turn behind its session's others; False for a first turn."""
        talk = self._talks.get(spec.session) if spec.session else None
        if talk is None or not spec.session:
            return False
        talk.left -= 1
        if not talk.left:
            del self._talks[spec.session]
        think, _ = think_of(talk.arrival, talk.last.recorded_end_ps, spec, self._think)
        if self._cached:
            spec.prompt = with_answer(talk.last, spec)
        talk.last, talk.arrival = spec, spec.arrival_ps
        if talk.failed:
            self._dropped.append(spec)
        elif talk.wanted is not None:
            when, talk.wanted = talk.wanted, None
            self._push(spec, when + think, talk)
        else:
            talk.queue.append((spec, think))
        return True

    def _push(self, spec: RequestSpec, when: int, talk: _Talk) -> None:
        spec.arrival_ps = when
        self._order += 1
        heapq.heappush(self._due, (when, self._order, spec, talk))

    def next_send(self) -> int | None:
        """Return when the next request leaves."""
        due = self._due[0][0] if self._due else None
        if not self._firsts:
            return due
        return self._firsts[0][0] if due is None else min(due, self._firsts[0][0])

    def send(self, now: int) -> list[RequestSpec]:
        """Return what is due; of two at one time, the first turn before the later one."""
        out = []
        while (when := self.next_send()) is not None and when <= now:
            if self._firsts and self._firsts[0][0] == when:
                _, spec, talk = self._firsts.popleft()
                spec.arrival_ps = when
                self._fill()
            else:
                _, _, spec, talk = heapq.heappop(self._due)
            self._of[spec.id] = talk
            out.append(spec)
        return out

    def ended(self, request_id: str, now: int, ok: bool) -> None:
        """Schedule the session's next turn, reading on until it is found, or end the session."""
        talk = self._of.pop(request_id, None)
        if talk is None:
            return
        if not ok:
            talk.failed = True
            self._dropped += [spec for spec, _ in talk.queue]
            talk.queue.clear()
        elif talk.queue:
            spec, think = talk.queue.popleft()
            self._push(spec, now + think, talk)
        elif talk.left:
            talk.wanted = now
            while talk.wanted is not None:
                self._read()

    def unsent(self) -> Iterator[RequestSpec]:
        """Yield what was never sent."""
        yield from self._dropped
        for _, spec, talk in self._firsts:
            yield from (spec, *(later for later, _ in talk.queue))
        for _, _, spec, talk in sorted(self._due, key=lambda due: due[:2]):
            yield from (spec, *(later for later, _ in talk.queue))
        for talk in self._of.values():
            yield from (later for later, _ in talk.queue)
        yield from self._rows

    def describe(self) -> str:
        """Return which times are kept."""
        return f"closed loop: a turn leaves when the answer before it has ended and its think time has passed ({self.kept})"
