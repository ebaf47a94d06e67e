"""WEKA / AgentX conversations: one object each, seconds from its start, ids local to it, subagents nested; read and written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from kvsim.errors import TraceError
from kvsim.workload.formats_jsonl import _at, _need, ids_of, rows_of
from kvsim.workload.raw import PS, Raw, Skip, ps_of, tokens_of

DEEPEST = 20


def weka(lines: Iterable[bytes], origin: str, rate: float | None = None) -> Iterator[Raw | Skip]:
    """Yield the requests of conversations, each with the requests of other agents it waits for.

    A conversation begins at its ``start`` (seconds; written by kvsim), else conversation k at k / ``rate``, else at zero.
    A subagent's first request waits for the request before it in its caller's list. The caller joins it with its first
    request that was recorded to start at or after the subagent's end (``api_time``, else the start of its last request); a
    subagent that outlasted its caller is waited for by nobody.
    """
    gap = round(PS / rate) if rate else 0
    for number, (line, row) in enumerate(rows_of(_objects(lines), origin)):
        start = row.get("start")
        begin = number * gap if start is None else ps_of(start, PS, origin, line, "start")
        yield from _Conversation(row, origin, line, begin).rows()


def _objects(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield one object a line; a file that holds a single object on many lines is put on one."""
    rows = iter(lines)
    first = next(rows, b"")
    if first.rstrip().endswith(b"}") or not first.strip():
        yield first
        yield from rows
    else:
        yield b" ".join(line.strip() for line in chain((first,), rows))


class _Conversation:
    """One object of the file."""

    def __init__(self, row: dict[str, Any], origin: str, line: int, begin: int) -> None:
        self.row, self.origin, self.line, self.begin = row, origin, line, begin
        self.name = str(row.get("id", line))
        self.block = tokens_of(row.get("block_size") or 64, origin, line, "block_size", least=1)
        self.scope = self.name if row.get("hash_id_scope", "local") == "local" else ""
        self._turns: dict[str, int] = {}

    def rows(self) -> Iterator[Raw]:
        """Yield every request, subagents' too, in the order of the file."""
        return self._agent(self.row.get("requests"), self.name, None, self.begin, 0)

    def _agent(self, requests: object, session: str, caller: str | None, begin: int, depth: int) -> Iterator[Raw]:
        if not isinstance(requests, list) or depth > DEEPEST:
            raise TraceError(self.origin, self.line, f"requests must be a list (nested at most {DEEPEST} deep)")
        last = caller
        running: list[tuple[int, str]] = []  # subagents nobody waited for yet: recorded end, id of the last request
        first = True
        for request in requests:
            if _at(request, "type") == "subagent":
                rows = list(self._agent(_at(request, "requests"), f"{session}/{_at(request, 'agent_id')}", last, self._start(request, begin), depth + 1))
                own = [row for row in rows if row.session == f"{session}/{_at(request, 'agent_id')}"]
                if own:
                    running.append((max(row.time_ps if row.end_ps is None else row.end_ps for row in own), own[-1].id))
                yield from rows
                continue
            row = self._request(request, session, begin)
            joined = [name for end, name in running if end <= row.time_ps]
            running = [(end, name) for end, name in running if end > row.time_ps]
            row.after = tuple([caller, *joined] if first and caller is not None else joined)
            first, last = False, row.id
            yield row

    def _start(self, subagent: Any, begin: int) -> int:
        """Return what a subagent's times count from: its own start if they are smaller than that, else the conversation's."""
        own, inner = _at(subagent, "t"), _at(subagent, "requests")
        if own is None or not isinstance(inner, list):
            return begin
        at = ps_of(own, PS, self.origin, self.line, "t")
        times = [ps_of(t, PS, self.origin, self.line, "t") for request in inner if (t := _at(request, "t")) is not None]
        return begin + at if times and times[0] < at else begin

    def _request(self, request: Any, session: str, begin: int) -> Raw:
        origin, line = self.origin, self.line
        turn = self._turns.get(session, 0)
        self._turns[session] = turn + 1
        ids, think, took = _at(request, "hash_ids"), _at(request, "think_time"), _at(request, "api_time")
        start = begin + ps_of(_need(request, origin, line, "t"), PS, origin, line, "t")
        return Raw(
            line, start, tokens_of(_need(request, origin, line, "in"), origin, line, "in", least=1),
            tokens_of(_need(request, origin, line, "out"), origin, line, "out"), None if ids is None else ids_of(ids, origin, line), self.block, self.scope,
            id=f"{session}#{turn}", session=session, turn=turn, think_ps=None if think is None else ps_of(think, PS, origin, line, "think_time"),
            end_ps=None if took is None else start + ps_of(took, PS, origin, line, "api_time"),
        )  # fmt: skip
