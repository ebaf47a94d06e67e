"""What every trace reader yields: one row as the file states it, or a row that is skipped with its reason."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass, field
from fractions import Fraction

import msgspec

from kvsim.errors import TraceError

PS = 10**12
MAX_TOKENS = 1 << 40


class Raw(msgspec.Struct, gc=False):
    """One request as its file states it. Times are absolute integer ps; ``ids`` are block ids of ``block`` tokens inside ``scope``.

    ``end_ps``: recorded end; ``cached``: recorded cached tokens; ``text``: content by characters (hashed later), tokens estimated. ``file``: its shard, in a folder of several.
    ``after``: requests it waits for; ``parent``: the session that called its session, where a file says only that.
    """

    line: int
    time_ps: int
    input: int
    output: int
    ids: list[int] | None = None
    block: int = 0
    scope: str = ""
    id: str = ""
    session: str | None = None
    turn: int = 0
    end_ps: int | None = None
    cached: int | None = None
    priority: int | None = None
    tenant: str = ""
    max_new: int | None = None
    think_ps: int | None = None
    prompt: list[list[int]] | None = None
    output_first: int | None = None
    file: str = ""
    after: tuple[str, ...] = ()
    parent: str | None = None


class Skip(msgspec.Struct, gc=False):
    """A row that is no request to replay: its line and why."""

    line: int
    reason: str


@dataclass(slots=True)
class ReadReport:
    """What reading found besides requests: skipped rows by reason (count, first lines), rows out of order, how content is known."""

    skipped: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    out_of_order: int = 0
    rows: int = 0
    content: str = ""
    unit: str = ""
    notes: list[str] = field(default_factory=list)

    def skip(self, row: Skip) -> None:
        """Count a skipped row; the first ten lines of each reason are kept."""
        count, lines = self.skipped.get(row.reason, (0, []))
        self.skipped[row.reason] = (count + 1, [*lines, row.line] if len(lines) < 10 else lines)


def ps_of(value: object, unit: int, origin: str, line: int, name: str) -> int:
    """Return integer ps of a number in units of ``unit`` ps, exactly (no float drift). Raises TraceError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TraceError(origin, line, f"{name} is {value!r:.60}; must be a number")
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise TraceError(origin, line, f"{name} is {value}; must be finite")
        found = _scaled(repr(value), unit)
    else:
        found = value * unit
    if found < 0:
        raise TraceError(origin, line, f"{name} is {value}; a negative time is not allowed")
    if found > 10**24 * 10**10:
        raise TraceError(origin, line, f"{name} is {value!r:.30}; too large for a time")
    return found


def _scaled(text: str, unit: int) -> int:
    """Return the decimal number ``text`` in units of ``unit``, rounded towards zero: exact at any number of digits."""
    if text.replace(".", "", 1).isdigit():
        return decimal_ps(text, unit)
    return int(Fraction(text) * unit)


def decimal_ps(text: str, unit: int) -> int:
    """Return integer ps of ASCII decimal text (digits, at most one point) in units of ``unit`` ps, exactly."""
    whole, _, part = text.partition(".")
    return int(whole + part) * unit // 10 ** len(part) if part else int(whole) * unit


def tokens_of(value: object, origin: str, line: int, name: str, *, least: int = 0) -> int:
    """Return a token count. Raises TraceError for text, negatives, fractions, nonsense."""
    if isinstance(value, float) and value == value and abs(value) < MAX_TOKENS and value == int(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_TOKENS:
        raise TraceError(origin, line, f"{name} is {value!r:.60}; must be a whole number from {least} to {MAX_TOKENS:,}")
    return value


def count_or_none(value: object, origin: str, line: int, name: str, limit: int = 1 << 62) -> int | None:
    """Return a whole number from 0 that a file may leave out. Raises TraceError for anything else."""
    if value is None:
        return None
    if isinstance(value, float) and value == value and abs(value) < 1 << 53 and value == int(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
        raise TraceError(origin, line, f"{name} is {value!r:.60}; must be a whole number from 0, or absent")
    return value


_MINUTES: dict[str, int] = {}  # the beginning of a date and time -> ps: logs have thousands of rows in one minute
_SECONDS = re.compile(r"([0-5]\d)(?:\.(\d{1,12})\d*)?(?:\+00:00|Z)?")


def log_date_ps(text: str, origin: str, line: int, name: str) -> int:
    """Return the same as ``date_ps``, faster for the rows of one log."""
    start, found = _MINUTES.get(text[:17]), _SECONDS.fullmatch(text, 17)
    if start is None or found is None:
        value = date_ps(text, origin, line, name)
        if found is not None:
            if len(_MINUTES) > 10_000:
                _MINUTES.clear()
            _MINUTES[text[:17]] = date_ps(text[:17] + "00", origin, line, name)
        return value
    part = found[2]
    return start + int(found[1]) * PS + (int(part) * 10 ** (12 - len(part)) if part else 0)


_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})[ T](\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,12})\d*)?\s*(Z|[+-]\d{2}:?\d{2})?")
_EPOCH = datetime.date(1970, 1, 1).toordinal()


def date_ps(text: str, origin: str, line: int, name: str) -> int:
    """Return integer ps since 1970 of a date and time with up to 12 fractional digits and a zone (none: UTC). Raises TraceError."""
    found = _DATE.fullmatch(text.strip())
    try:
        if found is None:
            raise ValueError
        year, month, day, hour, minute, second = map(int, found.group(1, 2, 3, 4, 5, 6))
        days = datetime.date(year, month, day).toordinal() - _EPOCH
        if hour > 23 or minute > 59 or second > 60:
            raise ValueError
    except ValueError:
        raise TraceError(origin, line, f"{name} is {text!r:.60}; expected a date like 2024-05-10 00:00:00.009930+00:00") from None
    zone = 0
    if found[8] and found[8] != "Z":
        digits = found[8].replace(":", "")
        zone = (int(digits[1:3]) * 60 + int(digits[3:5])) * (1 if digits[0] == "+" else -1)
    seconds = days * 86400 + hour * 3600 + (minute - zone) * 60 + second
    return seconds * PS + int((found[7] or "0").ljust(12, "0"))


def epoch_unit(value: float) -> int | None:
    """Return the unit (ps) an epoch number is in: seconds for 1e9..1e11, ms for 1e12..1e14, us, ns; None for anything else."""
    if value < 1e9:
        return None
    for low, high, unit in ((1e9, 1e11, PS), (1e12, 1e14, 10**9), (1e15, 1e17, 10**6), (1e18, 1e20, 10**3)):
        if low <= value < high:
            return unit
    return None
