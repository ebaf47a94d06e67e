"""Numbers with units, read and written. SI inside: bytes, seconds, per second. GB is 1e9, GiB is 2^30, never mixed."""

from __future__ import annotations

import math
import re
from fractions import Fraction

BYTES = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
TIMES = {
    "": Fraction(1),
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "ns": Fraction(1, 10**9),
    "ps": Fraction(1, 10**12),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
COUNTS = {"": 1, "k": 10**3, "K": 2**10, "M": 10**6, "G": 10**9}

GIB = 2**30
_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_,]*)(?:\.\d*)?(?:[eE][+-]?\d+)?|[+-]?\.\d+(?:[eE][+-]?\d+)?)\s*([a-zA-Zµ%/]*)\s*")
_HUGE = 400  # digits: beyond any quantity of this field


def _split(value: object, what: str) -> tuple[Fraction, str]:
    """Return (number, unit text); ValueError says what is wrong."""
    if isinstance(value, bool):
        raise ValueError(f"{what} cannot be {str(value).lower()} (YAML reads yes, no, on and off as true or false)")
    if isinstance(value, int):
        if value.bit_length() > 1300:
            raise ValueError(f"{what} is too large")
        return Fraction(value), ""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{what} must be a finite number")
        return Fraction(str(value)), ""
    if not isinstance(value, str):
        raise ValueError(f"{what} must be a number, perhaps with a unit")
    found = _NUMBER.fullmatch(value) if len(value) < _HUGE else None
    if found is None:
        raise ValueError(f"{what} must be a number, perhaps with a unit")
    digits = found.group(1).replace(",", "").replace("_", "")
    mantissa, _, exponent = digits.lower().partition("e")
    if exponent and abs(int(exponent)) > 100:
        raise ValueError(f"{what} is too large")
    return Fraction(mantissa) * Fraction(10) ** int(exponent or 0), found.group(2)


def parse_bytes(value: object) -> int:
    """Return bytes of ``358GB``, ``512GiB``, ``1024``. Raises ValueError."""
    number, unit = _split(value, "a size")
    if unit not in BYTES:
        raise ValueError(f"unknown unit of size '{unit}'; allowed: {', '.join(u for u in BYTES if u)}")
    return round(number * BYTES[unit])


def parse_rate(value: object) -> float:
    """Return bytes per second of ``64GB/s``. Raises ValueError."""
    number, unit = _split(value, "a rate")
    size = unit.removesuffix("/s")
    if size not in BYTES or (unit and not unit.endswith("/s")):
        raise ValueError(f"unknown unit of rate '{unit}'; allowed: GB/s, GiB/s, MB/s, ...")
    return float(number * BYTES[size])


def parse_time(value: object) -> Fraction:
    """Return seconds, exactly, of ``20us``, ``10s``, ``1.5``. Raises ValueError."""
    number, unit = _split(value, "a time")
    if unit not in TIMES:
        raise ValueError(f"unknown unit of time '{unit}'; allowed: {', '.join(u for u in TIMES if u)}")
    return number * TIMES[unit]


def parse_seconds(value: object) -> float:
    """Return seconds as a float. Raises ValueError."""
    return float(parse_time(value))


def parse_ps(value: object) -> int:
    """Return integer picoseconds. Raises ValueError."""
    return round(parse_time(value) * 10**12)


def parse_count(value: object) -> int:
    """Return a whole number of ``8192``, ``1k`` (1000), ``1K`` (1024), ``1e6``. Raises ValueError."""
    number, unit = _split(value, "a count")
    if unit not in COUNTS:
        raise ValueError(f"unknown unit of a count '{unit}'; allowed: k (1000), K (1024), M, G")
    whole = number * COUNTS[unit]
    if whole.denominator != 1:
        raise ValueError("a count must be a whole number")
    return int(whole)


def parse_number(value: object) -> float:
    """Return a plain number (or one with k, M, G). Raises ValueError."""
    number, unit = _split(value, "a number")
    if unit == "%":
        return float(number / 100)
    if unit not in COUNTS:
        raise ValueError(f"unknown unit '{unit}'")
    return float(number * COUNTS[unit])


def gb(value: float) -> str:
    """Return bytes as decimal gigabytes: ``44.75 GB``."""
    return f"{value / 1e9:,.2f} GB"


def gib(value: float) -> str:
    """Return bytes as binary gigabytes: ``72.30 GiB``."""
    return f"{value / GIB:,.2f} GiB"
