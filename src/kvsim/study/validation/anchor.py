"""S18: the anchor rig, in shape only: about ten coding agents on Kimi-K2.5 with unpublished flags."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from kvsim.config.load import load
from kvsim.config.resolve import resolve
from kvsim.measure.summary import summarise
from kvsim.sim.simulate import simulate
from kvsim.study.validation.core import Row, Scenario

SEEDS = 5
#: Prompts of 2k to 45k tokens, outputs of 80 to 3k, at most ten at once: contexts that grow, short gaps.
WORKLOAD = (
    "workload={kind: multi_turn, sessions: 60, users: 10, turns: {dist: geometric, mean: 8, low: 1, high: 30}, system_prompt_tokens: 2000, "
    "first_tokens: {mean: 12000, cv: 1.0, low: 100, high: 40000}, turn_tokens: {mean: 3500, cv: 1.0, low: 50}, "
    "output_tokens: {mean: 500, cv: 1.0, low: 80, high: 3000}, think_time: {dist: exponential, mean: 5}}"
)


def predict_s18(folder: Path) -> list[Row]:
    """Predict output tokens/s, TTFT mean and median; wide intervals: the request mix is under-specified."""
    del folder
    found: list[dict[str, Any]] = [
        summarise(simulate(resolve(load("hicache-ratio", [WORKLOAD, f"run.seed={seed}", "clients.concurrency=10"]))))
        for seed in range(1, SEEDS + 1)
    ]
    picks = {
        "output_tok_s": ("tok/s", [s["throughput"]["output_tokens_per_s"] for s in found]),
        "ttft_mean_s": ("s", [s["ttft_s"]["mean_all"] for s in found]),
        "ttft_median_s": ("s", [s["ttft_s"]["p50"] for s in found]),
    }
    rows = []
    for metric, (unit, values) in picks.items():
        mean = math.fsum(values) / len(values)
        rows.append(Row("A7_anchor_rig", "0", metric, unit, None, mean, mean / 3, mean * 3, seeds=SEEDS))
    return rows


def scenarios() -> list[Scenario]:
    """Return S18."""
    return [Scenario("S18", "The anchor rig (shape only)", "within a factor of 2, never tuned on", "", None, predict_s18)]
