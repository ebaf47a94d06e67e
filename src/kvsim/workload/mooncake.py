"""Mooncake JSONL: ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids`` (one per block, chained by prefix)."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from kvsim.errors import TraceError
from kvsim.workload.chains import Chains
from kvsim.workload.raw import ReadReport, Skip, epoch_unit, ps_of
from kvsim.workload.spec import RequestSpec

DEFAULT_BLOCK = 512
WINDOW = 2_000
PS_PER_MS = 1_000_000_000
#: Fresh output tokens start here: far above every token of a block id below 2^50.
OUTPUT_BASE = 1 << 70


class MooncakeRow(msgspec.Struct, gc=False):
    """One line; other keys are counted, not read."""

    timestamp: int | float
    input_length: int
    output_length: int
    hash_ids: list[int] = []


def read_mooncake(
    lines: Iterable[bytes],
    origin: str,
    report: ReadReport,
    *,
    block: int = DEFAULT_BLOCK,
    scale_ps: int = PS_PER_MS,
    zero_outputs: str = "skip",
) -> Iterator[RequestSpec]:
    """Yield one request per line. Raises TraceError with file and line.

    Times are from the first line. A tail without an id, and output, are fresh tokens.
    """
    chains = Chains(block)
    fresh = OUTPUT_BASE
    first: int | None = None
    for number, at, row in _by_time(_typed_rows(lines, origin, block, scale_ps), report, origin):
        if first is None:
            first = at
        if row.output_length == 0 and zero_outputs == "skip":
            report.skip(Skip(number, "zero output tokens"))
            continue
        runs = chains.runs(row.hash_ids, row.input_length)
        if runs and runs[-1][0] == -1:
            runs = (*runs[:-1], (fresh, runs[-1][1]))
            fresh += runs[-1][1] + 1
        output = row.output_length or 1
        yield RequestSpec(str(number), at - first, runs, row.input_length, output, fresh)
        fresh += output + 1


Timed = tuple[int, int, MooncakeRow]


def _typed_rows(lines: Iterable[bytes], origin: str, block: int, scale_ps: int) -> Iterator[Timed]:
    """Yield (line, ps, row). Raises TraceError with file and line."""
    decode = msgspec.json.Decoder(MooncakeRow).decode
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TraceError(origin, number, f"not a Mooncake row: {error}") from None
        _check(row, block, origin, number)
        stamp = row.timestamp
        if stamp > 1e9:
            scale_ps = epoch_unit(stamp) or scale_ps
        yield number, stamp * scale_ps if isinstance(stamp, int) else ps_of(stamp, scale_ps, origin, number, "timestamp"), row


def _by_time(rows: Iterator[Timed], report: ReadReport, origin: str) -> Iterator[Timed]:
    """Yield rows by time: those out of order by at most a window are put in place and counted."""
    window: deque[Timed] = deque()
    newest = last = -1
    for row in rows:
        report.rows += 1
        if row[1] < newest:
            report.out_of_order += 1
            if row[1] < last:
                raise TraceError(origin, row[0], f"out of order by more than {WINDOW:,} rows; sort the file first")
            insort(window, row, key=lambda timed: timed[1])
        else:
            newest = row[1]
            window.append(row)
        if len(window) > WINDOW:
            last = window[0][1]
            yield window.popleft()
    yield from window


def fitting_block(tokens: int, count: int) -> int:
    """Return a block size for which ``count`` ids fit ``tokens`` tokens: a usual one if there is one."""
    usual = (16, 32, 64, 128, 256, 512, 1024, 2048)
    return next((size for size in usual if tokens // size <= count <= -(-tokens // size)), -(-tokens // max(count, 1)))


def _check(row: MooncakeRow, block: int, origin: str, number: int) -> None:
    if row.input_length < 1 or row.output_length < 0 or row.input_length > 1 << 40 or row.output_length > 1 << 40:
        raise TraceError(origin, number, f"lengths are {row.input_length} and {row.output_length}; allowed: input from 1, output from 0")
    if not 0 <= row.timestamp < 1 << 53:
        raise TraceError(origin, number, f"timestamp is {row.timestamp}; allowed: from 0 (ms)")
    count = len(row.hash_ids)
    if count and not row.input_length // block <= count <= -(-row.input_length // block):
        fits = fitting_block(row.input_length, count)
        raise TraceError(
            origin,
            number,
            f"expected {-(-row.input_length // block)} id(s) for {row.input_length} tokens at block size {block}, found {count}; a block size of {fits} would fit",
        )
