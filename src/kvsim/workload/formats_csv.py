"""CSV traces: Azure 2023, 2024 and 2025, BurstGPT old and new, and any CSV with a column map."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping

from kvsim.errors import TraceError
from kvsim.workload.raw import MAX_TOKENS, PS, Raw, Skip, decimal_ps, epoch_unit, log_date_ps, ps_of, tokens_of

csv.field_size_limit(1 << 20)


class _Table:
    """The rows of a CSV file as lists of cells, with the columns of its header found by name (in any case)."""

    def __init__(self, lines: Iterable[str], origin: str) -> None:
        self.origin, self._reader = origin, csv.reader(lines)
        try:
            self.header = [name.strip().lstrip("\ufeff").lower() for name in next(self._reader)]
        except StopIteration:
            raise TraceError(origin, None, "empty file") from None
        except csv.Error as error:
            raise TraceError(origin, 1, f"not a CSV header: {error}") from None

    def column(self, name: str) -> int:
        """Return where a column stands; of two with one name the last. Raises TraceError."""
        at = self.column_or_none(name)
        if at is None:
            raise TraceError(self.origin, 1, f"no column '{name}'; the columns are {', '.join(self.header)}")
        return at

    def column_or_none(self, name: str) -> int | None:
        """Return where a column stands, or None."""
        wanted = name.strip().lower()
        return next((at for at in reversed(range(len(self.header))) if self.header[at] == wanted), None)

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield (line, cells); blank lines are left out. Raises TraceError."""
        reader, width = self._reader, len(self.header)
        while True:
            try:
                for row in reader:
                    if len(row) == width and row[0]:
                        yield reader.line_num, row
                    elif row and any(cell.strip() for cell in row):
                        if len(row) != width:
                            raise TraceError(self.origin, reader.line_num, f"{len(row)} cells, the header has {width}")
                        yield reader.line_num, row
            except csv.Error as error:
                raise TraceError(self.origin, reader.line_num, f"not CSV: {error}") from None
            return


def _number(text: str, origin: str, line: int, name: str) -> int | float:
    text = text.strip()
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


def _tokens(text: str, origin: str, line: int, name: str, least: int = 0) -> int:
    """Return a token count; plain digits, the usual case, at once."""
    if text.isdigit() and len(text) < 13 and text.isascii() and least <= (value := int(text)) <= MAX_TOKENS:
        return value
    return tokens_of(_number(text, origin, line, name), origin, line, name, least=least)


def azure(lines: Iterable[str], origin: str) -> Iterator[Raw | Skip]:
    """Yield the rows of an Azure LLM inference CSV: TIMESTAMP, ContextTokens, GeneratedTokens (2025: NumImages)."""
    table = _Table(lines, origin)
    at, prompts, outputs = (table.column(name) for name in ("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
    for line, row in table.rows():
        time = log_date_ps(row[at], origin, line, "TIMESTAMP")
        prompt = _tokens(row[prompts], origin, line, "ContextTokens", 1)
        yield Raw(line, time, prompt, _tokens(row[outputs], origin, line, "GeneratedTokens"))


def burstgpt(lines: Iterable[str], origin: str) -> Iterator[Raw | Skip]:
    """Yield the rows of a BurstGPT CSV; seconds from day 0; no response tokens means a failure."""
    table = _Table(lines, origin)
    at, prompts, outputs = (table.column(name) for name in ("Timestamp", "Request tokens", "Response tokens"))
    took_at, session_at = table.column_or_none("Elapsed time"), table.column_or_none("Session ID")
    for line, row in table.rows():
        time = _span(row[at], origin, line, "Timestamp", PS)
        prompt = _tokens(row[prompts], origin, line, "Request tokens")
        output = _tokens(row[outputs], origin, line, "Response tokens")
        if prompt == 0:
            yield Skip(line, "no request tokens")
            continue
        took = row[took_at].strip() if took_at is not None else ""
        end = time + _span(took, origin, line, "Elapsed time", PS) if took else None
        session = row[session_at].strip() or None if session_at is not None else None
        yield Raw(line, time, prompt, output, session=session, end_ps=end)


def mapped(lines: Iterable[str], origin: str, columns: Mapping[str, str], unit: int | None) -> Iterator[Raw | Skip]:
    """Yield the rows of any CSV; ``columns`` maps time, input, output (and id, session, cached, end, tenant, namespace) to column names."""
    for name in ("time", "input", "output"):
        if name not in columns:
            raise TraceError(origin, None, f"workload.columns must name the columns of time, input and output; '{name}' is missing")
    table = _Table(lines, origin)
    at, prompts, outputs = (table.column(columns[name]) for name in ("time", "input", "output"))
    others = {name: table.column(columns[name]) for name in ("session", "id", "cached", "end", "tenant", "namespace") if name in columns}
    when, asked, answered = columns["time"], columns["input"], columns["output"]
    for line, row in table.rows():
        time = _time(row[at], origin, line, when, unit)
        out = Raw(line, time, _tokens(row[prompts], origin, line, asked, 1), _tokens(row[outputs], origin, line, answered))
        if others:
            _fill(out, row, others, columns, origin, unit)
        yield out


def _fill(out: Raw, row: list[str], others: Mapping[str, int], columns: Mapping[str, str], origin: str, unit: int | None) -> None:
    if "session" in others:
        out.session = row[others["session"]].strip() or None
    if "id" in others:
        out.id = row[others["id"]].strip()
    if "tenant" in others:
        out.tenant = row[others["tenant"]].strip()
    if "namespace" in others:
        out.scope = row[others["namespace"]].strip()
    if "end" in others and (end := row[others["end"]].strip()):
        out.end_ps = _time(end, origin, out.line, columns["end"], unit)
    if "cached" in others and row[others["cached"]].strip():
        out.cached = _tokens(row[others["cached"]], origin, out.line, columns["cached"])


def _time(text: str, origin: str, line: int, name: str, unit: int | None) -> int:
    """Return ps of a date, an epoch number or a number of ``unit`` (None: by its size, else seconds)."""
    if "-" in text[1:] and ":" in text:
        return log_date_ps(text, origin, line, name)
    return _span(text, origin, line, name, unit)


def _span(text: str, origin: str, line: int, name: str, unit: int | None) -> int:
    if len(text) <= 20 and text.isascii() and text.replace(".", "", 1).isdigit():
        return decimal_ps(text, unit or epoch_unit(float(text)) or PS)
    value = _number(text, origin, line, name)
    return ps_of(value, unit or epoch_unit(value) or PS, origin, line, name)
