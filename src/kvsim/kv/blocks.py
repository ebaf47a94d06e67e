"""vLLM's block pool, block by block: free queue, hashes, references (v1/core/block_pool.py, kv_cache_utils.py).

The reference implementation. It knows every physical block, which ``SimpleCPUOffloadConnector`` needs;
``blocks_extent.ExtentPool`` keeps the same queue as extents at a cost per run and must agree with it everywhere.
The null block is left out: a pool of ``num_gpu_blocks`` has one usable block fewer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsim.content import Runs


class Marker(Protocol):
    """Something that wants to know when a block it marked is used again (a pending store)."""

    pending: bool


class AnyTable(Protocol):
    """The blocks one request holds. ``held``: how many.

    ``cached``: how many of them (a prefix) went through hashing.
    """

    held: int
    cached: int


class Pool(Protocol):
    """What a scheduler needs of a block pool; ``BlockPool`` says what each name means.

    Tables belong to their own pool.
    """

    usable: int
    free: int
    hashed: int
    idle_hashed: int
    evicted: int
    log: list[int] | None
    lost: list[tuple[int, int]] | None
    met: list[tuple[Any, Marker]]

    @property
    def distinct(self) -> int:
        """Different contents among the hashed blocks."""

    def table(self) -> Any:
        """Return an empty table of this pool."""

    def lookup(self, keys: Runs, limit: int) -> int:
        """Return how many of the first blocks of a chain are here."""

    def idle_hits(self, keys: Runs, hit: int) -> int:
        """Return how many of the hit blocks have no user."""

    def take(self, table: Any, keys: Runs, hit: int) -> None:
        """Put the hit blocks into an empty table."""

    def grow(self, table: Any, count: int) -> None:
        """Add new blocks to a table."""

    def pop(self, count: int) -> object:
        """Take blocks from the front of the free queue."""

    def cache(self, table: Any, keys: Runs, upto: int) -> None:
        """Hash the blocks of a table up to a place."""

    def release(self, table: Any) -> None:
        """Give all blocks of a table back, the last one first."""

    def mark(self, table: Any, start: int, stop: int, marker: Any) -> None:
        """Let a marker know when blocks of a table are used by someone."""

    def reset(self) -> bool:
        """Forget all hashes if no block is in use; tell whether it was done."""


class Block:
    """One physical block. ``key``: the name of its content, or -1 without a hash; ``refs``: users.

    Links of the free queue.
    """

    __slots__ = ("after", "before", "key", "marks", "refs", "storing")

    def __init__(self) -> None:
        self.key = -1
        self.refs = 0
        self.before: Block | None = None
        self.after: Block | None = None
        self.marks: tuple[Marker, ...] = ()
        self.storing = False


class Table:
    """The blocks one request holds, in order. ``held``: how many.

    ``cached``: how many of them (a prefix) went through hashing.
    """

    __slots__ = ("blocks", "cached", "held")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.held = 0
        self.cached = 0


def expand(keys: Runs, start: int, stop: int) -> list[int]:
    """Return the names of blocks ``[start, stop)`` of a chain, one by one."""
    out: list[int] = []
    at = 0
    for first, count in keys:
        if at + count > start:
            out.extend(range(first + max(start - at, 0), first + min(stop - at, count)))
        at += count
        if at >= stop:
            break
    return out


class BlockPool:
    """The free queue and the map from content to blocks.

    ``free``: blocks in the queue (those with a hash included); ``hashed``: blocks that carry a hash; ``distinct``:
    different hashes among them; ``idle_hashed``: free blocks with a hash; ``evicted``: hashes lost to re-use so far.
    ``met``: (table, marker) for every marked block taken or allocated since the caller last cleared it. ``log``,
    ``lost``: keys in the order of their eviction, if a list is given (two readers).
    """

    def __init__(self, usable: int, unhashed_first: bool = True) -> None:
        self.usable = usable
        self.unhashed_first = unhashed_first
        self.free = 0
        self.hashed = 0
        self.idle_hashed = 0
        self.evicted = 0
        self.log: list[int] | None = None
        self.lost: list[tuple[int, int]] | None = None
        self.met: list[tuple[Any, Marker]] = []
        self._by_key: dict[int, list[Block]] = {}
        self._head, self._tail = Block(), Block()
        self._head.after, self._tail.before = self._tail, self._head
        for _ in range(usable):
            self._link_before(self._tail, Block())

    @property
    def distinct(self) -> int:
        """Different contents among the hashed blocks."""
        return len(self._by_key)

    # --- the free queue

    def _link_before(self, spot: Block, block: Block) -> None:
        before = spot.before
        assert before is not None
        block.before, block.after = before, spot
        before.after = spot.before = block
        self.free += 1
        self.idle_hashed += block.key >= 0

    def _unlink(self, block: Block) -> None:
        before, after = block.before, block.after
        assert before is not None
        assert after is not None
        before.after, after.before = after, before
        block.before = block.after = None
        self.free -= 1
        self.idle_hashed -= block.key >= 0

    def queue(self) -> Iterable[Block]:
        """Yield the free blocks in the order of their re-use."""
        block = self._head.after
        while block is not None and block is not self._tail:
            yield block
            block = block.after

    def behind(self, block: Block) -> Iterable[Block]:
        """Yield the free blocks that follow ``block`` (which is free)."""
        after = block.after
        while after is not None and after is not self._tail:
            yield after
            after = after.after

    def pop(self, count: int) -> list[Block]:
        """Take ``count`` blocks from the front; hashes they carried are lost. Needs ``count <= free``."""
        out = []
        for _ in range(count):
            block = self._head.after
            assert block is not None
            assert block is not self._tail
            self._unlink(block)
            if block.key >= 0:
                self._forget(block)
            block.refs = 1
            out.append(block)
        return out

    def touch(self, block: Block) -> None:
        """Add a user to a block; a free one leaves the queue."""
        if block.refs == 0:
            self._unlink(block)
        block.refs += 1

    def put_back(self, blocks: Sequence[Block]) -> None:
        """Drop one user of each block, in this order; those without users enter the queue (free_blocks)."""
        front = self._head.after
        assert front is not None
        for block in blocks:
            block.refs -= 1
            if block.refs == 0:
                first = self.unhashed_first and block.key < 0
                self._link_before(front if first else self._tail, block)
                if not first and front is self._tail:
                    front = block  # the queue was empty: unhashed blocks still go before this one

    # --- hashes

    def _forget(self, block: Block) -> None:
        copies = self._by_key[block.key]
        copies.remove(block)
        if not copies:
            del self._by_key[block.key]
        if self.log is not None:
            self.log.append(block.key)
        if self.lost is not None:
            self.lost.append((block.key, 1))
        block.key = -1
        self.hashed -= 1
        self.evicted += 1

    def name(self, block: Block, key: int) -> None:
        """Give a block that is in use its hash."""
        block.key = key
        self._by_key.setdefault(key, []).append(block)
        self.hashed += 1

    def first(self, key: int) -> Block | None:
        """Return the earliest block that carries ``key``, or None."""
        copies = self._by_key.get(key)
        return copies[0] if copies else None

    def reset(self) -> bool:
        """Forget all hashes if no block is in use (reset_prefix_cache); tell whether it was done."""
        if self.free != self.usable:
            return False
        for copies in self._by_key.values():
            for block in copies:
                block.key = -1
        self._by_key.clear()
        self.hashed = self.idle_hashed = 0
        return True

    # --- what a scheduler does with a request's table

    def table(self) -> Table:
        """Return an empty table of this pool."""
        return Table()

    def lookup(self, keys: Runs, limit: int) -> int:
        """Return how many of the first ``limit`` blocks of a chain are here, up to the first that is not."""
        hit = 0
        for key in expand(keys, 0, limit):
            if key not in self._by_key:
                break
            hit += 1
        return hit

    def idle_hits(self, keys: Runs, hit: int) -> int:
        """Return how many of the ``hit`` first blocks have no user: taking them costs a free block each."""
        return sum(self._by_key[key][0].refs == 0 for key in expand(keys, 0, hit))

    def take(self, table: Table, keys: Runs, hit: int) -> None:
        """Put the ``hit`` first blocks of a chain into an empty table."""
        for key in expand(keys, 0, hit):
            block = self._by_key[key][0]
            self.touch(block)
            table.blocks.append(block)
            if block.marks:
                self._meet(table, block)
        table.held = table.cached = hit

    def grow(self, table: Table, count: int) -> None:
        """Add ``count`` new blocks to a table."""
        for block in self.pop(count):
            table.blocks.append(block)
            if block.marks:
                self._meet(table, block)
        table.held += count

    def _meet(self, table: Table, block: Block) -> None:
        block.marks = tuple(mark for mark in block.marks if mark.pending)
        self.met.extend((table, mark) for mark in block.marks)

    def cache(self, table: Table, keys: Runs, upto: int) -> None:
        """Hash the blocks ``[cached, upto)`` of a table: they can be matched from now on."""
        if upto <= table.cached:
            return
        for block, key in zip(table.blocks[table.cached : upto], expand(keys, table.cached, upto), strict=True):
            self.name(block, key)
        table.cached = upto

    def release(self, table: Table) -> None:
        """Give all blocks of a table back, the last one first."""
        self.put_back(table.blocks[::-1])
        table.blocks = []
        table.held = table.cached = 0

    def mark(self, table: Table, start: int, stop: int, marker: Marker) -> None:
        """Let ``marker`` know when blocks ``[start, stop)`` of a table are used by someone (``met``)."""
        for block in table.blocks[start:stop]:
            block.marks = (*(mark for mark in block.marks if mark.pending), marker)
