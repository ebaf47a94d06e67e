from __future__ import annotations

import random
from collections import OrderedDict

import numpy as np
import pytest

from kvsim.content import canonical
from kvsim.measure.curve import belady_rate, hit_curve, previous_use, reuse_times
from kvsim.measure.references import block_keys, references
from kvsim.workload.read import open_trace
from kvsim.workload.spec import RequestSpec


def spec(number: int, runs: list[tuple[int, int]], at: float = 0.0, namespace: str = "") -> RequestSpec:
    prompt = canonical(runs)
    return RequestSpec(str(number), round(at * 1e12), prompt, sum(n for _, n in prompt), 1, 1 << 40, namespace=namespace)


def growing(seed: int, requests: int) -> list[RequestSpec]:
    """Conversations that grow, behind a few shared beginnings; nothing is aligned to blocks."""
    rng = random.Random(seed)
    texts = [[(1000 * k, rng.randint(1, 40))] for k in range(3)]
    fresh, out = 100_000, []
    for number in range(requests):
        text = list(rng.choice(texts))
        for _ in range(rng.randint(0, 2)):
            size = rng.randint(1, 25)
            text.append((fresh, size))
            fresh += size + 1
        if rng.random() < 0.7:
            texts.append(text)
        out.append(spec(number, text, at=number))
    return out


def brute_force(specs: list[RequestSpec], block: int, capacity: int) -> int:
    """Hit tokens of an LRU cache that evicts the least recently used block until everything fits; looked up before each insertion."""
    cache: OrderedDict[object, int] = OrderedDict()
    used = hits = 0
    for request in specs:
        keys, prefix = [], []
        for piece in block_keys(request.prompt, block):
            prefix.append(piece)
            keys.append(((request.namespace, tuple(prefix)), sum(n for _, n in piece)))
        hits += sum(size for key, size in keys if key in cache)
        for key, size in reversed(keys):
            if key in cache:
                cache.move_to_end(key)
            else:
                cache[key] = size
                used += size
        while used > capacity:
            used -= cache.popitem(last=False)[1]
    return hits


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("block", [1, 7, 16])
def test_the_curve_equals_a_brute_force_lru_at_ten_capacities(seed: int, block: int):
    specs = growing(seed, 70 if block == 1 else 150)
    curve = hit_curve(references(specs, block))
    largest = curve.working_set(1.0)
    for capacity in np.linspace(60, largest + 10, 10).astype(int):
        assert curve.rate(capacity) * curve.total == pytest.approx(brute_force(specs, block, int(capacity)), abs=1e-6)


def test_the_curve_of_the_mooncake_trace_equals_a_brute_force_lru_at_ten_capacities(shared):
    specs = list(open_trace(str(shared / "traces/mooncake_conversation.jsonl")))[:1500]
    curve = hit_curve(references(specs, 512))
    for capacity in np.linspace(200_000, 6_000_000, 10).astype(int):
        assert curve.rate(capacity) * curve.total == pytest.approx(_by_last_block(specs, int(capacity)), abs=1e-3)


def _by_last_block(specs: list[RequestSpec], capacity: int) -> int:
    """As brute_force, with blocks named by their content (in this trace a block stands behind exactly one other)."""
    cache: OrderedDict[object, int] = OrderedDict()
    used = hits = 0
    for request in specs:
        keys = [(piece, sum(n for _, n in piece)) for piece in block_keys(request.prompt, 512)]
        hits += sum(size for key, size in keys if key in cache)
        for key, size in reversed(keys):
            used += 0 if key in cache else size
            cache[key] = size
            cache.move_to_end(key)
        while used > capacity:
            used -= cache.popitem(last=False)[1]
    return hits


def test_equal_blocks_behind_different_prefixes_are_different_content():
    refs = references([spec(0, [(0, 8), (100, 8)]), spec(1, [(50, 8), (100, 8)])], 8)
    assert len(set(refs.ids.tolist())) == 4


def test_tenants_share_nothing():
    same = [spec(0, [(0, 16)], namespace="a"), spec(1, [(0, 16)], namespace="b")]
    assert hit_curve(references(same, 8)).ceiling == 0.0


def test_a_trace_without_reuse_has_no_knee_and_no_working_set():
    curve = hit_curve(references([spec(n, [(1000 * n, 50)]) for n in range(20)], 16))
    assert (curve.ceiling, curve.working_set(), curve.knee()) == (0.0, 0, None)


def test_the_knee_of_a_loop_over_ten_prompts_is_its_size():
    specs = [spec(n, [(1000 * (n % 10), 160)]) for n in range(100)]
    curve = hit_curve(references(specs, 16))
    assert curve.knee() == 1600
    assert curve.rate(1455) == 0.0  # 9 other prompts and the first block
    assert curve.ceiling == pytest.approx(0.9)


def test_no_policy_beats_belady_and_lru_loses_on_a_loop():
    specs = [spec(n, [(1000 * (n % 10), 160)]) for n in range(100)]
    refs = references(specs, 16)
    assert hit_curve(refs).rate(1440) == 0.0
    assert belady_rate(refs, 1440) == pytest.approx((90 - 10 - 1) / 100, abs=0.12)


@pytest.mark.parametrize("seed", range(4))
def test_belady_is_at_least_lru_on_whole_blocks(seed: int):
    rng = random.Random(seed)
    specs = [spec(n, [(1000 * rng.randrange(30), 64)]) for n in range(300)]
    refs = references(specs, 16)
    curve = hit_curve(refs)
    for capacity in (160, 320, 640, 1280):
        assert belady_rate(refs, capacity) >= curve.rate(capacity)


def test_shards_is_within_three_of_its_own_standard_errors():
    rng = random.Random(5)
    specs = [spec(n, [(10_000 * int(rng.paretovariate(0.8)), 16)]) for n in range(40_000)]
    refs = references(specs, 16)
    exact, sampled = hit_curve(refs), hit_curve(refs, sample=0.3)
    for capacity in (2_000, 10_000, 40_000):
        assert sampled.error(capacity) > 0
        assert abs(sampled.rate(capacity) - exact.rate(capacity)) <= 3 * sampled.error(capacity) + 1e-3


def test_reuse_in_time_adds_up_and_names_the_tier():
    specs = [spec(n, [(1000 * (n % 10), 160)], at=5.0 * n) for n in range(100)]
    refs = references(specs, 16)
    rows = reuse_times(refs, (800, 1600))
    assert sum(row["reused_tokens"] for row in rows) == 90 * 160
    assert [row["host_tokens"] for row in rows if row["from_s"] == 10.0] == [90 * 160]


def test_previous_use_is_the_last_one():
    assert previous_use(np.array([3, 1, 3, 3, 1])).tolist() == [-1, -1, 0, 2, 1]


def test_the_published_peer_figures_are_met_within_one_point(shared):
    """Dynamo 1.6.1, 640 k device tokens, inclusive write-through host tier of ratio x device (reuse ratio of the whole trace)."""
    curve = hit_curve(references(open_trace(str(shared / "traces/mooncake_conversation.jsonl")), 512))
    for ratio, reuse in ((1, 0.0480), (3, 0.0847), (10, 0.2428), (30, 0.3573), (100, 0.3725)):
        assert curve.rate(ratio * 640_000) == pytest.approx(reuse, abs=0.01), ratio
    assert curve.ceiling == pytest.approx(0.3736, abs=0.01)
