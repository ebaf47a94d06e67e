"""LRU hit rate of every capacity in one pass over a workload (Mattson et al. 1970), with Belady's bound and reuse in time.

The stack distance of a reference is the weight (tokens) of all other content used since its last use. A block is hit exactly if its
distance plus its own size fits, so sorting the distances gives the whole curve. Counting is a two-dimensional dominance sum, done by a
bitwise stable partition in numpy: no tree, no per-reference Python. Valid for LRU, write-through, an inclusive host tier and one
engine: the effective capacity is the larger tier. Queueing, latency and other policies need the simulation.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsim.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from kvsim.measure.references import References

    Ints = npt.NDArray[np.int64]

EXACT_LIMIT = 10_000_000
SHARDS_RATE = 0.01
GROUPS = 10
TIME_EDGES_S = (1.0, 10.0, 60.0, 600.0, 3600.0)


@dataclass(frozen=True, slots=True)
class Curve:
    """Hit tokens by capacity. ``need``: ascending capacities (tokens) at which ``hits`` (cumulative hit tokens) grow.

    ``total``: prompt tokens. ``sampled``: 1 for an exact curve, else the share of content that was followed (SHARDS). ``groups``: curves of
    disjoint parts of a sample, for its error.
    """

    need: Ints
    hits: npt.NDArray[np.float64]
    total: int
    distinct: int
    references: int
    sampled: float = 1.0
    groups: tuple[Curve, ...] = ()

    def rate(self, capacity: float) -> float:
        """Return the hit rate (hit tokens / prompt tokens) of an LRU cache of ``capacity`` tokens."""
        import numpy as np

        at = int(np.searchsorted(self.need, capacity, side="right"))
        return float(self.hits[at - 1]) / self.total if at and self.total else 0.0

    def error(self, capacity: float) -> float:
        """Return the standard error of ``rate`` (0 if exact): the spread of disjoint parts of the sample."""
        if not self.groups:
            return 0.0
        rates = [group.rate(capacity) for group in self.groups]
        mean = sum(rates) / len(rates)
        return math.sqrt(sum((rate - mean) ** 2 for rate in rates) / (len(rates) - 1) / len(rates))

    @property
    def ceiling(self) -> float:
        """The hit rate without any limit."""
        return float(self.hits[-1]) / self.total if len(self.hits) and self.total else 0.0

    def working_set(self, share: float = 0.99) -> int:
        """Return the smallest capacity (tokens) that reaches ``share`` of the ceiling; 0 if nothing is ever used again."""
        import numpy as np

        if not len(self.hits):
            return 0
        return int(self.need[int(np.searchsorted(self.hits, share * self.hits[-1]))])

    def knee(self) -> int | None:
        """Return the capacity at which the curve is farthest above the straight line between its ends; None without a curve.

        Both axes are linear and scaled to 1, up to the capacity that reaches 99.9 % of the ceiling.
        """
        import numpy as np

        end = self.working_set(0.999)
        if end <= 0:
            return None
        inside = self.need <= end
        x, y = self.need[inside] / end, self.hits[inside] / self.hits[-1]
        return int(self.need[inside][int(np.argmax(y - x))])


def hit_curve(refs: References, *, sample: float | None = None) -> Curve:
    """Return the LRU curve: exact up to ten million references, above by SHARDS with its error (``sample`` forces a share)."""
    if sample is None:
        sample = 1.0 if len(refs.ids) <= EXACT_LIMIT else SHARDS_RATE
    if not 0 < sample <= 1:
        raise InputError(f"the sampled share is {sample:g}; allowed: above 0, up to 1")
    if sample == 1:
        need, weight = stack_needs(refs.ids, refs.weight, refs.request)
        return _curve(need, weight, refs.tokens, int(refs.ids.max(initial=-1)) + 1, len(refs.ids))
    return _sampled_curve(refs, sample)


def _curve(need: Ints, weight: Any, total: int, distinct: int, references: int) -> Curve:
    import numpy as np

    order = np.argsort(need, kind="stable")
    return Curve(need[order], np.cumsum(weight[order], dtype=np.float64), total, distinct, references)


def previous_use(ids: Ints) -> Ints:
    """Return for each reference the index of the one before it to the same block, -1 for the first."""
    import numpy as np

    order = np.argsort(ids, kind="stable")
    same = np.zeros(len(ids), dtype=bool)
    same[1:] = ids[order][1:] == ids[order][:-1]
    out = np.full(len(ids), -1, dtype=np.int64)
    out[order[same]] = order[np.flatnonzero(same) - 1]
    return out


def stack_needs(ids: Ints, weight: Ints, request: Ints) -> tuple[Ints, Ints]:
    """Return, for every reference used before, the capacity it needs to be hit and its weight, in order of reference."""
    import numpy as np

    if not len(ids):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    previous = previous_use(ids)
    again = np.flatnonzero(previous >= 0)
    before = np.cumsum(weight) - weight  # weight of everything earlier
    first_of_request = np.searchsorted(request, request[again], side="left")
    fresh = np.where(previous < 0, weight, 0)
    first_uses = np.cumsum(fresh) - fresh
    older = _dominated(previous[again], weight[again])
    last = previous[again]
    distance = first_uses[again] + older - (before[last] + weight[last]) - (before[again] - before[first_of_request])
    return distance + weight[again], weight[again]


def _dominated(values: Ints, weight: Ints) -> Ints:
    """Return for each i the sum of ``weight[j]`` over j < i with ``values[j] < values[i]``; the values are distinct.

    Values are replaced by their ranks, a permutation, filled up to a power of two with weightless ones. From the highest bit down, each
    node (a row) splits stably into equal halves, and the upper half takes the weight of the lower half's elements that stand before it.
    """
    import numpy as np

    count = len(values)
    bits = max(count - 1, 0).bit_length()
    rank = np.empty(count, dtype=np.int64)
    rank[np.argsort(values, kind="stable")] = np.arange(count)
    value = np.arange(1 << bits, dtype=np.int32)
    value[:count] = rank
    heavy, total = np.zeros((2, 1 << bits), dtype=np.int64)
    heavy[:count] = weight
    for bit in range(bits - 1, -1, -1):
        high = (value & (1 << bit)) != 0
        low_first = np.flatnonzero(~high).reshape(-1, 1 << bit)
        order = np.hstack((low_first, np.flatnonzero(high).reshape(-1, 1 << bit)))
        passed = np.cumsum(np.where(high, 0, heavy).reshape(-1, 2 << bit), axis=1).reshape(-1)
        total += passed * high
        order = order.reshape(-1)
        value, heavy, total = value.take(order), heavy.take(order), total.take(order)
    return total[rank]


def mixed_hash(ids: Ints) -> npt.NDArray[np.uint64]:
    """Return a well mixed 64-bit hash (the finaliser of splitmix64): a bare multiplication would always keep id 0."""
    import numpy as np

    x = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _sampled_curve(refs: References, share: float) -> Curve:
    """SHARDS (Waldspurger et al. 2015) with the *adj* correction: sampled weight that is too much or too little is put on distance 0."""
    import numpy as np

    hashed = mixed_hash(refs.ids)
    limit = int(share * 2**64)
    kept = np.flatnonzero(hashed < np.uint64(min(limit, 2**64 - 1)))
    part = (hashed[kept] % np.uint64(GROUPS)).astype(np.int64)
    whole = _scaled(refs, kept, share)
    groups = tuple(_scaled(refs, kept[part == g], share / GROUPS) for g in range(GROUPS))
    return Curve(whole.need, whole.hits, whole.total, whole.distinct, whole.references, share, groups)


def _scaled(refs: References, kept: Ints, share: float) -> Curve:
    import numpy as np

    ids, weight = refs.ids[kept], refs.weight[kept]
    need, hit = stack_needs(ids, weight, refs.request[kept])
    need = ((need - hit) / share).astype(np.int64) + hit
    surplus = share * refs.tokens - float(weight.sum())
    need = np.concatenate((np.zeros(1, dtype=np.int64), need))
    gain = np.concatenate((np.array([surplus]), hit.astype(np.float64))) / share
    return _curve(need, gain, refs.tokens, round(len(np.unique(ids)) / share), len(refs.ids))


def belady_rate(refs: References, capacity: int) -> float:
    """Return the hit rate of a cache that knows the future (Belady's MIN with bypass), in whole blocks: no policy does better.

    The content of shorter last blocks is left out of the cache but counts among the prompt tokens. Cost: a heap, about a second per
    million references.
    """
    import numpy as np

    whole = refs.weight == refs.block
    ids = refs.ids[whole]
    slots = capacity // refs.block
    if slots < 1 or not len(ids):
        return 0.0
    following = _next_use(ids, previous_use(ids))
    hits = 0
    resident: dict[int, int] = {}
    heap: list[tuple[int, int]] = []
    for block, after in zip(ids.tolist(), following.tolist(), strict=True):
        if block in resident:
            hits += 1
        if after == np.iinfo(np.int64).max:
            resident.pop(block, None)
            continue
        resident[block] = after
        heapq.heappush(heap, (-after, block))
        while len(resident) > slots:
            farthest, victim = heapq.heappop(heap)
            if resident.get(victim) == -farthest:
                del resident[victim]
    return hits * refs.block / refs.tokens


def _next_use(ids: Ints, previous: Ints) -> Ints:
    import numpy as np

    out = np.full(len(ids), np.iinfo(np.int64).max, dtype=np.int64)
    again = np.flatnonzero(previous >= 0)
    out[previous[again]] = again
    return out


def reuse_times(refs: References, capacities: Sequence[int] = ()) -> list[dict[str, Any]]:
    """Return hit tokens by the time since their last use, and which tier serves them.

    ``capacities``: (device tokens, host tokens): tokens are "device" if they fit the first, "host" if only the second, "lost" otherwise.
    """
    import numpy as np

    need, weight = stack_needs(refs.ids, refs.weight, refs.request)
    previous = previous_use(refs.ids)
    again = np.flatnonzero(previous >= 0)
    waited = refs.arrival_s[refs.request[again]] - refs.arrival_s[refs.request[previous[again]]]
    device, host = (*capacities, 0, 0)[:2] if capacities else (0, 0)
    edges = np.searchsorted(np.array(TIME_EDGES_S), waited, side="right")
    rows = []
    for slot in range(len(TIME_EDGES_S) + 1):
        here = edges == slot
        on_device = int(weight[here & (need <= device)].sum())
        on_host = int(weight[here & (need > device) & (need <= host)].sum())
        reused = int(weight[here].sum())
        low = TIME_EDGES_S[slot - 1] if slot else 0.0
        high = TIME_EDGES_S[slot] if slot < len(TIME_EDGES_S) else None
        rows.append(
            {
                "from_s": low,
                "to_s": high,
                "reused_tokens": reused,
                "device_tokens": on_device,
                "host_tokens": on_host,
                "lost_tokens": reused - on_device - on_host,
            }
        )
    return rows
