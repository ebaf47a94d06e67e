"""From raw rows to requests: origin moved to the first record, order restored, content made of ids or of what sessions imply."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator

from kvsim.content import Runs, canonical, join
from kvsim.errors import TraceError
from kvsim.workload.chains import Chains
from kvsim.workload.mooncake import OUTPUT_BASE, fitting_block
from kvsim.workload.raw import Raw, ReadReport, Skip
from kvsim.workload.recent import Recent
from kvsim.workload.spec import RequestSpec

WINDOW = 20_000
#: Where the made-up content of sessions begins, and how far apart two of them are: a conversation is one run that grows.
SESSION_BASE = 1 << 80
SESSION_APART = 1 << 42


def in_order(rows: Iterable[Raw | Skip], report: ReadReport, origin: str) -> Iterator[Raw]:
    """Yield requests by time; rows out of order by at most a window are put in place and counted."""
    window: deque[Raw] = deque()
    last = -1
    for row in rows:
        if isinstance(row, Skip):
            report.skip(row)
            continue
        report.rows += 1
        if window and row.time_ps < window[-1].time_ps:
            report.out_of_order += 1
            if row.time_ps < last:
                raise TraceError(row.file or origin, row.line, f"out of order by more than {WINDOW:,} rows; sort the file first")
            insort(window, row, key=_time)
        else:
            window.append(row)
        if len(window) > WINDOW:
            last = window[0].time_ps
            yield window.popleft()
    yield from window


def _time(row: Raw) -> int:
    return row.time_ps


class Assembler:
    """Makes RequestSpecs. Keeps, per session, the content of its last turn (for formats without ids)."""

    def __init__(self, report: ReadReport, origin: str, *, zero_outputs: str = "skip", cut_sessions: bool = True) -> None:
        self.report, self.origin, self.zero_outputs = report, origin, zero_outputs
        self._chains: dict[tuple[str, int], Chains] = {}
        self._sessions: Recent[str, tuple[Runs, int, int, str]] = Recent()
        self._called: dict[str, dict[str, tuple[int, str]]] = {}  # caller -> session it called -> (end, id) of its last request
        self._conversations = 0
        self._fresh = OUTPUT_BASE
        self._first: int | None = None
        self._count = 0

    def specs(self, rows: Iterable[Raw]) -> Iterator[RequestSpec]:
        """Yield the requests of rows in order of time."""
        for row in rows:
            if self._first is None:
                self._first = row.time_ps
            if row.output == 0 and self.zero_outputs == "skip":
                self.report.skip(Skip(row.line, "zero output tokens"))
                continue
            yield self._spec(row)
        if self._sessions.forgotten:
            self.report.notes.append(
                f"{self._sessions.forgotten:,} sessions were forgotten after {self._sessions.limit:,} others: "
                "a later turn of one of them was taken for a new conversation"
            )

    def _take(self, tokens: int) -> int:
        first = self._fresh
        self._fresh += tokens + 1
        return first

    def _spec(self, row: Raw) -> RequestSpec:
        self._count += 1
        assert self._first is not None
        output = max(row.output, 1)
        known = self._sessions.get(row.session) if row.session is not None else None
        turn = row.turn or (known[2] + 1 if known is not None else 0)
        prompt = self._prompt(row, known)
        first = row.output_first if row.output_first is not None else self._after(prompt, output)
        name = row.id or str(self._count)
        if row.parent is not None or self._called:
            row.after = (*row.after, *self._waits(row, name, known is None))
        if row.session is not None:
            self._sessions.set(row.session, (join(prompt, ((first, output),)), row.input + output, turn, name))
        out = RequestSpec(
            name, row.time_ps - self._first, prompt, row.input, output, first, row.max_new, row.session, turn,
            row.scope, row.tenant, row.priority, recorded_cached_tokens=row.cached, think_ps=row.think_ps,
        )  # fmt: skip
        if row.after:
            out.after = row.after
        if row.end_ps is not None:
            out.recorded_end_ps = row.end_ps - self._first
        return out

    def _waits(self, row: Raw, name: str, first: bool) -> list[str]:
        """Return what a request waits for, where sessions have parents: its caller's last request, called sessions that have ended by its start."""
        out = []
        caller = self._sessions.get(row.parent) if row.parent is not None and first else None
        if caller is not None:
            out.append(caller[3])
        called = self._called.get(row.session, {}) if row.session is not None else {}
        for session, (end, last) in list(called.items()):
            if end <= row.time_ps:
                out.append(last)
                del called[session]
        if row.parent is not None and row.session is not None:
            self._called.setdefault(row.parent, {})[row.session] = (row.time_ps if row.end_ps is None else row.end_ps, name)
        return out

    def _prompt(self, row: Raw, known: tuple[Runs, int, int, str] | None) -> Runs:
        if row.prompt is not None:
            return canonical(row.prompt)
        if row.ids is not None:
            return self._from_ids(row)
        if known is None or known[1] > row.input:
            return ((self._take(row.input) if row.session is None else self._conversation(), row.input),)
        history, size = known[:2]
        rest = row.input - size
        return join(history, ((self._after(history, rest), rest),)) if rest else history

    def _conversation(self) -> int:
        self._conversations += 1
        return SESSION_BASE + self._conversations * SESSION_APART

    def _after(self, text: Runs, tokens: int) -> int:
        """Return where what follows ``text`` begins: a made-up conversation goes on, anything else is followed by fresh tokens."""
        first, count = text[-1]
        return first + count if first >= SESSION_BASE else self._take(tokens)

    def _from_ids(self, row: Raw) -> Runs:
        assert row.ids is not None
        block, count = row.block, len(row.ids)
        if not row.input // block <= count <= -(-row.input // block):
            fits = fitting_block(row.input, count)
            raise TraceError(
                row.file or self.origin, row.line,
                f"expected {-(-row.input // block)} id(s) for {row.input} tokens at block size {block}, found {count}; a block size of {fits} would fit",
            )  # fmt: skip
        chains = self._chains.setdefault((row.scope, block), Chains(block))
        runs = chains.runs(row.ids, row.input)
        if runs and runs[-1][0] == -1:
            return (*runs[:-1], (self._take(runs[-1][1]), runs[-1][1]))
        return runs
