"""The fast paths (cohort, block extents, tier extents) decide row by row as the plain ones do, in recordings made up at random."""

from __future__ import annotations

import random

import pytest

from kvsim.kv.blocks import BlockPool
from kvsim.kv.vllm_offload import CpuTier
from kvsim.rules.vllm import OFFLOADING, RULES
from kvsim.serving.vllm.core import VllmCore
from kvsim.verify.vllm_replay import Replay


def made_up(seed: int):
    rng = random.Random(seed)
    size = rng.choice([1, 4, 16, 32, 64])
    longest = size * rng.randrange(8, 30)
    blocks = longest // size + 2 + rng.randrange(0, 40)
    meta = {
        "block_size": size, "num_gpu_blocks": blocks, "max_model_len": longest,
        "max_num_batched_tokens": rng.choice([longest, max(8, longest // 3), 64]), "max_num_seqs": rng.choice([3, 8, 32]),
        "long_prefill_token_threshold": rng.choice([0, 0, 0, max(2, longest // 6)]), "enable_chunked_prefill": rng.random() < 0.9,
        "policy": rng.choice(["fcfs", "fcfs", "priority"]), "reserve_full_isl": rng.random() < 0.7,
        "watermark": rng.choice([0.0, 0.0, 0.1]), "prefix_caching": rng.random() < 0.9, "async": rng.random() < 0.6,
    }  # fmt: skip
    if rng.random() < 0.6:
        meta |= {
            "connector": OFFLOADING, "cpu_blocks": rng.choice([6, 20, 80]), "cpu_policy": rng.choice(["lru", "lru", "arc"]),
            "offload_prompt_only": rng.random() < 0.6, "offload_factor": rng.choice([1, 1, 2, 3]),
            "store_threshold": rng.choice([0, 0, 2, 3]), "store_delay": rng.randrange(6), "load_delay": rng.randrange(6),
        }  # fmt: skip
    return meta, made_up_requests(rng, longest)


def made_up_requests(rng: random.Random, longest: int):
    """Shared heads, repeated prompts, prompts that contain an answer still being generated, equal answers, aborts."""
    requests: dict[str, dict] = {}
    at = 1
    for number in range(rng.randrange(8, 30)):
        at += int(rng.expovariate(1 / rng.choice([1, 4, 15])))
        parts = [[rng.choice([1000, 2000, 3000]), rng.randrange(1, longest // 2)]]
        parts += [[10_000 + 1000 * rng.randrange(6), rng.randrange(1, longest // 4)]] if rng.random() < 0.6 else []
        output = 100_000 + 1000 * number
        if requests and rng.random() < 0.35:
            other = rng.choice(list(requests.values()))
            kept = rng.randrange(1, other["len"] + 1)
            parts = [*other["in"], [other["out"], kept], [50_000 + 100 * number, rng.randrange(1, 20)]]
            if rng.random() < 0.2:
                parts, output = list(other["in"]), other["out"]
        total = sum(count for _, count in parts)
        if total >= longest - 2:
            continue
        limit = rng.randrange(1, longest - total)
        length = limit if rng.random() < 0.5 else rng.randrange(1, limit + 1)
        request = {"at": at, "in": parts, "out": output, "len": length, "max": limit, "prio": rng.randrange(3)}
        if rng.random() < 0.15:
            request["abort"] = at + rng.randrange(0, 60)
        requests[str(number)] = request
    return requests


def rows(replay: Replay, passes: int):
    out = []
    for now in range(1, passes + 1):
        out.append(replay.step(now))
        if not replay.scheduler.busy() and not replay._arrivals and not replay.queue:
            break
    return out


def check(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    meta, requests = made_up(seed)
    fast = rows(Replay(meta, requests, True, RULES["vllm-0.24.0"]), 1500)
    with monkeypatch.context() as patch:
        patch.setattr(VllmCore, "make_pool", lambda self, usable, first: BlockPool(usable, first))
        slow = Replay(meta, requests, True, RULES["vllm-0.24.0"])
    if meta.get("connector") and meta["cpu_policy"] == "lru":
        slow.scheduler.connector.tier = CpuTier(meta["cpu_blocks"])
    for one, other in zip(fast, rows(slow, 1500), strict=True):
        assert one == other, (seed, meta)


@pytest.mark.parametrize("block", range(4))
def test_fast_and_plain_paths_agree_row_by_row(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(14 * block, 14 * block + 14):
        check(seed, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_fast_and_plain_paths_agree_row_by_row_at_length(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(10_000 + 50 * block, 10_050 + 50 * block):
        check(seed, monkeypatch)
