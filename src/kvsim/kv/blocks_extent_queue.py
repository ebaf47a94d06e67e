"""The free queue of a block pool as extents: what is re-used next, and how extents are cut and forgotten.

An extent is a run of blocks with consecutive names, the same users and neighbouring places in the free queue. The queue
is a linked list of extents, each re-used from its high end down (a request's blocks are released tail first). Free blocks
without a hash are anonymous: an extent that only counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.kv.blocks import Marker


class Extent:
    """Blocks named ``lo .. hi - 1``.

    ``twins``: all copies of these contents, oldest first, or None if it is the only one.
    ``following``: the upper part this extent was last cut from (a holder of the whole finds the rest there).
    """

    __slots__ = ("after", "before", "following", "hashed", "hi", "lo", "marks", "refs", "twins")

    def __init__(self, lo: int, hi: int, refs: int, hashed: bool, marks: tuple[Marker, ...] = ()) -> None:
        self.lo, self.hi, self.refs, self.hashed, self.marks = lo, hi, refs, hashed, marks
        self.before: Extent | None = None
        self.after: Extent | None = None
        self.following: Extent | None = None
        self.twins: list[Extent] | None = None


class ExtentTable:
    """The blocks one request holds: ``cached`` hashed ones as (extent, its end when taken), then bare ones.

    ``tags``: (first, end, markers) for blocks at these places that somebody marked in their former life.
    """

    __slots__ = ("cached", "held", "pieces", "tags")

    def __init__(self) -> None:
        self.pieces: list[tuple[Extent, int]] = []
        self.held = 0
        self.cached = 0
        self.tags: list[tuple[int, int, tuple[Marker, ...]]] = []


class ExtentQueue:
    """Counters, hashes and free queue; ``ExtentPool`` adds what a scheduler asks for."""

    def __init__(self, usable: int, unhashed_first: bool = True) -> None:
        self.usable = usable
        self.unhashed_first = unhashed_first
        self.free = 0
        self.hashed = 0
        self._distinct = 0
        self.idle_hashed = 0
        self.evicted = 0
        self.log: list[int] | None = None
        self.lost: list[tuple[int, int]] | None = None
        self.met: list[tuple[Any, Marker]] = []
        self._starts: dict[int, Extent] = {}  # the oldest copy of each stretch, by its first name
        self._head, self._tail = Extent(0, 0, 0, False), Extent(0, 0, 0, False)
        self._head.after, self._tail.before = self._tail, self._head
        if usable:
            self._link(self._tail, Extent(0, usable, 0, False))

    @property
    def distinct(self) -> int:
        """Different contents among the hashed blocks."""
        return self._distinct

    # ------------------------------------------------------------------ the free queue
    def _link(self, spot: Extent, extent: Extent) -> None:
        before = spot.before
        assert before is not None
        extent.before, extent.after = before, spot
        before.after = spot.before = extent
        size = extent.hi - extent.lo
        self.free += size
        if extent.hashed:
            self.idle_hashed += size

    def _unlink(self, extent: Extent) -> None:
        before, after = extent.before, extent.after
        assert before is not None
        assert after is not None
        before.after, after.before = after, before
        extent.before = extent.after = None
        size = extent.hi - extent.lo
        self.free -= size
        if extent.hashed:
            self.idle_hashed -= size

    def queue(self) -> Iterator[int]:
        """Yield the names of the free blocks in the order of their re-use, -1 for one without a hash."""
        extent = self._head.after
        while extent is not None and extent is not self._tail:
            for key in range(extent.hi - 1, extent.lo - 1, -1):
                yield key if extent.hashed else -1
            extent = extent.after

    def pop(self, count: int, table: ExtentTable | None = None) -> None:
        """Take ``count`` blocks from the front; hashes they carried are lost.

        ``table``: who gets them, at ``table.held``.
        """
        place = table.held if table is not None else 0
        while count:
            extent = self._head.after
            assert extent is not None
            size = extent.hi - extent.lo
            took = size if size < count else count
            if extent.marks:
                self._meet(extent, table, place, took)
            if extent.hashed:
                self._evict(extent, took)
            else:
                extent.hi -= took
                self.free -= took
                if took == size:
                    self._unlink(extent)
            count -= took
            place += took

    def _evict(self, extent: Extent, took: int) -> None:
        """Forget the ``took`` highest names of the extent at the front of the queue."""
        if extent.twins is not None:
            self._evict_twin(extent, took)
            return
        self._note_lost(extent.hi - took, extent.hi)
        extent.hi -= took
        self.free -= took
        self.idle_hashed -= took
        self.hashed -= took
        self._distinct -= took
        self.evicted += took
        if extent.hi == extent.lo:
            self._unlink(extent)
            del self._starts[extent.lo]

    def _evict_twin(self, extent: Extent, took: int) -> None:
        if took < extent.hi - extent.lo:
            self._cut(extent, extent.hi - took)
            assert extent.following is not None
            extent = extent.following
        twins = extent.twins
        assert twins is not None
        self._note_lost(extent.lo, extent.hi)
        self._unlink(extent)
        twins.remove(extent)
        self._starts[extent.lo] = twins[0]
        if len(twins) == 1:
            twins[0].twins = None
        self.hashed -= took
        self.evicted += took

    def _note_lost(self, lo: int, hi: int) -> None:
        if self.log is not None:
            self.log.extend(range(hi - 1, lo - 1, -1))
        if self.lost is not None:
            self.lost.append((lo, hi - lo))

    def _meet(self, extent: Extent, table: ExtentTable | None, place: int, count: int) -> None:
        extent.marks = marks = tuple(mark for mark in extent.marks if mark.pending)
        if marks:
            self.met.extend((table, mark) for mark in marks)
            if table is not None and count:
                table.tags.append((place, place + count, marks))

    # ------------------------------------------------------------------ extents
    def _cut(self, extent: Extent, at: int) -> None:
        """Cut an extent, with its twins, before the name ``at``; its upper part is ``following``."""
        twins = extent.twins
        uppers = []
        for one in twins if twins is not None else (extent,):
            upper = Extent(at, one.hi, one.refs, True, one.marks)
            upper.following, one.following = one.following, upper
            if one.before is not None:  # free: the upper part is re-used first
                before = one.before
                upper.before, upper.after = before, one
                before.after = one.before = upper
            one.hi = at
            uppers.append(upper)
        if twins is not None:
            for upper in uppers:
                upper.twins = uppers
        self._starts[at] = uppers[0]

    @staticmethod
    def parts(extent: Extent, hi: int) -> list[Extent]:
        """Return what an extent taken with end ``hi`` consists of now."""
        out = [extent]
        while extent.hi < hi:
            following = extent.following
            assert following is not None
            extent = following
            out.append(extent)
        return out
