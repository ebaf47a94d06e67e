"""S07: prefill-first scheduling stalls decode: an episode of overlapping long requests on one RTX PRO 6000 under SGLang."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvsim.config.load import load_data
from kvsim.config.resolve import resolve
from kvsim.sim.simulate import simulate
from kvsim.study.validation.core import Row, Scenario, read_table
from kvsim.study.validation.prefill import fitted
from kvsim.workload.clients import OpenLoop
from kvsim.workload.spec import RequestSpec

INPUTS = "E5_sglang_rtxpro6000_contention_INPUTS_ONLY.csv"
FILE = "E5_sglang_rtxpro6000_contention"
SUBSET = "E5_sglang_rtxpro6000_hicache_agentic_subset.csv"
WARM_S = 20_000.0
POOL = 1_194_496


def _seconds(text: str) -> float:
    hour, minute, second = text.split(":")
    return 3600 * int(hour) + 60 * int(minute) + float(second)


def decode_step_s(folder: Path) -> tuple[float, float]:
    """Return (fixed, per context token) of a decode step: a line through the open single requests' time per output token."""
    import numpy as np

    rows = [
        (float(r["input_len"]), float(r["post_prefill_ms"]) / 1e3 / float(r["output_len"]))
        for r in read_table(folder, SUBSET)
        if float(r["output_len"]) > 50
    ]
    design = np.array([[1 / y, x / y] for x, y in rows])
    found, *_ = np.linalg.lstsq(design, np.ones(len(rows)), rcond=None)
    return float(found[0]), max(float(found[1]), 0.0)


def predict_s07(folder: Path) -> list[Row]:
    """Predict queue, prefill and post-prefill times; cached prefixes are put into the cache before."""
    lines = read_table(folder, INPUTS)
    fixed, per_pair = fitted(folder)
    step, per_context = decode_step_s(folder)
    data: dict[str, Any] = {
        "hardware": {"base": "8x-rtx-pro-6000", "gpus": 1, "host_ram": "unlimited"},
        "model": "qwen3-32b",
        "engine": {
            "rules": "sglang-0.5.9", "tp": 1, "device_tokens": POOL, "kv_bytes_per_token": 10_000, "page_size": 64, "chunked_prefill_size": 2048,
            "max_running_requests": 4, "context_length": 1_000_000,
        },
        "costs": {"kind": "constant", "prefill_tokens_per_s": 2048 / fixed, "prefill_per_pair": 1.3 * per_pair, "decode_step": step, "decode_per_context": per_context},
    }  # fmt: skip
    recording = simulate(resolve(load_data(data)), client=OpenLoop(_requests(lines)))
    found = {row.id: row for row in recording.requests}
    rows = []
    for number, _ in enumerate(lines):
        row = found[f"r{number}"]
        assert row.admitted_ps is not None
        assert row.first_token_ps is not None
        assert row.end_ps is not None
        spans = {
            "queue_ms": row.admitted_ps - row.arrival_ps,
            "prefill_ms": row.first_token_ps - row.admitted_ps,
            "post_prefill_ms": row.end_ps - row.first_token_ps,
        }
        for metric, value in spans.items():
            ms = value * 1e-9
            rows.append(Row(FILE, str(number), metric, "ms", None, ms, max(ms * 0.7 - 1000, 0), ms * 1.3 + 1000))
    return rows


def _requests(lines: list[dict[str, str]]) -> list[RequestSpec]:
    specs = []
    start = min(_seconds(line["arrival_EDT"]) for line in lines)
    for number, line in enumerate(lines):
        prompt, cached, output = int(line["input_len"]), int(line["cached_len"]), int(line["output_len"])
        base = (number + 1) << 32
        at = WARM_S + _seconds(line["arrival_EDT"]) - start
        if cached:
            specs.append(RequestSpec(f"w{number}", round(number * 1000e12), ((base, cached),), cached, 1, base + (1 << 30)))
        specs.append(RequestSpec(f"r{number}", round(at * 1e12), ((base, prompt),), prompt, output, base + (1 << 31)))
    return sorted(specs, key=lambda spec: spec.arrival_ps)


def scenarios() -> list[Scenario]:
    """Return S07."""
    return [Scenario("S07", "Prefill-first scheduling stalls decode", "queue and prefill 15 %", "none published", None, predict_s07)]
