"""Step times from a user's own measurements: a CSV, interpolated, and never extrapolated in silence.

Columns: ``kind,new_tokens,cached_tokens,batch,sum_context,latency_ms`` (``max_context`` is accepted and unused). Rows
of kind ``decode`` need batch and sum_context, rows of kind ``prefill`` new_tokens and cached_tokens (one request).
"""

from __future__ import annotations

import csv
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvsim.cost.piecewise import Curve, PiecewiseDecode
from kvsim.errors import Infeasible, TraceError

PS_PER_MS = 10**9
COLUMNS = ("kind", "new_tokens", "cached_tokens", "batch", "sum_context", "latency_ms")
REFUSE, NEAREST = "refuse", "extend"

#: One measured line: sorted (position, ps).
Line = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Steps:
    """Measured steps: ``decode[batch]`` and ``prefill[new_tokens]`` are lines over the mean context and the cached
    tokens."""

    decode: dict[int, Line]
    prefill: dict[int, Line]
    source: str = "table"
    notes: tuple[str, ...] = field(default=())


def read_steps(path: Path) -> Steps:
    """Return the measured steps of a CSV file. Raises TraceError with file and row for anything that is not a
    measurement."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return steps_of(csv.reader(file), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(str(path), None, f"cannot be read as a CSV of steps: {error}") from error


def steps_of(lines: Iterable[Sequence[str]], source: str) -> Steps:
    """Return the measured steps of CSV rows, the first of which names the columns."""
    rows = iter(lines)
    header = [name.strip() for name in next(rows, [])]
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise TraceError(source, 1, f"columns {', '.join(missing)} are missing; a table of steps has {','.join(COLUMNS)}")
    decode: dict[int, dict[int, list[int]]] = {}
    prefill: dict[int, dict[int, list[int]]] = {}
    for number, cells in enumerate(rows, start=2):
        if any(cell.strip() for cell in cells):
            _take(dict(zip(header, cells, strict=False)), source, number, decode, prefill)
    if not decode and not prefill:
        raise TraceError(source, None, "holds no measured step")
    notes: list[str] = []
    return Steps(_lines(decode, notes), _lines(prefill, notes), source, tuple(notes))


def _take(
    row: dict[str, str],
    source: str,
    number: int,
    decode: dict[int, dict[int, list[int]]],
    prefill: dict[int, dict[int, list[int]]],
) -> None:
    kind = row.get("kind", "").strip()
    latency = _number(row, "latency_ms", source, number)
    if not latency > 0:
        raise TraceError(source, number, f"latency_ms is {row.get('latency_ms')!r}; a step takes more than 0 ms")
    if kind == "decode":
        batch, context = (int(_number(row, name, source, number)) for name in ("batch", "sum_context"))
        if batch < 1 or context < 0:
            raise TraceError(source, number, f"decode needs batch >= 1 and sum_context >= 0, got {batch} and {context}")
        decode.setdefault(batch, {}).setdefault(context // batch, []).append(round(latency * PS_PER_MS))
    elif kind == "prefill":
        new, cached = (int(_number(row, name, source, number)) for name in ("new_tokens", "cached_tokens"))
        if new < 1 or cached < 0:
            raise TraceError(source, number, f"prefill needs new_tokens >= 1 and cached_tokens >= 0, got {new} and {cached}")
        prefill.setdefault(new, {}).setdefault(cached, []).append(round(latency * PS_PER_MS))
    else:
        raise TraceError(source, number, f"kind is {kind!r}; allowed: decode, prefill")


def _number(row: dict[str, str], name: str, source: str, number: int) -> float:
    text = (row.get(name) or "").strip()
    try:
        value = float(text)
    except ValueError:
        raise TraceError(source, number, f"{name} is {text!r}, not a number") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise TraceError(source, number, f"{name} is {text!r}, not a finite number")
    return value


def _lines(points: dict[int, dict[int, list[int]]], notes: list[str]) -> dict[int, Line]:
    """Return the mean of repeated measurements per point, made non-decreasing along each line (noise; said in the
    notes)."""
    result: dict[int, Line] = {}
    raised = 0
    for key in sorted(points):
        line: Line = []
        for position in sorted(points[key]):
            values = points[key][position]
            value = sum(values) // len(values)
            if line and value < line[-1][1]:
                value, raised = line[-1][1], raised + 1
            line.append((position, value))
        result[key] = line
    if raised:
        notes.append(f"{raised} measured steps are shorter than one with less context; they were raised to it")
    return result


class TableTime(PiecewiseDecode):
    """Implements ``StepTime`` from measured steps, linear between neighbours.

    Decode: linear in context per measured batch, and linear in batch at equal mean context. Prefill: linear in cached
    and in new tokens; several requests in a step count as one with the same tokens and the same attention pairs. A
    mixed step is its prefill plus its decode step. Outside the measured range ``outside`` decides: ``refuse`` raises
    Infeasible,
    ``extend`` continues the last straight line and counts (``extended``).
    """

    def __init__(self, steps: Steps, layers: int, outside: str = REFUSE) -> None:
        super().__init__()
        self.steps, self.layers, self.outside = steps, layers, outside
        self.extended = 0
        self._batches, self._news = sorted(steps.decode), sorted(steps.prefill)

    def notes(self) -> list[str]:
        """Return what a reader must know: raised measurements, and how often the table was left."""
        left = [f"{self.extended} step shapes lie outside the measured table and were extended linearly"] if self.extended else []
        return [*self.steps.notes, *left]

    def prefill_ps(
        self,
        new_tokens: int,
        pairs2: int,
        cached_tokens: int,
        prefills: int,
        decode_batch: int,
        sum_context: int,
        max_context: int,
    ) -> int:
        """Return the time of a step that computes prompt tokens."""
        if not self._news:
            raise Infeasible(f"{self.steps.source}: no prefill step was measured, but one is needed ({new_tokens} tokens)")
        cached = max(0, (pairs2 // new_tokens - new_tokens - 1) // 2) if new_tokens else cached_tokens
        low, high = self._neighbours(self._news, new_tokens, "new_tokens")
        below = self._on_line(self.steps.prefill[low], cached, f"prefill of {low} tokens", "cached_tokens")
        above = below if low == high else self._on_line(self.steps.prefill[high], cached, f"prefill of {high} tokens", "cached_tokens")
        time = below if low == high else below + (above - below) * (new_tokens - low) // (high - low)
        return max(1, time) + (self.decode_ps(decode_batch, sum_context) if decode_batch else 0)

    def _make_curve(self, batch: int) -> Curve:
        if not self._batches:
            raise Infeasible(f"{self.steps.source}: no decode step was measured, but one is needed (batch {batch})")
        low, high = self._neighbours(self._batches, batch, "batch")
        positions = sorted({c for b in (low, high) for c, _ in self.steps.decode[b]})
        values = []
        for mean in positions:
            below, above = (_straight(self.steps.decode[b], mean) for b in (low, high))
            values.append(max(1, below if low == high else below + (above - below) * (batch - low) // (high - low)))
        starts = [mean * batch for mean in positions]
        slopes = [max(0, v1 - v0) // (s1 - s0) for s0, s1, v0, v1 in zip(starts, starts[1:], values, values[1:], strict=False)]
        slopes.append(slopes[-1] if slopes else 0)
        return _from_zero(starts, values, slopes)

    def decode_segments(self, batch: int, sum_context: int, steps: int) -> list[tuple[int, int, int]]:
        """Return the pieces of a run; checks that the whole run lies inside the measured range."""
        self._check_context(batch, sum_context)
        self._check_context(batch, sum_context + (steps - 1) * batch)
        return super().decode_segments(batch, sum_context, steps)

    def decode_ps(self, batch: int, sum_context: int) -> int:
        """Return the time of one decode step; checks that it lies inside the measured range."""
        self._check_context(batch, sum_context)
        return super().decode_ps(batch, sum_context)

    def _check_context(self, batch: int, sum_context: int) -> None:
        low, high = self._neighbours(self._batches, batch, "batch")
        mean = sum_context / batch
        first = max(self.steps.decode[b][0][0] for b in (low, high))
        last = min(self.steps.decode[b][-1][0] for b in (low, high))
        if not first <= mean <= last + 1:
            self._outside(f"a decode step of batch {batch} with mean context {mean:.0f}", f"contexts {first} to {last}")

    def _neighbours(self, known: list[int], value: int, what: str) -> tuple[int, int]:
        if not known[0] <= value <= known[-1]:
            self._outside(f"{what} {value}", f"{known[0]} to {known[-1]}")
        at = min(max(bisect_left(known, value), 0), len(known) - 1)
        if known[at] == value or len(known) == 1:
            return known[at], known[at]
        at = max(1, at)
        return known[at - 1], known[at]

    def _on_line(self, line: Line, position: int, what: str, axis: str) -> int:
        if not line[0][0] <= position <= line[-1][0]:
            self._outside(f"{what} with {axis} {position}", f"{line[0][0]} to {line[-1][0]}")
        return _straight(line, position)

    def _outside(self, what: str, measured: str) -> None:
        if self.outside == REFUSE:
            raise Infeasible(
                f"{self.steps.source}: {what} lies outside the measured range ({measured}); measure it, or set "
                "costs.outside: extend to continue the table in a straight line"
            )
        self.extended += 1


def _straight(line: Line, position: int) -> int:
    """Return the value on a broken line; beyond its ends the nearest piece is continued."""
    if len(line) == 1:
        return line[0][1]
    at = min(max(bisect_left(line, (position, 0)), 1), len(line) - 1)
    (x0, y0), (x1, y1) = line[at - 1], line[at]
    return y0 + (y1 - y0) * (position - x0) // (x1 - x0)


def _from_zero(starts: list[int], values: list[int], slopes: list[int]) -> Curve:
    """Return the curve begun at context 0: its first piece is continued to the left (flat where it would fall below 1
    ps)."""
    if starts[0] == 0:
        return starts, values, slopes
    first = values[0] - slopes[0] * starts[0]
    return ([0, *starts], [first, *values], [slopes[0], *slopes]) if first > 0 else ([0, *starts], [values[0], *values], [0, *slopes])
