"""The lru CPU tier of OffloadingConnector kept as extents: cost per stretch of keys, not per key.

The queue of idle keys is a linked list of extents. A touched prefix is re-used tail first (``up`` False), keys that became
idle when a copy completed head first (``up`` True). Unlike on the device, holes are possible: extents are found by
bisection.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.content import Runs


class Stretch:
    """Keys ``lo .. hi - 1`` in the same state. ``loads``: running loads, -1: not ready; links of the queue while idle."""

    __slots__ = ("after", "before", "hi", "lo", "loads", "shield", "up")

    def __init__(self, lo: int, hi: int, loads: int) -> None:
        self.lo, self.hi, self.loads = lo, hi, loads
        self.up = True
        self.shield = 0
        self.before: Stretch | None = None
        self.after: Stretch | None = None


class LruTier:
    """See ``vllm_offload.CpuTier``: the same attributes and methods with the same meaning."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.resident = 0
        self.idle = 0
        self.evicted = 0
        self._los: list[int] = []
        self._by_lo: dict[int, Stretch] = {}
        self._shield = 0
        self._head, self._tail = Stretch(0, 0, 0), Stretch(0, 0, 0)
        self._head.after, self._tail.before = self._tail, self._head

    # ------------------------------------------------------------------ finding
    def _over(self, first: int, count: int) -> list[Stretch]:
        """Return the stretches that have keys in [first, first + count), ascending."""
        los = self._los
        at = bisect_right(los, first) - 1
        out: list[Stretch] = []
        if at >= 0:
            stretch = self._by_lo[los[at]]
            if stretch.hi > first:
                out.append(stretch)
        at += 1
        end = first + count
        while at < len(los) and los[at] < end:
            out.append(self._by_lo[los[at]])
            at += 1
        return out

    def _within(self, first: int, count: int) -> list[Stretch]:
        """Return the stretches of [first, first + count), cut at its ends."""
        out = self._over(first, count)
        if out and out[0].lo < first:
            out[0] = self._cut(out[0], first)
        if out and out[-1].hi > first + count:
            self._cut(out[-1], first + count)
        return out

    def _cut(self, stretch: Stretch, at: int) -> Stretch:
        """Cut a stretch before key ``at``; return its upper part."""
        upper = Stretch(at, stretch.hi, stretch.loads)
        upper.up, upper.shield = stretch.up, stretch.shield
        stretch.hi = at
        self._add(upper)
        if stretch.before is not None:
            spot = stretch.after if stretch.up else stretch
            assert spot is not None
            self._link(spot, upper)
        return upper

    def _add(self, stretch: Stretch) -> None:
        self._los.insert(bisect_left(self._los, stretch.lo), stretch.lo)
        self._by_lo[stretch.lo] = stretch

    def _remove(self, lo: int) -> None:
        del self._los[bisect_left(self._los, lo)]
        del self._by_lo[lo]

    # ------------------------------------------------------------------ the queue
    @staticmethod
    def _link(spot: Stretch, stretch: Stretch) -> None:
        before = spot.before
        assert before is not None
        stretch.before, stretch.after = before, spot
        before.after = spot.before = stretch

    @staticmethod
    def _unlink(stretch: Stretch) -> None:
        before, after = stretch.before, stretch.after
        assert before is not None
        assert after is not None
        before.after, after.before = after, before
        stretch.before = stretch.after = None

    def _append(self, stretch: Stretch, up: bool) -> None:
        """Put an idle stretch at the back; it melts into the last one where that changes nothing."""
        last = self._tail.before
        assert last is not None
        if last is not self._head:
            up = up or (stretch.hi - stretch.lo == 1 and last.up and last.hi == stretch.lo)
            if not up and last.lo == stretch.hi and (not last.up or last.hi - last.lo == 1):
                self._remove(last.lo)
                last.lo, last.up = stretch.lo, False
                self._by_lo[stretch.lo] = last
                return
            if up and last.hi == stretch.lo and (last.up or last.hi - last.lo == 1):
                self._remove(stretch.lo)
                last.hi, last.up = stretch.hi, True
                return
        stretch.up = up
        self._link(self._tail, stretch)

    # ------------------------------------------------------------------ what a connector asks
    def holds(self, key: int) -> bool:
        """Tell whether a key is resident, ready or not."""
        return bool(self._over(key, 1))

    def resident_among(self, first: int, count: int) -> int:
        """Return how many of the keys first .. first + count - 1 are resident."""
        end = first + count
        return sum(min(stretch.hi, end) - max(stretch.lo, first) for stretch in self._over(first, count))

    def walk(self, runs: Runs) -> tuple[int, bool, bool]:
        """Return (keys up to the first that is not here, whether all of them are ready, whether one is being loaded)."""
        total, ready, loading = 0, True, False
        for first, count in runs:
            at = first
            for stretch in self._over(first, count):
                if stretch.lo > at:
                    break
                at = min(stretch.hi, first + count)
                ready &= stretch.loads >= 0
                loading |= stretch.loads > 0
            total += at - first
            if at < first + count:
                break
        return total, ready, loading

    def missing(self, runs: Runs) -> list[tuple[int, int]]:
        """Return the stretches (start, stop) of positions in ``runs`` whose keys are not here."""
        out: list[tuple[int, int]] = []
        place = 0
        for first, count in runs:
            at = first
            for stretch in [*self._over(first, count), None]:
                lo = stretch.lo if stretch is not None else first + count
                if lo > at:
                    start, stop = place + at - first, place + lo - first
                    if out and out[-1][1] == start:
                        out[-1] = (out[-1][0], stop)
                    else:
                        out.append((start, stop))
                if stretch is not None:
                    at = stretch.hi
            place += count
        return out

    def store(self, runs: Runs, protected: Runs) -> bool:
        """Make room for new keys and insert them as not ready; False (and nothing changed): there is no room."""
        new = sum(count for _, count in runs)
        needed = new - (self.capacity - self.resident)
        if needed > 0 and not self._evict(needed, protected):
            return False
        for first, count in runs:
            self._add(Stretch(first, first + count, -1))
        self.resident += new
        return True

    def _evict(self, needed: int, protected: Runs) -> bool:
        if needed > self.idle:
            return False
        self._shield += 1
        shielded = 0
        for first, count in protected:
            for stretch in self._within(first, count):
                stretch.shield = self._shield
                if stretch.before is not None:
                    shielded += stretch.hi - stretch.lo
        if needed > self.idle - shielded:
            return False
        self.idle -= needed
        self.resident -= needed
        self.evicted += needed
        victim = self._head.after
        while needed:
            assert victim is not None
            following = victim.after
            if victim.shield != self._shield:
                needed -= self._drop(victim, needed)
            victim = following
        return True

    def _drop(self, stretch: Stretch, most: int) -> int:
        """Forget up to ``most`` keys of a stretch, those to be re-used first; return how many."""
        size = stretch.hi - stretch.lo
        if size <= most:
            self._unlink(stretch)
            self._remove(stretch.lo)
            return size
        if stretch.up:
            self._remove(stretch.lo)
            stretch.lo += most
            self._add(stretch)
        else:
            stretch.hi -= most
        return most

    def stored(self, runs: Runs) -> None:
        """A store completed: its keys are ready."""
        for first, count in runs:
            for stretch in self._within(first, count):
                stretch.loads = 0
                self._rest(stretch)

    def pin(self, runs: Runs) -> None:
        """A load of ready keys begins."""
        for first, count in runs:
            for stretch in self._within(first, count):
                if stretch.loads == 0:
                    self._unlink(stretch)
                    self.idle -= stretch.hi - stretch.lo
                stretch.loads += 1

    def unpin(self, runs: Runs) -> None:
        """A load completed."""
        for first, count in runs:
            for stretch in self._within(first, count):
                stretch.loads -= 1
                if stretch.loads == 0:
                    self._rest(stretch)

    def _rest(self, stretch: Stretch) -> None:
        self.idle += stretch.hi - stretch.lo
        self._append(stretch, True)

    def touch(self, runs: Runs) -> None:
        """Mark keys as used now, the last one first, so that the head of a prefix is the most recent."""
        for first, count in reversed(runs):
            for stretch in reversed(self._within(first, count)):
                if stretch.before is not None:
                    self._unlink(stretch)
                    self._append(stretch, False)

    def reset(self) -> None:
        """Forget every idle key (reset_cache)."""
        stretch = self._head.after
        while stretch is not None and stretch is not self._tail:
            self._remove(stretch.lo)
            self.evicted += stretch.hi - stretch.lo
            stretch = stretch.after
        self.resident -= self.idle
        self.idle = 0
        self._head.after, self._tail.before = self._tail, self._head
