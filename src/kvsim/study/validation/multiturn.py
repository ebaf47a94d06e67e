"""S10, S11, S12: hit rate and TTFT per round of SGLang's multi-turn benchmark client, means over seeds.

Set-ups: what the scenario texts leave out stands in the measured data's own notes (setups.md sections 1-3). Step times are calibrated on open
rounds only, hit rates follow from sizes and rules.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvsim.config.load import load_data
from kvsim.config.resolve import resolve
from kvsim.sim.simulate import simulate
from kvsim.study.validation.core import Criterion, Outcome, Row, Scenario, read_table

SEEDS = 40
T95 = 2.023

LAST_TOKEN_NOT_CACHED = {"base": "sglang-0.5.9", "last_token_cached": False}


@dataclass(frozen=True, slots=True)
class Rounds:
    """Per round: hit rates and mean TTFTs of every seed, in order of seeds."""

    hits: list[list[float]]
    ttft: list[list[float]]
    whole_ttft: list[float]
    input_rate: list[float]


def machine(tokens: int, host: int, costs: dict[str, Any], client: dict[str, Any], **engine: Any) -> dict[str, Any]:
    """Return the scenario of one server under one client."""
    return {
        "hardware": {"base": "8x-h100", "host_ram": "unlimited", "assumptions": []},
        "model": "qwen3-14b",
        "engine": {
            "rules": LAST_TOKEN_NOT_CACHED, "tp": 1, "device_tokens": tokens, "kv_bytes_per_token": 81920, "page_size": 64, "chunked_prefill_size": 8192,
            "context_length": 1_000_000, "hicache": {"host_tokens": host}, **engine,
        },
        "costs": {"kind": "constant", **costs},
        "links": {"kind": "constant", "h2d": "25GB/s", "d2h": "25GB/s"},
        "workload": {"kind": "bench_multiturn", **client},
    }  # fmt: skip


def rounds_of(data: dict[str, Any], seeds: int = SEEDS) -> Rounds:
    """Simulate ``seeds`` seeds and return hit rates and TTFT per round; kept, for judging and predicting ask for the same runs."""
    return _rounds_of(json.dumps(data), seeds)


@lru_cache(maxsize=16)
def _rounds_of(text: str, seeds: int) -> Rounds:
    data = json.loads(text)
    count = data["workload"]["rounds"]
    out = Rounds([], [], [], [])
    for seed in range(1, seeds + 1):
        recording = simulate(resolve(load_data({**data, "run": {"seed": seed}})))
        hit, prompt, wait, number = [0] * count, [0] * count, [0.0] * count, [0] * count
        for row in recording.requests:
            assert row.first_token_ps is not None, (row.status, row.reason)
            hit[row.turn] += row.device_hit + row.host_hit
            prompt[row.turn] += row.prompt_tokens
            wait[row.turn] += (row.first_token_ps - row.arrival_ps) * 1e-12
            number[row.turn] += 1
        out.hits.append([h / p for h, p in zip(hit, prompt, strict=True)])
        out.ttft.append([w / n for w, n in zip(wait, number, strict=True)])
        out.whole_ttft.append(sum(wait) / sum(number))
        out.input_rate.append(sum(prompt) / (recording.manifest["end_ps"] * 1e-12))
    return out


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return mean and the 95 % interval of one published run: mean -+ t times the seed standard deviation."""
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1))
    return mean, mean - T95 * spread, mean + T95 * spread


def column(rows: list[list[float]], index: int) -> list[float]:
    """Return one round's value of every seed."""
    return [row[index] for row in rows]


S10_CLIENT = {
    "clients": 128,
    "rounds": 10,
    "request_length": 512,
    "output_length": 64,
    "max_parallel": 128,
    "request_rate": 1,
    "round_barrier": True,
}
#: TTFT of a round without queueing: 0.05 s + 1.7e-4 s per new token; decode 15 ms. Chosen on S10's open rounds 0-7; reused for S11.
S10_COSTS = {"prefill_tokens_per_s": 1 / 1.7e-4, "per_step": 0.05, "decode_step": 0.015}


def s10_data(host: int = 0) -> dict[str, Any]:
    """Return the S10 server (host 0) or the S11 one."""
    return machine(262_144, host, S10_COSTS, S10_CLIENT)


def judge_s10(folder: Path) -> Outcome:
    """Judge S10: hits exactly where nothing is evicted, within 5 points elsewhere; TTFT by utilisation."""
    measured = read_table(folder, "B2_sglang_pr27010_L1_rounds.csv")
    found = rounds_of(s10_data())
    rows = []
    for line in measured:
        number = int(line["round"])
        hits, low, high = interval(column(found.hits, number))
        rows.append(
            Row(
                "B2_sglang_pr27010_L1_rounds", str(number), "cache_hit_rate", "share", float(line["cache_hit_rate"]), hits, low, high, SEEDS
            )
        )
        times, low_t, high_t = interval(column(found.ttft, number))
        rows.append(
            Row(
                "B2_sglang_pr27010_L1_rounds",
                str(number),
                "avg_ttft_s",
                "s",
                float(line["avg_ttft_s"]),
                times,
                low_t,
                high_t,
                SEEDS,
                scored=number <= 7,
            )
        )
    hits_rows = [row for row in rows if row.metric == "cache_hit_rate"]
    times_rows = [row for row in rows if row.metric == "avg_ttft_s"]
    criteria = [
        Criterion("hit rate, rounds 0-2 (no eviction), points", 100 * max(abs(r.difference or 0) for r in hits_rows[:3]), 0.05, "points"),
        Criterion("hit rate, rounds 3-9, worst points", 100 * max(abs(r.difference or 0) for r in hits_rows[3:]), 5, "points"),
        Criterion("TTFT, rounds 0-3 (utilisation below 0.5), worst", 100 * max(abs(r.error or 0) for r in times_rows[:4]), 20),
        Criterion("TTFT, rounds 4-7, worst", 100 * max(abs(r.error or 0) for r in times_rows[4:8]), 40),
        Criterion(
            "TTFT, rounds 8-9, outside the seed range",
            sum(not _inside(r, column(found.ttft, int(r.row))) for r in times_rows[8:]),
            0,
            "rounds",
        ),
    ]
    return Outcome(rows, criteria, "TTFT constants (0.05 s + 1.7e-4 s per new token) on rounds 0-7 of S10; hit rates on nothing")


def _inside(row: Row, seeds: list[float]) -> bool:
    return row.measured is not None and min(seeds) <= row.measured <= max(seeds)


def predict_s11(folder: Path) -> list[Row]:
    """Predict S11: the same with a host tier of ratio 2; and 20 clients x 9 rounds with an unlimited third tier (as an unlimited host)."""
    del folder
    first = rounds_of(s10_data(524_352))
    rows = []
    for number in range(10):
        for metric, unit, values in (
            ("cache_hit_rate", "share", column(first.hits, number)),
            ("avg_ttft_s", "s", column(first.ttft, number)),
        ):
            rows.append(Row("B2_sglang_pr27010_L2_rounds", str(number), metric, unit, None, *interval(values), seeds=SEEDS))
    client = {
        "clients": 20,
        "rounds": 9,
        "request_length": 4096,
        "output_length": 1,
        "max_parallel": 128,
        "request_rate": 1,
        "round_barrier": True,
    }
    second = rounds_of(machine(262_144, 1 << 26, S10_COSTS, client))
    for number in range(9):
        rows.append(
            Row(
                "B2b_sglang_33984_ratio2_rounds",
                str(number),
                "cache_hit_rate",
                "share",
                None,
                *interval(column(second.hits, number)),
                seeds=SEEDS,
            )
        )
        rows.append(
            Row(
                "B2b_sglang_33984_ratio2_rounds",
                str(number),
                "avg_ttft_s",
                "s",
                None,
                None,
                reason="model, GPU and flags of this run are not published",
            )
        )
    return rows


A10_CLIENT = {
    "clients": 20, "rounds": 10, "request_length": 2048, "output_length": 16, "max_parallel": 4, "request_rate": 20, "length_factor": 1.037,
}  # fmt: skip
#: One constant, the prefill rate, on the GPU-only row; decode step 45 ms as stated.
A10_COSTS = {"prefill_tokens_per_s": 3950, "decode_step": 0.045}
A10_POOL = 55_000 // 64 * 64
H800_CLIENT = {
    "clients": 80, "rounds": 10, "request_length": 2048, "output_length": 1, "max_parallel": 4, "request_rate": 16, "round_barrier": True, "length_factor": 1.037,
}  # fmt: skip
H800_POOL, H800_HOST = 180_000 // 64 * 64, 623_360
#: Fitted on the ten open GPU-only rounds: 45 ms + 4.4e-5 s per new token (the quadratic term is small and left out).
H800_COSTS = {"prefill_tokens_per_s": 1 / 4.9e-5, "per_step": 0.03, "decode_step": 0.02}


def a10(host: int) -> dict[str, Any]:
    """Return the A10 server of S12."""
    return machine(A10_POOL, host, A10_COSTS, A10_CLIENT, chunked_prefill_size=2048)


def h800(host: int) -> dict[str, Any]:
    """Return the H800 server of S12."""
    return machine(H800_POOL, host, H800_COSTS, H800_CLIENT)


def judge_s12(folder: Path) -> Outcome:
    """Judge S12: A10 averages off, on and unlimited; H800 rounds GPU-only and the open L1+L2 ones."""
    rows = _a10_rows(folder) + _h800_rows(folder)
    times = [row for row in rows if row.metric == "avg_ttft_s" and row.file.startswith("B1_")]
    rates = [row for row in rows if row.metric == "input_tok_s"]
    hits = [row for row in rows if row.metric == "cache_hit_pct"]
    waits = [row for row in rows if row.metric == "avg_ttft_s" and row.file.startswith("B1b")]
    criteria = [
        Criterion("A10 TTFT, worst", 100 * max(abs(row.error or 0) for row in times), 15),
        Criterion("A10 input tokens/s, worst", 100 * max(abs(row.error or 0) for row in rates), 10),
        Criterion("H800 hits, worst points", max(abs(row.difference or 0) for row in hits), 7, "points"),
        Criterion("H800 hits, mean points", sum(abs(row.difference or 0) for row in hits) / len(hits), 3, "points"),
        Criterion("H800 TTFT, worst", 100 * max(abs(row.error or 0) for row in waits), 20),
        Criterion("H800 TTFT, mean", 100 * sum(abs(row.error or 0) for row in waits) / len(waits), 10),
    ]
    calibrated = (
        "A10: prefill 3,950 tokens/s on the GPU-only row, pool 55,000 tokens (fitted on open rows by the notes); H800: 30 ms + 4.9e-5 s per token on the "
        "GPU-only rounds, pool 180,000 on GPU-only round 2 (notes); text length factor 1.037"
    )
    return Outcome(rows, criteria, calibrated)


def _a10_rows(folder: Path) -> list[Row]:
    measured = read_table(folder, "B1_mooncake_a10_qwen3-14b.csv")
    hosts = {"GPU-only": 0, "L1+L2 (hicache-ratio 2)": 2 * A10_POOL + 64, "fully populated": None}
    rows = []
    for number, line in enumerate(measured):
        name = line["config"]
        if name not in hosts:
            continue
        host = hosts[name]
        found = rounds_of(a10(1 << 26 if host is None else host), 10)
        for metric, unit, values in (("avg_ttft_s", "s", found.whole_ttft), ("input_tok_s", "tokens/s", found.input_rate)):
            rows.append(Row("B1_mooncake_a10_qwen3-14b", str(number), metric, unit, float(line[metric]), *interval(values), seeds=10))
    return rows


def _h800_rows(folder: Path) -> list[Row]:
    measured = read_table(folder, "B1b_mooncake_h800_qwen3-235b_rounds.csv")
    found = {"GPU-only": rounds_of(h800(0)), "L1+L2 hicache-size 30/rank": rounds_of(h800(H800_HOST))}
    rows = []
    for number, line in enumerate(measured):
        if line["config"] not in found or not line["cache_hit_pct"] or not line["avg_ttft_s"]:
            continue
        simulated, at = found[line["config"]], int(line["round"]) - 1
        hits = [100 * value for value in column(simulated.hits, at)]
        rows.append(
            Row(
                "B1b_mooncake_h800_qwen3-235b_rounds",
                str(number),
                "cache_hit_pct",
                "%",
                float(line["cache_hit_pct"]),
                *interval(hits),
                seeds=SEEDS,
            )
        )
        rows.append(
            Row(
                "B1b_mooncake_h800_qwen3-235b_rounds",
                str(number),
                "avg_ttft_s",
                "s",
                float(line["avg_ttft_s"]),
                *interval(column(simulated.ttft, at)),
                seeds=SEEDS,
            )
        )
    return rows


def predict_s12(folder: Path) -> list[Row]:
    """Predict the held L1+L2 rounds of the H800 run (rounds count from 1)."""
    del folder
    found = rounds_of(h800(H800_HOST))
    rows = []
    for number in range(1, 11):
        hits = [100 * value for value in column(found.hits, number - 1)]
        rows.append(Row("B1b_mooncake_h800_qwen3-235b_rounds", str(number), "cache_hit_pct", "%", None, *interval(hits), seeds=SEEDS))
        rows.append(
            Row(
                "B1b_mooncake_h800_qwen3-235b_rounds",
                str(number),
                "avg_ttft_s",
                "s",
                None,
                *interval(column(found.ttft, number - 1)),
                seeds=SEEDS,
            )
        )
    return rows


Predict = Callable[[Path], list[Row]]


def scenarios() -> list[Scenario]:
    """Return S10, S11 and S12."""
    return [
        Scenario(
            "S10",
            "SGLang multi-turn hit rate by round, L1 only",
            "hits 0.05 points without eviction, else 5; TTFT 20 % / 40 % / seed range",
            "BLIS hit target 5 points",
            judge_s10,
        ),
        Scenario("S11", "SGLang multi-turn, L1 + L2", "hits 0.05 points before overflow; TTFT 20 %", "", None, predict_s11),
        Scenario(
            "S12",
            "Mooncake multi-turn: HiCache on and off",
            "hits 7 points, TTFT 20 %; A10 TTFT 15 %, tokens/s 10 %",
            "",
            judge_s12,
            predict_s12,
        ),
    ]
