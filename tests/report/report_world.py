"""A small fabricated run: consistent facts without the machine, so that views are tested on their own."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from kvsim.config.resolved import Capacity, Line, Resolved
from kvsim.record.recording import Recording, RequestRow

S = 10**12
MS = 10**9


def capacity(**changes: Any) -> Capacity:
    facts: dict[str, Any] = {
        "device_tokens": 10_000,
        "host_tokens": 40_000,
        "page_size": 1,
        "kv_bytes_per_token": 70_272,
        "ranks": 8,
        "host_copies": 8,
        "device_pool_bytes": 702_720_000,
        "host_bytes_per_rank": 2_810_880_000,
        "host_bytes_total": 22_487_040_000,
        "longest_prompt": 9_000,
        "max_running_requests": 128,
        "weight_bytes": 70 * 2**30,
        "card_bytes": 96 * 2**30,
        "free_before_bytes": 94 * 2**30,
        "lines": (
            Line("KV bytes per token", 70_272, "B", "61 layers x 576 x 2 B", "derived"),
            Line("note", "text", "", "as given", "given"),
        ),
        "assumptions": ("flashinfer attention (not published)",),
    }
    return Capacity(**{**facts, **changes})


def resolved(data: dict[str, Any] | None = None, **changes: Any) -> Resolved:
    data = data or scenario()
    return Resolved(
        scenario=SimpleNamespace(),
        data=data,
        digest="0" * 64,
        family="sglang",
        engine=SimpleNamespace(),
        hardware=SimpleNamespace(),
        model=SimpleNamespace(),
        capacity=capacity(**changes),
        warnings=(),
    )


def scenario(**changes: Any) -> dict[str, Any]:
    return {
        "hardware": "8x-rtx-pro-6000",
        "model": "kimi-k2.5-int4",
        "engine": {"rules": "sglang-0.5.9", "tp": 8},
        "slo": {"ttft": 2.0, "tpot": 0.1, "e2e": None, "attainment": 0.9},
        "run": {"seed": 1},
        **changes,
    }


def fabricate(requests: int = 60, seed: int = 1, *, resolved_data: dict[str, Any] | None = None, label: str = "r") -> Recording:
    """Return a run of one server that prefills one request at a time and decodes each alone: all laws of a recording
    hold.
    """
    rng = random.Random(seed)
    recording = Recording(resolved_data or scenario())
    clock, arrival, used, host = 0, 0, 0, 0
    for i in range(requests):
        arrival += rng.randrange(100 * MS, 900 * MS)
        prompt, output = rng.randrange(100, 2_000), rng.randrange(2, 40)
        turn = i % 4
        device = prompt // 4 if turn else 0
        host_hit = prompt // 5 if turn > 1 else 0
        start = max(arrival, clock)
        wait = 5 * MS if host_hit else 0
        if host_hit:
            recording.transfers.append((0, "h2d", start, start, start + 20 * MS, host_hit, host_hit * 70_272))
            recording.cache.append((0, start, 0, 0, 0, 0, host_hit))
        first = start + wait + (prompt - device - host_hit) * 100_000_000
        waiting, used, host = max(0, i % 5), min(9_000, used + prompt), min(40_000, host + prompt // 2)
        recording.steps.append(
            (
                0,
                "prefill",
                start,
                first,
                1,
                0,
                0,
                1,
                prompt - device - host_hit,
                device + host_hit,
                host_hit,
                wait,
                1,
                waiting,
                used,
                used // 2,
                host,
                1,
                0,
            )
        )
        end = first + (output - 1) * 20 * MS
        if output > 1:
            recording.steps.append(
                (
                    0,
                    "decode",
                    first,
                    end,
                    output - 1,
                    1,
                    prompt + 1,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    waiting,
                    used,
                    used // 2,
                    host,
                    output - 1,
                    0,
                )
            )
            recording.gaps.append((0, first + 20 * MS, 20 * MS, 1, output - 1, 0))
        recording.transfers.append((0, "d2h", first, first + MS, first + 10 * MS, prompt // 2, prompt // 2 * 70_272))
        recording.cache.append((0, first, prompt // 3, prompt // 10, 0, prompt // 2, 0))
        recording.requests.append(
            RequestRow(
                f"{label}{i}",
                f"s{i // 4}",
                turn,
                "",
                0,
                "finished",
                "",
                arrival,
                start,
                first,
                end,
                prompt,
                output,
                device,
                host_hit,
                0,
                0,
                0,
                wait,
                20 * MS if host_hit else 0,
            )
        )
        clock = end
    recording.requests.append(
        RequestRow(
            f"{label}-big",
            None,
            0,
            "",
            0,
            "refused",
            "prompt of 99,999 tokens is longer than 9,000",
            arrival,
            None,
            None,
            arrival,
            99_999,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
        )
    )
    recording.manifest.update(end_ps=clock, unsent=0, sent=requests + 1, events=len(recording.steps))
    return recording
