"""A workload as a stream of references to blocks of content: what stack distances are computed from.

Each prompt is cut into blocks of ``block`` tokens from its start; a shorter rest is a block of its own size. A block is identified by its
whole prefix. References are leaf first within a request, so that in LRU order a prefix is never older than what follows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsim.content import Runs, cut
from kvsim.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from kvsim.workload.spec import RequestSpec

    Ints = npt.NDArray[np.int64]

ROOT = -1
SMALL = 1 << 61  # larger tokens are renamed, by stretches of CHUNK tokens
CHUNK = 1 << 36
MOST_CHUNKS = ((1 << 63) - SMALL) // CHUNK - 1


@dataclass(frozen=True, slots=True)
class References:
    """``ids``: dense block numbers; ``weight``: tokens of each block; ``request``: its request; ``start``: first reference of each request.

    ``arrival_s``: per request. ``block``: tokens of a whole block.
    """

    ids: Ints
    weight: Ints
    request: Ints
    start: Ints
    arrival_s: npt.NDArray[np.float64]
    block: int

    @property
    def tokens(self) -> int:
        """All prompt tokens."""
        return int(self.weight.sum())


class _Cutter:
    """Collects blocks as pieces of runs: (first token, blocks, tokens per block) per request, in prompt order."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.first: list[int] = []
        self.count: list[int] = []
        self.size: list[int] = []
        self._names: dict[Any, int] = {}
        self._chunks: dict[int, int] = {}

    def _add(self, first: int, count: int, size: int) -> None:
        self.first.append(first)
        self.count.append(count)
        self.size.append(size)

    def _name(self, key: Any) -> int:
        """Return a negative stand-in for content that no single token names."""
        return -2 - self._names.setdefault(key, len(self._names))

    def add(self, prompt: Runs) -> int:
        """Cut one prompt; return its number of blocks."""
        block, blocks = self.block, 0
        rest: Runs = ()
        for first, count in prompt:
            if rest:
                missing = block - sum(size for _, size in rest)
                take = min(missing, count)
                rest = (*rest, (first, take))
                first, count = first + take, count - take
                if take < missing:
                    continue
                self._add(self._name(rest), 1, block)
                blocks, rest = blocks + 1, ()
            whole = count // block
            if whole:
                self._whole(first, whole)
                blocks += whole
            if count > whole * block:
                rest = ((first + whole * block, count - whole * block),)
        if rest:
            self._add(self._name(rest), 1, sum(size for _, size in rest))
            blocks += 1
        return blocks

    def _whole(self, first: int, whole: int) -> None:
        if first + whole * self.block < SMALL:
            self._add(first, whole, self.block)
            return
        while whole:
            chunk, low = divmod(first, CHUNK)
            taken = min(whole, -(-(CHUNK - low) // self.block))
            number = self._chunks.setdefault(chunk, len(self._chunks))
            if number > MOST_CHUNKS:
                raise InputError(f"a trace with content in more than {MOST_CHUNKS:,} far apart places is not followed block by block")
            self._add(SMALL + number * CHUNK + low, taken, self.block)
            first, whole = first + taken * self.block, whole - taken


def references(specs: Iterable[RequestSpec], block: int, rate_scale: float = 1.0) -> References:
    """Return the references of a workload. ``rate_scale`` divides the times."""
    import numpy as np

    cutter = _Cutter(block)
    per_request: list[int] = []
    arrivals: list[int] = []
    spaces: list[int] = []
    known: dict[str, int] = {}
    for spec in specs:
        blocks = cutter.add(spec.prompt)
        if blocks:
            per_request.append(blocks)
            arrivals.append(spec.arrival_ps)
            spaces.append(known.setdefault(spec.namespace, len(known)))
    content, size = _expanded(cutter)
    counts = np.array(per_request, dtype=np.int64)
    request = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    start = ends - counts
    ids = _prefix_ids(content, size, start, np.array(spaces, dtype=np.int64))
    leaf_first = start[request] + ends[request] - 1 - np.arange(len(ids))
    times = np.array(arrivals, dtype=np.float64) * (1e-12 / rate_scale)
    return References(ids[leaf_first], size[leaf_first], request, start, times, block)


def _expanded(cutter: _Cutter) -> tuple[Ints, Ints]:
    """Return (content name, tokens) of every block in prompt order."""
    import numpy as np

    first = np.array(cutter.first, dtype=np.int64)
    count = np.array(cutter.count, dtype=np.int64)
    which = np.repeat(np.arange(len(first)), count)
    inside = np.arange(len(which)) - (np.cumsum(count) - count)[which]
    return first[which] + inside * cutter.block, np.array(cutter.size, dtype=np.int64)[which]


def _prefix_ids(content: Ints, size: Ints, start: Ints, spaces: Ints) -> Ints:
    """Return dense ids such that equal ids mean equal prefixes.

    If every content stands behind exactly one other, the content itself is the name (by induction from the first block); else
    (parent, content) pairs are interned one by one.
    """
    import numpy as np

    parent = np.empty_like(content)
    parent[1:] = content[:-1]
    parent[start] = -(1 << 62) - spaces
    _, first_seen, dense = np.unique(content, return_index=True, return_inverse=True)
    if bool((parent == parent[first_seen][dense]).all()):
        return dense
    table: dict[tuple[int, int], int] = {}
    out = np.empty_like(content)
    roots = dict(zip(start.tolist(), spaces.tolist(), strict=True))
    above = 0
    for at, name in enumerate(content.tolist()):
        if at in roots:
            above = ROOT - roots[at]
        above = out[at] = table.setdefault((above, name), len(table))
    return out


def block_keys(prompt: Runs, block: int) -> list[Runs]:
    """Return the content of every block of a prompt (for tests: slow and plain)."""
    total = sum(count for _, count in prompt)
    return [cut(prompt, at, min(at + block, total)) for at in range(0, total, block)]
