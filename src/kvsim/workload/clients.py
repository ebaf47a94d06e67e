"""Clients: an open loop that sends at given times, and closed-loop sessions."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from fractions import Fraction

from kvsim.workload.spec import Client, RequestSpec


class OpenLoop:
    """Sends every request at its recorded (or drawn) time, whatever the server does. ``rate_scale`` divides the times, exactly."""

    def __init__(self, specs: Iterable[RequestSpec], rate_scale: float = 1.0, *, timeout_ps: int | None = None) -> None:
        self._rows: Iterator[RequestSpec] = iter(specs)
        self._scale = Fraction(str(rate_scale))
        self._timeout = timeout_ps
        self._next = self._pull()

    def _pull(self) -> RequestSpec | None:
        spec = next(self._rows, None)
        if spec is not None:
            if self._scale != 1:
                spec.arrival_ps = spec.arrival_ps * self._scale.denominator // self._scale.numerator
            if self._timeout is not None:
                spec.timeout_ps = self._timeout
        return spec

    def next_send(self) -> int | None:
        """Return when the next request leaves."""
        return None if self._next is None else self._next.arrival_ps

    def send(self, now: int) -> list[RequestSpec]:
        """Return what is due."""
        out = []
        while self._next is not None and self._next.arrival_ps <= now:
            out.append(self._next)
            self._next = self._pull()
        return out

    def ended(self, request_id: str, now: int, ok: bool) -> None:
        """An open loop does not wait for answers."""

    def unsent(self) -> Iterator[RequestSpec]:
        """Yield what was never sent."""
        if self._next is not None:
            yield self._next
        yield from self._rows

    def describe(self) -> str:
        """Return which times are kept."""
        scale = "" if self._scale == 1 else f", rate multiplied by {float(self._scale):g}"
        return f"open loop: recorded arrival times{scale}"


class Session:
    """One conversation: its turns in order; ``thinks[i]`` ps pass between the end of turn i and the sending of turn i + 1."""

    __slots__ = ("at", "thinks", "turns")

    def __init__(self, turns: list[RequestSpec], thinks: list[int]) -> None:
        self.turns, self.thinks, self.at = turns, thinks, 0


#: More sessions than any client has: numbers below 0 for first turns.
FIRST_TURNS = 1 << 60


class Sessions:
    """Closed loop: the next turn leaves when the answer has come and its think time has passed; a failed turn ends its session.

    ``users``: at most so many sessions at once, the next one starts when one ends (None: each starts at its own time).
    ``in_order``: the sessions come in order of their starts, so each is made when its time has come.
    """

    def __init__(self, sessions: Iterable[Session], *, users: int | None = None, in_order: bool = False) -> None:
        self.kept = "the recipe's think times"
        self._due: list[tuple[int, int, RequestSpec]] = []
        self._of: dict[str, Session] = {}
        self._dropped: list[RequestSpec] = []
        self._order = 0
        self._begun = -FIRST_TURNS
        self._pool = iter(sessions)
        self._ahead: Session | None = None
        self._users = users
        if users is not None:
            for session in _take(self._pool, users):
                self._begin(session)
        elif in_order:
            self._ahead = next(self._pool, None)
        else:
            for session in self._pool:
                self._begin(session)

    def _begin(self, session: Session) -> None:
        """Put a session's first turn in; at one instant first turns go before later ones."""
        self._begun += 1
        self._put(session, session.turns[0].arrival_ps, self._begun)

    def _push(self, session: Session, when: int) -> None:
        self._order += 1
        self._put(session, when, self._order)

    def _put(self, session: Session, when: int, order: int) -> None:
        spec = session.turns[session.at]
        spec.arrival_ps = when
        self._of[spec.id] = session
        heapq.heappush(self._due, (when, order, spec))

    def next_send(self) -> int | None:
        """Return when the next request leaves."""
        first = self._due[0][0] if self._due else None
        if self._ahead is None:
            return first
        start = self._ahead.turns[0].arrival_ps
        return start if first is None or start < first else first

    def send(self, now: int) -> list[RequestSpec]:
        """Return what is due."""
        while self._ahead is not None and self._ahead.turns[0].arrival_ps <= now:
            self._begin(self._ahead)
            self._ahead = next(self._pool, None)
        out = []
        while self._due and self._due[0][0] <= now:
            out.append(heapq.heappop(self._due)[2])
        return out

    def ended(self, request_id: str, now: int, ok: bool) -> None:
        """Schedule the session's next turn, or end the session."""
        session = self._of.pop(request_id, None)
        if session is None:
            return
        if ok and session.at + 1 < len(session.turns):
            think = session.thinks[session.at]
            session.at += 1
            self._push(session, now + think)
            return
        self._dropped.extend(session.turns[session.at + 1 :])
        if self._users is not None:
            for following in _take(self._pool, 1):
                self._push(following, now)

    def unsent(self) -> Iterator[RequestSpec]:
        """Yield turns that were never sent."""
        yield from self._dropped
        waiting = {id(spec) for _, _, spec in self._due}
        for session in self._of.values():
            start = session.at if id(session.turns[session.at]) in waiting else session.at + 1
            yield from session.turns[start:]
        for session in (*([self._ahead] if self._ahead is not None else []), *self._pool):
            yield from session.turns

    def describe(self) -> str:
        """Return which times are kept."""
        return f"closed loop: a turn leaves when the answer before it has ended and its think time has passed ({self.kept})"


class Impatient:
    """Sends what ``inner`` sends; every request is given up after ``timeout_ps``."""

    def __init__(self, inner: Client, timeout_ps: int) -> None:
        self.inner, self.timeout_ps = inner, timeout_ps

    def next_send(self) -> int | None:
        """Return when the next request leaves."""
        return self.inner.next_send()

    def send(self, now: int) -> list[RequestSpec]:
        """Return what is due, with its timeout."""
        out = self.inner.send(now)
        for spec in out:
            spec.timeout_ps = self.timeout_ps
        return out

    def ended(self, request_id: str, now: int, ok: bool) -> None:
        """Tell the inner client."""
        self.inner.ended(request_id, now, ok)

    def unsent(self) -> Iterable[RequestSpec]:
        """Yield what was never sent."""
        return self.inner.unsent()

    def describe(self) -> str:
        """Return what the inner client keeps, and the timeout."""
        inner = getattr(self.inner, "describe", lambda: "requests")()
        return f"{inner}; given up after {self.timeout_ps * 1e-12:g} s"


def _take(sessions: Iterator[Session], count: int) -> list[Session]:
    return [session for _, session in zip(range(count), sessions, strict=False)]
