"""The same block pool as ``blocks.BlockPool``, kept as extents: cost per stretch of blocks, not per block.

Presence is closed towards the root: whoever uses or releases a block uses or releases its predecessors too, behind it in
the queue, so a chain's resident blocks are a prefix of it. That holds while every release is tail first, as the
scheduler and OffloadingConnector do (SimpleCPUOffloadConnector does not; it runs on ``BlockPool``).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from kvsim.kv.blocks_extent_queue import Extent, ExtentQueue, ExtentTable

if TYPE_CHECKING:
    from kvsim.content import Runs
    from kvsim.kv.blocks import Marker


class ExtentPool(ExtentQueue):
    """See ``blocks.BlockPool``: the same attributes and methods with the same meaning."""

    def table(self) -> ExtentTable:
        """Return an empty table of this pool."""
        return ExtentTable()

    def lookup(self, keys: Runs, limit: int) -> int:
        """Return how many of the first ``limit`` blocks of a chain are here, up to the first that is not."""
        hit, starts = 0, self._starts
        for first, count in keys:
            if count > limit - hit:
                count = limit - hit
            at, end = first, first + count
            while at < end:
                extent = starts.get(at)
                if extent is None:
                    return hit + at - first
                at = extent.hi
            hit += count
            if hit == limit:
                break
        return hit

    def idle_hits(self, keys: Runs, hit: int) -> int:
        """Return how many of the ``hit`` first blocks have no user."""
        idle = 0
        for first, count in keys:
            if count > hit:
                count = hit
            at, end = first, first + count
            while at < end:
                extent = self._starts[at]
                if not extent.refs:
                    idle += min(extent.hi, end) - at
                at = extent.hi
            hit -= count
            if not hit:
                break
        return idle

    def take(self, table: ExtentTable, keys: Runs, hit: int) -> None:
        """Put the ``hit`` first blocks of a chain into an empty table."""
        table.held = table.cached = hit
        for first, count in keys:
            if count > hit:
                count = hit
            at, end = first, first + count
            while at < end:
                extent = self._starts[at]
                if extent.hi > end:
                    self._cut(extent, end)
                if not extent.refs:
                    self._unlink(extent)
                extent.refs += 1
                table.pieces.append((extent, extent.hi))
                if extent.marks:
                    self._meet(extent, table, 0, 0)
                at = extent.hi
            hit -= count
            if not hit:
                break

    def grow(self, table: ExtentTable, count: int) -> None:
        """Add ``count`` new blocks to a table."""
        self.pop(count, table)
        table.held += count

    def cache(self, table: ExtentTable, keys: Runs, upto: int) -> None:
        """Hash the blocks ``[cached, upto)`` of a table: they can be matched from now on."""
        place = 0
        for first, count in keys:
            if place + count > table.cached:
                lo = max(table.cached, place)
                hi = min(upto, place + count)
                if hi > lo:
                    self._name(table, first + lo - place, first + hi - place)
            place += count
            if place >= upto:
                break
        if table.tags:
            self._tag(table, min(table.cached, upto), upto)
        table.cached = max(upto, table.cached)

    def _name(self, table: ExtentTable, lo: int, hi: int) -> None:
        self.hashed += hi - lo
        at = lo
        while at < hi:
            twin = self._starts.get(at)
            if twin is None:
                break
            if twin.hi > hi:
                self._cut(twin, hi)
            copy = Extent(at, twin.hi, 1, True)
            if twin.twins is None:
                twin.twins = [twin]
            twin.twins.append(copy)
            copy.twins = twin.twins
            table.pieces.append((copy, copy.hi))
            at = twin.hi
        if at == hi:
            return
        self._distinct += hi - at
        if table.pieces:
            last, end = table.pieces[-1]
            if end == at == last.hi and last.refs == 1 and last.twins is None and not last.marks:
                last.hi = hi
                table.pieces[-1] = (last, hi)
                return
        extent = Extent(at, hi, 1, True)
        self._starts[at] = extent
        table.pieces.append((extent, hi))

    def _tag(self, table: ExtentTable, start: int, stop: int) -> None:
        """Hand the tags of places ``[start, stop)`` over to their extents."""
        tags, table.tags = table.tags, []
        for first, end, marks in tags:
            live = tuple(mark for mark in marks if mark.pending)
            lo, hi = max(first, start), min(end, stop)
            if live and lo < hi:
                for mark in live:
                    self._mark_hashed(table, lo, hi, mark)
            if live and end > stop:
                table.tags.append((max(first, stop), end, live))

    def release(self, table: ExtentTable) -> None:
        """Give all blocks of a table back, the last one first."""
        bare = table.held - table.cached
        if bare:
            self._release_bare(table, bare)
        for extent, hi in reversed(table.pieces):
            if extent.hi == hi:
                self._drop(extent)
            else:
                for part in reversed(self.parts(extent, hi)):
                    self._drop(part)
        table.pieces = []
        table.tags = []
        table.held = table.cached = 0

    def _drop(self, extent: Extent) -> None:
        extent.refs -= 1
        if extent.refs:
            return
        last = self._tail.before
        assert last is not None
        if last.lo == extent.hi and last.hashed and self._plain(last) and self._plain(extent) and last is not self._head:
            size = extent.hi - extent.lo
            del self._starts[last.lo]
            last.lo = extent.lo
            self._starts[last.lo] = last
            self.free += size
            self.idle_hashed += size
            return
        self._link(self._tail, extent)

    @staticmethod
    def _plain(extent: Extent) -> bool:
        """Tell whether an extent is a single copy that nobody waits for."""
        if extent.twins is not None:
            return False
        return not extent.marks or not any(mark.pending for mark in extent.marks)

    def _release_bare(self, table: ExtentTable, bare: int) -> None:
        """Blocks without a hash: to the front of the queue (the highest first), or to the back."""
        tags = [tag for tag in table.tags if tag[1] > table.cached and any(mark.pending for mark in tag[2])] if table.tags else []
        if tags:
            self._release_tagged(table, tags)
            return
        if not self.unhashed_first:
            self._link(self._tail, Extent(0, bare, 0, False))
            return
        front = self._head.after
        assert front is not None
        if front is not self._tail and not front.hashed and not front.marks:
            front.hi += bare
            self.free += bare
        else:
            self._link(front, Extent(0, bare, 0, False))

    def _release_tagged(self, table: ExtentTable, tags: list[tuple[int, int, tuple[Marker, ...]]]) -> None:
        edges = {table.cached, table.held}
        for first, end, _ in tags:
            edges.update((max(first, table.cached), min(end, table.held)))
        places = sorted(edges)
        parts = []
        for lo, hi in pairwise(places):
            marks = tuple(dict.fromkeys(mark for first, end, found in tags if first <= lo and hi <= end for mark in found))
            parts.append(Extent(0, hi - lo, 0, False, marks))
        for part in parts if self.unhashed_first else reversed(parts):
            spot = self._head.after if self.unhashed_first else self._tail
            assert spot is not None
            self._link(spot, part)

    # ------------------------------------------------------------------ markers
    def mark(self, table: ExtentTable, start: int, stop: int, marker: Marker) -> None:
        """Let ``marker`` know when blocks ``[start, stop)`` of a table are used by someone (``met``)."""
        if start < table.cached:
            self._mark_hashed(table, start, min(stop, table.cached), marker)
        if stop > table.cached:
            table.tags.append((max(start, table.cached), stop, (marker,)))

    def _mark_hashed(self, table: ExtentTable, start: int, stop: int, marker: Marker) -> None:
        place = 0
        for extent, hi in table.pieces:
            size = hi - extent.lo
            if place + size > start:
                lo = extent.lo + max(start - place, 0)
                end = extent.lo + min(stop - place, size)
                for part in self.parts(extent, hi):
                    self._mark_part(part, lo, end, marker)
            place += size
            if place >= stop:
                break

    def _mark_part(self, part: Extent, lo: int, hi: int, marker: Marker) -> None:
        if part.hi <= lo or part.lo >= hi:
            return
        if part.lo < lo:
            self._cut(part, lo)
            assert part.following is not None
            part = part.following
        if part.hi > hi:
            self._cut(part, hi)
        part.marks = (*(mark for mark in part.marks if mark.pending), marker)

    # ------------------------------------------------------------------ reset
    def reset(self) -> bool:
        """Forget all hashes if no block is in use (reset_prefix_cache); tell whether it was done."""
        if self.free != self.usable:
            return False
        extent = self._head.after
        while extent is not None and extent is not self._tail:
            extent.hashed, extent.twins = False, None
            extent = extent.after
        self._starts.clear()
        self.hashed = self._distinct = self.idle_hashed = 0
        return True
