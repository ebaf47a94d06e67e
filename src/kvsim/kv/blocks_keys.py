"""Names for block contents: every full block of every chain gets one integer, at a cost per run of tokens.

vLLM names a block by a hash of (its parent's name, its own tokens). Here a radix tree over block contents hands out
integers instead, consecutive along a stretch of a chain, so that a chain of blocks is again a short list of integer
runs (``content.Runs``). Names never change: splitting a stretch keeps both halves' integers.
Property used by the block cache: key k + 1, if it exists, is a child of key k, so a chain that contains k + 1 contains
k.
"""

from __future__ import annotations

from kvsim.content import Run, Runs, canonical, common, cut, length


class _Stretch:
    """``blocks`` consecutive blocks of some chains with no branch in between; ``base``: the first one's name."""

    __slots__ = ("base", "blocks", "children", "runs")

    def __init__(self, base: int, blocks: int, runs: Runs) -> None:
        self.base = base
        self.blocks = blocks
        self.runs = runs
        self.children: dict[Runs, _Stretch] = {}


class BlockKeys:
    """The names of all full blocks of ``block_size`` tokens seen so far; one tree per namespace."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.matched = 0  # blocks of the last chain that had a name before
        self._next = 0
        self._roots: dict[str, _Stretch] = {}

    def chain(self, tokens: Runs, namespace: str = "") -> Runs:
        """Return the names of the full blocks of ``tokens``, as canonical runs; new contents get new names."""
        size = self.block_size
        at = self._roots.get(namespace)
        if at is None:
            at = self._roots[namespace] = _Stretch(-1, 0, ())
        total = length(tokens)
        blocks = total // size
        rest = tokens if blocks * size == total else cut(tokens, 0, blocks * size)
        out: list[Run] = []
        self.matched = 0
        while blocks:
            first = ((rest[0][0], size),) if rest[0][1] >= size else cut(rest, 0, size)
            child = at.children.get(first)
            if child is None:
                child = at.children[first] = self._new(blocks, rest)
                out.append((child.base, blocks))
                break
            same = min(common(child.runs, rest) // size, blocks)
            out.append((child.base, same))
            self.matched += same
            if same == blocks:
                break
            if same < child.blocks:
                child = self._split(at, first, child, same)
            rest = _after(rest, same * size)
            blocks -= same
            at = child
        return canonical(out)

    def _new(self, blocks: int, runs: Runs) -> _Stretch:
        stretch = _Stretch(self._next, blocks, runs)
        self._next += blocks + 1  # a gap: consecutive names are always parent and child
        return stretch

    def _split(self, parent: _Stretch, first: Runs, lower: _Stretch, at: int) -> _Stretch:
        size = self.block_size
        upper = _Stretch(lower.base, at, cut(lower.runs, 0, at * size))
        lower.runs = cut(lower.runs, at * size, lower.blocks * size)
        lower.base += at
        lower.blocks -= at
        upper.children[cut(lower.runs, 0, size)] = lower
        parent.children[first] = upper
        return upper

    def describe(self) -> dict[int, tuple[int, int]]:
        """Return key -> (index in its chain, first token of the block), for every key: for logs and tests."""
        out: dict[int, tuple[int, int]] = {}
        for root in self._roots.values():
            stack = [(child, 0) for child in root.children.values()]
            while stack:
                stretch, depth = stack.pop()
                for i in range(stretch.blocks):
                    block = cut(stretch.runs, i * self.block_size, (i + 1) * self.block_size)
                    out[stretch.base + i] = (depth + i, block[0][0])
                stack.extend((child, depth + stretch.blocks) for child in stretch.children.values())
        return out


def _after(runs: Runs, count: int) -> Runs:
    """Return ``runs`` without the first ``count`` tokens (fewer than all)."""
    at = 0
    while runs[at][1] <= count:
        count -= runs[at][1]
        at += 1
    first, size = runs[at]
    return ((first + count, size - count), *runs[at + 1 :])
