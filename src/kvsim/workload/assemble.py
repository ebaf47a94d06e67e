"""From raw rows to requests: origin moved to the first record, order restored, content made of ids or of what sessions imply."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator

from kvsim.content import Runs, canonical, cut, join
from kvsim.errors import TraceError
from kvsim.workload.chains import Chains
from kvsim.workload.mooncake import OUTPUT_BASE, fitting_block
from kvsim.workload.raw import Raw, ReadReport, Skip
from kvsim.workload.spec import RequestSpec

WINDOW = 20_000


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
        self._sessions: dict[str, tuple[Runs, int, int]] = {}
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
        first = row.output_first if row.output_first is not None else self._take(output)
        if row.session is not None:
            self._sessions[row.session] = (join(prompt, ((first, output),)), row.input + output, turn)
        return RequestSpec(
            row.id or str(self._count), row.time_ps - self._first, prompt, row.input, output, first, max_new_tokens=row.max_new, session=row.session, turn=turn,
            namespace=row.scope, tenant=row.tenant, priority=row.priority, recorded_cached_tokens=row.cached,
            recorded_end_ps=None if row.end_ps is None else row.end_ps - self._first,
            think_ps=row.think_ps,
        )  # fmt: skip

    def _prompt(self, row: Raw, known: tuple[Runs, int, int] | None) -> Runs:
        if row.prompt is not None:
            return canonical(row.prompt)
        if row.ids is not None:
            return self._from_ids(row)
        if known is None or known[1] > row.input:
            return ((self._take(row.input), row.input),)
        history, size, _ = known
        rest = row.input - size
        return join(history, ((self._take(rest), rest),)) if rest else cut(history, 0, row.input)

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
