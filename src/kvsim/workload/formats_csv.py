"""CSV traces: Azure 2023, 2024 and 2025, BurstGPT old and new, and any CSV with a column map."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping

from kvsim.errors import TraceError
from kvsim.workload.raw import PS, Raw, Skip, date_ps, epoch_unit, ps_of, tokens_of

csv.field_size_limit(1 << 20)


def _rows(lines: Iterable[str], origin: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, row by lower-case column name)."""
    reader = csv.reader(lines)
    try:
        header = [name.strip().lstrip("\ufeff").lower() for name in next(reader)]
    except StopIteration:
        raise TraceError(origin, None, "empty file") from None
    except csv.Error as error:
        raise TraceError(origin, 1, f"not a CSV header: {error}") from None
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise TraceError(origin, reader.line_num, f"not CSV: {error}") from None
        if not row or not any(cell.strip() for cell in row):
            continue
        if len(row) != len(header):
            raise TraceError(origin, reader.line_num, f"{len(row)} cells, the header has {len(header)}")
        yield reader.line_num, dict(zip(header, (cell.strip() for cell in row), strict=True))


def _number(text: str, origin: str, line: int, name: str) -> int | float:
    try:
        return int(text) if len(text) < 30 else int(float(text))
    except (ValueError, OverflowError):
        pass
    try:
        value = float(text)
    except ValueError:
        raise TraceError(origin, line, f"{name} is {text!r:.60}; must be a number") from None
    if value != value or abs(value) > 1e30:
        raise TraceError(origin, line, f"{name} is {text!r:.60}; must be a finite number")
    return value


def _column(row: Mapping[str, str], name: str, origin: str, line: int) -> str:
    if name.lower() not in row:
        raise TraceError(origin, line, f"no column '{name}'; the columns are {', '.join(row)}")
    return row[name.lower()]


def azure(lines: Iterable[str], origin: str) -> Iterator[Raw | Skip]:
    """Yield the rows of an Azure LLM inference CSV: TIMESTAMP, ContextTokens, GeneratedTokens (2025: NumImages)."""
    for line, row in _rows(lines, origin):
        time = date_ps(_column(row, "TIMESTAMP", origin, line), origin, line, "TIMESTAMP")
        prompt = tokens_of(
            _number(_column(row, "ContextTokens", origin, line), origin, line, "ContextTokens"), origin, line, "ContextTokens", least=1
        )
        output = tokens_of(
            _number(_column(row, "GeneratedTokens", origin, line), origin, line, "GeneratedTokens"), origin, line, "GeneratedTokens"
        )
        yield Raw(line, time, prompt, output)


def burstgpt(lines: Iterable[str], origin: str) -> Iterator[Raw | Skip]:
    """Yield the rows of a BurstGPT CSV; seconds from day 0; no response tokens means a failure."""
    for line, row in _rows(lines, origin):
        time = ps_of(_number(_column(row, "Timestamp", origin, line), origin, line, "Timestamp"), PS, origin, line, "Timestamp")
        prompt = tokens_of(
            _number(_column(row, "Request tokens", origin, line), origin, line, "Request tokens"), origin, line, "Request tokens"
        )
        output = tokens_of(
            _number(_column(row, "Response tokens", origin, line), origin, line, "Response tokens"), origin, line, "Response tokens"
        )
        if prompt == 0:
            yield Skip(line, "no request tokens")
            continue
        took = row.get("elapsed time") or None
        end = None if took is None else time + ps_of(_number(took, origin, line, "Elapsed time"), PS, origin, line, "Elapsed time")
        yield Raw(line, time, prompt, output, session=row.get("session id") or None, end_ps=end)


def mapped(lines: Iterable[str], origin: str, columns: Mapping[str, str], unit: int | None) -> Iterator[Raw | Skip]:
    """Yield the rows of any CSV; ``columns`` maps time, input, output (and id, session, cached) to column names."""
    for name in ("time", "input", "output"):
        if name not in columns:
            raise TraceError(origin, None, f"workload.columns must name the columns of time, input and output; '{name}' is missing")
    for line, row in _rows(lines, origin):
        text = _column(row, columns["time"], origin, line)
        time = _time(text, origin, line, columns["time"], unit)
        prompt = tokens_of(
            _number(_column(row, columns["input"], origin, line), origin, line, columns["input"]), origin, line, columns["input"], least=1
        )
        output = tokens_of(
            _number(_column(row, columns["output"], origin, line), origin, line, columns["output"]), origin, line, columns["output"]
        )
        out = Raw(line, time, prompt, output)
        if "session" in columns:
            out.session = _column(row, columns["session"], origin, line) or None
        if "id" in columns:
            out.id = _column(row, columns["id"], origin, line)
        if "cached" in columns:
            out.cached = tokens_of(
                _number(_column(row, columns["cached"], origin, line), origin, line, columns["cached"]), origin, line, columns["cached"]
            )
        yield out


def _time(text: str, origin: str, line: int, name: str, unit: int | None) -> int:
    if "-" in text[1:] and ":" in text:
        return date_ps(text, origin, line, name)
    value = _number(text, origin, line, name)
    return ps_of(value, unit or epoch_unit(value) or PS, origin, line, name)
