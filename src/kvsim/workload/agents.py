"""Closed loop of agents that fan out and join: a request leaves when all it waits for has ended and its think time has passed."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from kvsim.workload.closed import think_of, with_answer
from kvsim.workload.spec import RequestSpec


class _Node:
    """A request and what it waits for: ``hard`` dependents fall with it, ``soft`` ones go on without it."""

    __slots__ = ("gone", "hard", "ready", "soft", "spec", "think", "waits")

    def __init__(self, spec: RequestSpec) -> None:
        self.spec, self.think, self.waits, self.ready, self.gone = spec, 0, 0, 0, False
        self.hard: list[_Node] = []
        self.soft: list[_Node] = []


class Agents:
    """Sessions whose turns may also wait for requests of other sessions (``RequestSpec.after``).

    The first turn of a subagent waits for the request that called it; a later turn that names requests joins them: it leaves when the turn
    before it and all of those have ended, plus its think time. A failed turn ends its session and what it would have called; who
    waits for such a session goes on at once, as with an error for an answer.
    """

    def __init__(self, specs: Iterable[RequestSpec], rate_scale: float = 1.0, *, outputs_cached: bool = True, think_ps: int | None = None) -> None:
        nodes = [_Node(spec) for spec in specs]
        self._sources: set[str] = set()
        self._due: list[tuple[int, int, _Node]] = []
        self._order = 0
        self._nodes = {node.spec.id: node for node in nodes}
        self._sent: dict[str, _Node] = {}
        last: dict[str, _Node] = {}
        for node in nodes:
            session = node.spec.session
            before = None if session is None else last.get(session)
            self._link(node, before, outputs_cached, think_ps)
            if session is not None:
                last[session] = node
            if not node.waits:
                self._push(node, round(node.spec.arrival_ps / rate_scale))
        self.kept = ", ".join([*sorted(self._sources), "agents wait for those they called where the trace shows that they did"])

    def _link(self, node: _Node, before: _Node | None, outputs_cached: bool, think_ps: int | None) -> None:
        waited = [found for name in node.spec.after if (found := self._nodes.get(name)) is not None and found is not node]
        for other in waited:
            (other.hard if before is None else other.soft).append(node)
        if before is not None:
            before.hard.append(node)
            waited.append(before)
            if outputs_cached:
                node.spec.prompt = with_answer(before.spec, node.spec)
        node.waits = len(waited)
        if waited:
            node.think, source = _think(node.spec, waited, think_ps)
            self._sources.add(source)

    def _push(self, node: _Node, when: int) -> None:
        node.spec.arrival_ps = when
        self._order += 1
        heapq.heappush(self._due, (when, self._order, node))

    def next_send(self) -> int | None:
        """Return when the next request leaves."""
        return self._due[0][0] if self._due else None

    def send(self, now: int) -> list[RequestSpec]:
        """Return what is due."""
        out = []
        while self._due and self._due[0][0] <= now:
            node = heapq.heappop(self._due)[2]
            self._sent[node.spec.id] = node
            del self._nodes[node.spec.id]
            out.append(node.spec)
        return out

    def ended(self, request_id: str, now: int, ok: bool) -> None:
        """Let those go on that waited for it."""
        node = self._sent.pop(request_id, None)
        if node is None:
            return
        for other in node.soft:
            self._release(other, now)
        fallen = [] if ok else list(node.hard)
        if ok:
            for other in node.hard:
                self._release(other, now)
        while fallen:  # never sent, and all that hangs on it
            lost = fallen.pop()
            if not lost.gone:
                lost.gone = True
                fallen += lost.hard
                for other in lost.soft:
                    self._release(other, now)

    def _release(self, node: _Node, now: int) -> None:
        node.waits -= 1
        node.ready = max(node.ready, now)
        if not node.waits and not node.gone:
            self._push(node, node.ready + node.think)

    def unsent(self) -> Iterator[RequestSpec]:
        """Yield what was never sent."""
        for node in self._nodes.values():
            yield node.spec

    def describe(self) -> str:
        """Return which times are kept."""
        return f"closed loop: a turn leaves when the answer before it has ended and its think time has passed ({self.kept})"


def _think(spec: RequestSpec, waited: list[_Node], given: int | None) -> tuple[int, str]:
    """Return the think time behind the latest of ``waited``, and where it comes from."""
    if len(waited) == 1 and not spec.after:
        return think_of(waited[0].spec.arrival_ps, waited[0].spec.recorded_end_ps, spec, given)
    if given is not None:
        return given, "clients.think_time"
    ends = [node.spec.recorded_end_ps for node in waited]
    if None not in ends:
        return max(spec.arrival_ps - max(end for end in ends if end is not None), 0), "recorded: next start - last recorded end waited for"
    if spec.think_ps is not None:
        return spec.think_ps, "the trace's think times"
    return max(spec.arrival_ps - max(node.spec.arrival_ps for node in waited), 0), "start-to-start gaps (no recorded ends: service is counted twice)"
