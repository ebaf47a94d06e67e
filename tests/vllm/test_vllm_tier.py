"""The CPU tier by extents agrees with the one key by key."""

from __future__ import annotations

import random

import pytest

from kvsim.content import cut
from kvsim.kv.vllm_offload import ArcTier, CpuTier, stretches
from kvsim.kv.vllm_offload_extent import LruTier


def order(tier: LruTier) -> list[int]:
    keys, stretch = [], tier._head.after
    while stretch is not tier._tail:
        keys += range(stretch.lo, stretch.hi) if stretch.up else range(stretch.hi - 1, stretch.lo - 1, -1)
        stretch = stretch.after
    return keys


def play(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    capacity = rng.choice([5, 12, 30])
    plain, fast = CpuTier(capacity), LruTier(capacity)
    chains = [((100 * i, rng.randrange(1, 9)), (1000 + 100 * i, rng.randrange(1, 9))) for i in range(4)]
    chains += [(chains[0][0], (5000, 6)), (chains[1][0], (6000, 4), (7000, 3))]
    stores, loads = [], []
    for _ in range(steps):
        chain = rng.choice(chains)
        total = sum(count for _, count in chain)
        start = rng.randrange(total)
        part = cut(chain, start, rng.randrange(start + 1, total + 1))
        assert plain.walk(part) == fast.walk(part)
        assert plain.missing(part) == fast.missing(part)
        action = rng.random()
        if action < 0.3:
            plain.touch(part)
            fast.touch(part)
        elif action < 0.6:
            new = tuple(run for lo, hi in plain.missing(part) for run in cut(part, lo, hi))
            if new:
                done = plain.store(new, part)
                assert fast.store(new, part) == done
                if done:
                    stores.append(new)
        elif action < 0.75 and stores:
            new = stores.pop(rng.randrange(len(stores)))
            plain.stored(new)
            fast.stored(new)
        elif action < 0.9:
            count, ready, _ = plain.walk(part)
            if count and ready:
                loads.append(cut(part, 0, count))
                plain.pin(loads[-1])
                fast.pin(loads[-1])
        elif loads:
            done = loads.pop(rng.randrange(len(loads)))
            plain.unpin(done)
            fast.unpin(done)
        if rng.random() < 0.005:
            plain.reset()
            fast.reset()
        assert (plain.resident, plain.idle, plain.evicted) == (fast.resident, fast.idle, fast.evicted)
        assert list(plain._order) == order(fast)
        assert plain.resident <= capacity


@pytest.mark.parametrize("block", range(4))
def test_the_extent_tier_equals_the_plain_one_after_every_operation(block: int) -> None:
    for seed in range(block * 40, block * 40 + 40):
        play(seed, 150)


def test_nothing_is_stored_if_not_everything_fits() -> None:
    for tier in (CpuTier(4), LruTier(4), ArcTier(4)):
        assert tier.store(((0, 3),), ((0, 3),))
        tier.stored(((0, 3),))
        assert not tier.store(((10, 5),), ((10, 5),))
        assert (tier.resident, tier.idle, tier.evicted) == (3, 3, 0)


def test_keys_of_the_job_itself_are_not_evicted_for_it() -> None:
    for tier in (CpuTier(4), LruTier(4)):
        tier.store(((0, 4),), ((0, 4),))
        tier.stored(((0, 4),))
        assert not tier.store(((4, 2),), ((1, 5),))
        assert tier.store(((4, 1),), ((1, 5),))
        assert not tier.holds(0)


def test_stretches_of_positions() -> None:
    assert stretches([True, True, False, True]) == [(0, 2), (3, 4)]
