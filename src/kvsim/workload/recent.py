"""Bounded memory for streams: a mapping that forgets who was not met for long, and counts of arrivals at any length of a trace."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

#: Sessions a reader keeps in mind: one is forgotten when so many others came since it was last met.
SESSIONS = 1_000_000


class Recent(Generic[K, V]):
    """A mapping of the last ``limit`` to twice ``limit`` keys that were set or found; ``forgotten`` counts the others.

    Two generations: when the young one is full, the old one is dropped and takes its place, so every operation costs the same.
    """

    def __init__(self, limit: int = SESSIONS) -> None:
        self.limit, self.forgotten = limit, 0
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None for a key that was never set or is forgotten."""
        found = self._young.get(key)
        if found is None and self._old:
            found = self._old.pop(key, None)
            if found is not None:
                self.set(key, found)
        return found

    def set(self, key: K, value: V) -> None:
        """Set the value of a key."""
        self._young[key] = value
        if self._old:
            self._old.pop(key, None)
        if len(self._young) >= self.limit:
            self.forgotten += len(self._old)
            self._old, self._young = self._young, {}

    def __len__(self) -> int:
        """The keys in mind."""
        return len(self._young) + len(self._old)


class Timeline:
    """How many arrivals fell where: exact up to 65,536 of them, above in 4,096 bins whose width doubles as the trace goes on."""

    EXACT = 65_536
    BINS = 4_096

    def __init__(self) -> None:
        self.last_ps = 0
        self._times: array[int] | None = array("q")
        self._counts = [0] * self.BINS
        self._width = 1

    def add(self, at_ps: int) -> None:
        """Count an arrival (integer ps, kept in microseconds)."""
        self.last_ps = max(self.last_ps, at_ps)
        at = at_ps // 1_000_000
        if self._times is None:
            self._count(at)
            return
        self._times.append(at)
        if len(self._times) > self.EXACT:
            for time in self._times:
                self._count(time)
            self._times = None

    def _count(self, at: int) -> None:
        while at >= self._width * self.BINS:
            pairs = zip(self._counts[::2], self._counts[1::2], strict=True)
            self._counts = [a + b for a, b in pairs] + [0] * (self.BINS // 2)
            self._width *= 2
        self._counts[at // self._width] += 1

    def rates(self, slices: int) -> list[float]:
        """Return the arrivals per second in equal slices of the span; a bin on a border is shared out by its parts."""
        span_s = self.last_ps * 1e-12
        if span_s <= 0:
            return []
        length = self.last_ps * 1e-6 / slices  # in microseconds
        counts = [0.0] * slices
        if self._times is not None:
            for at in self._times:
                counts[min(int(at / length), slices - 1)] += 1
        else:
            for number, count in enumerate(self._counts):
                if count:
                    _share(counts, number * self._width / length, (number + 1) * self._width / length, count)
        return [count / (span_s / slices) for count in counts]


def _share(counts: list[float], low: float, high: float, count: int) -> None:
    """Add ``count`` to the slices from ``low`` to ``high``; what lies behind the last one belongs to it."""
    last = len(counts) - 1
    at = low
    while at < high:
        slot = int(at)
        end = high if slot >= last else min(slot + 1.0, high)
        counts[min(slot, last)] += count * (end - at) / (high - low)
        at = end
