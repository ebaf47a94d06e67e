"""The block cache by extents, the one by blocks and a naive model of plain token lists agree on everything visible."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsim.content import canonical, cut, length, tokens
from kvsim.kv.blocks import BlockPool, expand
from kvsim.kv.blocks_extent import ExtentPool
from kvsim.kv.blocks_keys import BlockKeys

USABLE = 14


class Naive:
    """Blocks are numbers; content is the full list of tokens from the beginning; the queue is a Python list."""

    def __init__(self, unhashed_first: bool) -> None:
        self.first = unhashed_first
        self.queue = list(range(USABLE))
        self.content: dict[int, tuple[int, ...]] = {}
        self.named: list[int] = []  # blocks with a content, in the order they got it
        self.users = [0] * USABLE

    def find(self, content: tuple[int, ...]) -> int | None:
        return next((block for block in self.named if self.content[block] == content), None)

    def lookup(self, prefixes: list[tuple[int, ...]]) -> list[int]:
        out = []
        for prefix in prefixes:
            block = self.find(prefix)
            if block is None:
                break
            out.append(block)
        return out

    def pop(self, count: int) -> list[int]:
        taken, self.queue = self.queue[:count], self.queue[count:]
        for block in taken:
            if block in self.content:
                del self.content[block]
                self.named.remove(block)
            self.users[block] = 1
        return taken

    def touch(self, blocks: list[int]) -> None:
        for block in blocks:
            if self.users[block] == 0:
                self.queue.remove(block)
            self.users[block] += 1

    def name(self, block: int, content: tuple[int, ...]) -> None:
        self.content[block] = content
        self.named.append(block)

    def release(self, blocks: list[int]) -> None:
        gone = []
        for block in reversed(blocks):
            self.users[block] -= 1
            if self.users[block] == 0:
                gone.append(block)
        if self.first:
            bare = [block for block in gone if block not in self.content]
            self.queue = bare + self.queue + [block for block in gone if block in self.content]
        else:
            self.queue += gone


class Mark:
    def __init__(self) -> None:
        self.pending = True


class Held:
    def __init__(self, runs, keys, by_block, by_extent) -> None:
        self.runs, self.keys, self.by_block, self.by_extent = runs, keys, by_block, by_extent
        self.blocks: list[int] = []
        self.named = 0


class BlockCacheMachine(RuleBasedStateMachine):
    @initialize(first=st.booleans(), size=st.sampled_from([1, 2, 4]))
    def start(self, first: bool, size: int) -> None:
        self.size = size
        self.names = BlockKeys(size)
        self.naive = Naive(first)
        self.plain, self.extents = BlockPool(USABLE, first), ExtentPool(USABLE, first)
        self.plain.log, self.extents.log = [], []
        self.live: list[Held] = []
        self.marks: list[Mark] = []

    def prefixes(self, runs, count: int) -> list[tuple[int, ...]]:
        return [tuple(tokens(cut(runs, 0, (i + 1) * self.size))) for i in range(count)]

    @rule(
        parts=st.lists(st.tuples(st.sampled_from([0, 3, 100, 103, 200]), st.integers(1, 14)), min_size=1, max_size=3),
        share=st.floats(0, 1),
    )
    def admit(self, parts: list[tuple[int, int]], share: float) -> None:
        runs = canonical(parts)
        keys = self.names.chain(runs)
        whole = length(runs) // self.size
        limit = max((length(runs) - 1) // self.size, 0)
        found = self.naive.lookup(self.prefixes(runs, limit))
        assert self.plain.lookup(keys, limit) == self.extents.lookup(keys, limit) == len(found)
        idle = sum(self.naive.users[block] == 0 for block in found)
        assert self.plain.idle_hits(keys, len(found)) == self.extents.idle_hits(keys, len(found)) == idle
        need = -(-length(runs) // self.size) - len(found)
        if need + idle > len(self.naive.queue):
            return
        held = Held(runs, keys, self.plain.table(), self.extents.table())
        if found:
            self.naive.touch(found)
            self.plain.take(held.by_block, keys, len(found))
            self.extents.take(held.by_extent, keys, len(found))
        held.blocks, held.named = list(found), len(found)
        held.blocks += self.naive.pop(need)
        self.plain.grow(held.by_block, need)
        self.extents.grow(held.by_extent, need)
        self.live.append(held)
        self._name(held, len(found) + int((whole - len(found)) * share))

    def _name(self, held: Held, upto: int) -> None:
        prefixes = self.prefixes(held.runs, upto)
        for at in range(held.named, upto):
            self.naive.name(held.blocks[at], prefixes[at])
        held.named = max(held.named, upto)
        self.plain.cache(held.by_block, held.keys, upto)
        self.extents.cache(held.by_extent, held.keys, upto)

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 100), more=st.integers(1, 4))
    def compute_on(self, which: int, more: int) -> None:
        held = self.live[which % len(self.live)]
        self._name(held, min(held.named + more, length(held.runs) // self.size))

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 100))
    def release(self, which: int) -> None:
        held = self.live.pop(which % len(self.live))
        self.naive.release(held.blocks)
        self.plain.release(held.by_block)
        self.extents.release(held.by_extent)

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 100), start=st.integers(0, 5), count=st.integers(1, 6))
    def mark(self, which: int, start: int, count: int) -> None:
        held = self.live[which % len(self.live)]
        stop = min(start + count, len(held.blocks))
        if start < stop:
            mark = Mark()
            self.marks.append(mark)
            self.plain.mark(held.by_block, start, stop, mark)
            self.extents.mark(held.by_extent, start, stop, mark)

    @precondition(lambda self: self.marks)
    @rule(which=st.integers(0, 100))
    def complete(self, which: int) -> None:
        self.marks.pop(which % len(self.marks)).pending = False

    @rule()
    def reset(self) -> None:
        done = len(self.naive.queue) == USABLE
        assert self.plain.reset() == self.extents.reset() == done
        if done:
            self.naive.content.clear()
            self.naive.named.clear()

    @invariant()
    def all_agree(self) -> None:
        if not hasattr(self, "naive"):
            return
        naive = self.naive
        assert len(naive.queue) == self.plain.free == self.extents.free
        assert len(naive.named) == self.plain.hashed == self.extents.hashed
        assert len(set(naive.content.values())) == self.plain.distinct == self.extents.distinct
        queue = [block.key for block in self.plain.queue()]
        assert queue == list(self.extents.queue())
        assert queue == [self._key(naive.content.get(block)) for block in naive.queue]
        assert sum(key >= 0 for key in queue) == self.plain.idle_hashed == self.extents.idle_hashed
        assert self.plain.log == self.extents.log
        met = {(self._owner(table), id(mark)) for table, mark in self.plain.met if mark.pending}
        assert met == {(self._owner(table), id(mark)) for table, mark in self.extents.met if mark.pending}
        self.plain.met.clear()
        self.extents.met.clear()

    def _key(self, content: tuple[int, ...] | None) -> int:
        if content is None:
            return -1
        blocks = len(content) // self.size
        return expand(self.names.chain(canonical((token, 1) for token in content)), blocks - 1, blocks)[0]

    def _owner(self, table: object) -> int:
        return next((at for at, held in enumerate(self.live) if table in (held.by_block, held.by_extent)), -1)


TestBlockCache = BlockCacheMachine.TestCase
TestBlockCache.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


@pytest.mark.long
def test_the_block_caches_agree_at_length() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        BlockCacheMachine,
        settings=settings(max_examples=600, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)),
    )


def test_names_of_blocks_are_equal_exactly_where_the_whole_prefix_is_equal() -> None:
    names = BlockKeys(2)
    one = expand(names.chain(((0, 6), (50, 4))), 0, 5)
    two = expand(names.chain(((0, 6), (60, 4))), 0, 5)
    other = expand(names.chain(((1, 1), (50, 9))), 0, 5)
    assert one[:3] == two[:3]
    assert len({*one, *two, *other}) == 12


def test_names_do_not_change_when_a_stretch_is_cut() -> None:
    names = BlockKeys(4)
    before = names.chain(((0, 40),))
    names.chain(((0, 14), (900, 10)))
    assert names.chain(((0, 40),)) == before


def test_namespaces_share_nothing() -> None:
    names = BlockKeys(4)
    assert not set(expand(names.chain(((0, 40),), "a"), 0, 10)) & set(expand(names.chain(((0, 40),), "b"), 0, 10))


def test_a_long_chain_costs_as_many_runs_as_it_has_branches() -> None:
    names = BlockKeys(16)
    assert len(names.chain(((0, 160_000),))) == 1
    assert len(names.chain(((0, 80_000), (900_000, 80_000)))) == 2
