"""The CPU tier of vLLM's OffloadingConnector: which keys it holds, whom it evicts (v1/kv_offload/cpu/manager.py).

Keys are names of block contents (``blocks_keys``), given as runs. A key is *ready* once its store completed; a ready key
without running loads is *idle* and may be evicted. Here every key is kept by itself; ``vllm_offload_extent.LruTier`` keeps
the lru policy at a cost per run and must agree with ``CpuTier`` everywhere.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from kvsim.content import Runs


def _each(runs: Runs) -> Iterator[int]:
    for first, count in runs:
        yield from range(first, first + count)


def stretches(flags: Iterable[bool]) -> list[tuple[int, int]]:
    """Return the stretches (start, stop) of positions at which ``flags`` is true."""
    out: list[tuple[int, int]] = []
    for at, flag in enumerate(flags):
        if flag and out and out[-1][1] == at:
            out[-1] = (out[-1][0], at + 1)
        elif flag:
            out.append((at, at + 1))
    return out


class _Entry:
    """A resident key: ``loads`` running loads of it; -1: its store is unfinished."""

    __slots__ = ("loads",)

    def __init__(self) -> None:
        self.loads = -1


class CpuTier:
    """``capacity`` keys, least recently used first out (policies/lru.py).

    ``idle``: keys that could be evicted; ``evicted``: keys lost so far.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: dict[int, _Entry] = {}
        self.idle = 0
        self.evicted = 0
        self._order: OrderedDict[int, None] = OrderedDict()  # idle keys, the next victim first

    @property
    def resident(self) -> int:
        """Keys held, ready or not."""
        return len(self.entries)

    def holds(self, key: int) -> bool:
        """Tell whether a key is resident, ready or not."""
        return key in self.entries

    def resident_among(self, first: int, count: int) -> int:
        """Return how many of the keys first .. first + count - 1 are resident."""
        return sum(key in self.entries for key in range(first, first + count))

    def walk(self, runs: Runs) -> tuple[int, bool, bool]:
        """Return (keys up to the first that is not here, whether all of them are ready, whether one is being loaded)."""
        count, ready, loading = 0, True, False
        for key in _each(runs):
            entry = self.entries.get(key)
            if entry is None:
                break
            count += 1
            ready &= entry.loads >= 0
            loading |= entry.loads > 0
        return count, ready, loading

    def missing(self, runs: Runs) -> list[tuple[int, int]]:
        """Return the stretches (start, stop) of positions in ``runs`` whose keys are not here."""
        return stretches(key not in self.entries for key in _each(runs))

    def store(self, runs: Runs, protected: Runs) -> bool:
        """Make room for new keys and insert them as not ready; False (and nothing changed): there is no room."""
        keys = list(_each(runs))
        needed = len(keys) - (self.capacity - len(self.entries))
        if needed > 0:
            if needed > self.idle:
                return False
            victims = self._victims(needed, set(_each(protected)))
            if victims is None:
                return False
            self._drop(victims)
        for key in keys:
            self.entries[key] = _Entry()
            self._inserted(key)
        return True

    def stored(self, runs: Runs) -> None:
        """A store completed: its keys are ready."""
        for key in _each(runs):
            self.entries[key].loads = 0
            self._rest(key)

    def pin(self, runs: Runs) -> None:
        """A load of ready keys begins."""
        for key in _each(runs):
            entry = self.entries[key]
            if entry.loads == 0:
                self.idle -= 1
                self._order.pop(key, None)
            entry.loads += 1

    def unpin(self, runs: Runs) -> None:
        """A load completed."""
        for key in _each(runs):
            entry = self.entries[key]
            entry.loads -= 1
            if entry.loads == 0:
                self._rest(key)

    def touch(self, runs: Runs) -> None:
        """Mark keys as used now, the last one first, so that the head of a prefix is the most recent."""
        order = self._order
        for key in reversed(list(_each(runs))):
            if key in order:
                order.move_to_end(key)

    def reset(self) -> None:
        """Forget every idle key (reset_cache)."""
        self._drop([key for key, entry in self.entries.items() if entry.loads == 0])

    # --- what a policy decides

    def _rest(self, key: int) -> None:
        self.idle += 1
        self._order[key] = None

    def _inserted(self, key: int) -> None:
        """A new key is resident (not idle yet)."""

    def _victims(self, count: int, protected: Collection[int]) -> list[int] | None:
        out: list[int] = []
        for key in self._order:
            if key not in protected:
                out.append(key)
                if len(out) == count:
                    return out
        return None

    def _drop(self, keys: Iterable[int]) -> None:
        for key in keys:
            del self.entries[key]
            self._order.pop(key, None)
            self.idle -= 1
            self.evicted += 1


class ArcTier(CpuTier):
    """Adaptive replacement: seen once (T1), seen again (T2), and what each lost lately (B1, B2) (policies/arc.py)."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._t1: OrderedDict[int, None] = OrderedDict()
        self._t2: OrderedDict[int, None] = OrderedDict()
        self._b1: OrderedDict[int, None] = OrderedDict()
        self._b2: OrderedDict[int, None] = OrderedDict()
        self._target = 0.0

    def touch(self, runs: Runs) -> None:
        """Promote ready keys to T2; a key lost lately moves the target size of T1."""
        for key in reversed(list(_each(runs))):
            if key in self._t1:
                if self.entries[key].loads < 0:
                    self._t1.move_to_end(key)
                else:
                    del self._t1[key]
                    self._t2[key] = None
            elif key in self._t2:
                self._t2.move_to_end(key)
            elif key in self._b1:
                self._target = min(self._target + max(1.0, len(self._b2) / len(self._b1)), float(self.capacity))
                self._b1.move_to_end(key)
            elif key in self._b2:
                self._target = max(self._target - max(1.0, len(self._b1) / len(self._b2)), 0.0)
                self._b2.move_to_end(key)

    def _rest(self, key: int) -> None:
        self.idle += 1

    def _inserted(self, key: int) -> None:
        self._t1[key] = None
        self._b1.pop(key, None)
        self._b2.pop(key, None)

    def _victims(self, count: int, protected: Collection[int]) -> list[int] | None:
        first, second = self._candidates(self._t1, protected), self._candidates(self._t2, protected)
        size, out, at1, at2 = len(self._t1), list[int](), 0, 0
        for _ in range(count):
            if size >= int(self._target) and at1 < len(first):
                out.append(first[at1])
                at1 += 1
                size -= 1
            elif at2 < len(second):
                out.append(second[at2])
                at2 += 1
            else:
                return None
        return out

    def _candidates(self, order: Iterable[int], protected: Collection[int]) -> list[int]:
        return [key for key in order if self.entries[key].loads == 0 and key not in protected]

    def _drop(self, keys: Iterable[int]) -> None:
        for key in keys:
            del self.entries[key]
            self.idle -= 1
            self.evicted += 1
            ghosts = self._b1 if key in self._t1 else self._b2
            self._t1.pop(key, None)
            self._t2.pop(key, None)
            ghosts[key] = None
            if len(ghosts) > self.capacity:
                ghosts.popitem(last=False)


class LookupCounts:
    """How often each key was looked up, for the most recent ``size`` keys (``store_threshold``.

    V1/kv_offload/reuse_manager.py).
    """

    def __init__(self, threshold: int, size: int = 64_000) -> None:
        self.threshold, self.size = threshold, size
        self._counts: OrderedDict[int, int] = OrderedDict()

    def note(self, runs: Runs) -> None:
        """Count one lookup of each key."""
        if self.threshold < 2:
            return
        for key in _each(runs):
            self._counts[key] = self._counts.pop(key, 0) + 1
            if len(self._counts) > self.size:
                self._counts.popitem(last=False)

    def worthy(self, key: int) -> bool:
        """Tell whether a key was looked up often enough to be stored."""
        return self.threshold < 2 or self._counts.get(key, 0) >= self.threshold
