"""S15: per-request replays of public vLLM runs; five step-time constants from the first 100 requests of a run, judged on the rest.

The constants below were found by ``calibrate`` (Nelder-Mead on log errors of TTFT, TPOT and E2E of the first 100 requests) and frozen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.config.load import load_data
from kvsim.config.resolve import resolve
from kvsim.record.recording import Recording
from kvsim.sim.simulate import simulate
from kvsim.study.validation.core import Criterion, Outcome, Row, Scenario, quantile, read_table
from kvsim.workload.clients import OpenLoop
from kvsim.workload.spec import RequestSpec

PS = 1e-12
CALIBRATED = 100


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run: file, engine settings, KV tokens, GPUs, constants (s): step, per sequence, per context token, per new token, per pair."""

    file: str
    model: str
    engine: dict[str, Any]
    constants: tuple[float, float, float, float, float]
    expert: tuple[float, float] = (0.0, 0.0)


def _vllm(seqs: int, blocks: int, **more: Any) -> dict[str, Any]:
    return {
        "rules": "vllm-0.19.0", "tensor_parallel_size": 1, "max_num_batched_tokens": 2048, "max_num_seqs": seqs, "block_size": 16,
        "num_gpu_blocks_override": blocks, "max_model_len": 16384, **more,
    }  # fmt: skip


RUNS = {
    "E1": Run("E1_llmservingsim_rtx4090_llama31-8b.csv", "llama-3.1-8b", _vllm(256, 2588), (0.01807, 2.183e-5, 1.414e-7, 9.924e-5, 1.151e-9)),
    "E2": Run("E2_llmservingsim_rtxpro6000_llama31-8b.csv", "llama-3.1-8b", _vllm(128, 32000), (0.012285, 2.7976e-5, 9.5131e-8, 3.2999e-5, 8.5464e-10)),
    "E3": Run(
        "E3_llmservingsim_rtxpro6000_qwen3-30b-a3b.csv", "qwen3-30b-a3b", _vllm(128, 40000, data_parallel_size=2, enable_expert_parallel=True),
        (0.015766, 6.0424e-5, 1.0923e-7, 2.772e-5, 1.2821e-9), (0.0096135, 0.0625),
    ),
}  # fmt: skip


def scenario(run: Run, constants: Sequence[float]) -> dict[str, Any]:
    """Return the scenario of a run with these constants."""
    step, sequence, context, token, pair = constants
    costs = {
        "kind": "constant", "decode_step": step, "decode_per_sequence": sequence, "decode_per_context": context, "prefill_tokens_per_s": 1 / token,
        "prefill_per_pair": pair, "expert_step": run.expert[0], "expert_share": run.expert[1],
    }  # fmt: skip
    return {"hardware": {"base": "8x-rtx-pro-6000", "host_ram": "unlimited"}, "model": run.model, "engine": run.engine, "costs": costs}


def requests(lines: list[dict[str, str]]) -> list[RequestSpec]:
    """Return the requests of a file, each with content of its own."""
    out = []
    for number, line in enumerate(lines):
        prompt, output = int(line["input_toks"]), int(line["output_toks"])
        base = (number + 1) << 24
        out.append(
            RequestSpec(
                str(number), round(float(line["arrival_s"]) * 1e12), ((base, prompt),), prompt, output, base + (1 << 23), ignore_eos=True
            )
        )
    return sorted(out, key=lambda spec: spec.arrival_ps)


def replay(run: Run, lines: list[dict[str, str]], constants: Sequence[float]) -> Recording:
    """Simulate a run."""
    return simulate(resolve(load_data(scenario(run, constants))), client=OpenLoop(requests(lines)))


def simulated(recording: Recording) -> dict[str, dict[str, float]]:
    """Return TTFT, TPOT and E2E (s) by request."""
    out = {}
    for row in recording.requests:
        assert row.first_token_ps is not None
        assert row.end_ps is not None
        out[row.id] = {
            "ttft": (row.first_token_ps - row.arrival_ps) * PS, "e2e": (row.end_ps - row.arrival_ps) * PS,
            "tpot": (row.end_ps - row.first_token_ps) * PS / max(row.output_tokens - 1, 1),
        }  # fmt: skip
    return out


def measured(lines: list[dict[str, str]]) -> dict[str, dict[str, float]]:
    """Return the same of the measured run; its clock starts when a request is queued."""
    out = {}
    for number, line in enumerate(lines):
        queued, first, last = (float(line[name]) for name in ("queued_s", "first_token_s", "last_token_s"))
        out[str(number)] = {"ttft": first - queued, "e2e": last - queued, "tpot": (last - first) / max(int(line["output_toks"]) - 1, 1)}
    return out


def loss(run: Run, lines: list[dict[str, str]], constants: Sequence[float]) -> float:
    """Return the squared log errors of mean, median and P90 over the first 100 requests."""
    have, want = simulated(replay(run, lines, constants)), measured(lines)
    ids = [str(number) for number in range(CALIBRATED)]
    total = 0.0
    for metric, weight in (("ttft", 0.5), ("tpot", 2.0), ("e2e", 2.0)):
        a, b = [have[i][metric] for i in ids], [want[i][metric] for i in ids]
        for x, y in zip(_picks(a), _picks(b), strict=True):
            total += weight * math.log(max(x, 1e-9) / y) ** 2
        total += weight * 0.2 * sum(math.log(max(x, 1e-9) / max(y, 1e-9)) ** 2 for x, y in zip(a, b, strict=True)) / len(a)
    return total


def _picks(values: list[float]) -> tuple[float, float, float]:
    """Return mean, median and P90."""
    return sum(values) / len(values), quantile(values, 0.5), quantile(values, 0.9)


def calibrate(name: str, folder: Path, evaluations: int = 250) -> list[float]:
    """Return the constants of one run found on its first 100 requests."""
    import numpy as np
    from scipy.optimize import minimize

    run = RUNS[name]
    lines = read_table(folder, run.file)

    def objective(logs: Any, /) -> float:
        return loss(run, lines, [math.exp(x) for x in logs])

    start = [math.log(x) for x in run.constants]
    found = minimize(
        objective, np.array(start), method="Nelder-Mead", options={"maxfev": evaluations, "initial_simplex": np.array(_simplex(start))}
    )
    return [math.exp(x) for x in found.x]


def _simplex(start: list[float]) -> list[list[float]]:
    return [start, *([x + (0.25 if i == j else 0.0) for j, x in enumerate(start)] for i in range(len(start)))]


def judge_s15(folder: Path) -> Outcome:
    """Judge E1-E3 on the requests after the first hundred."""
    rows: list[Row] = []
    criteria: list[Criterion] = []
    for name, run in RUNS.items():
        lines = read_table(folder, run.file)
        have, want = simulated(replay(run, lines, run.constants)), measured(lines)
        ids = [str(number) for number in range(CALIBRATED, len(lines))]
        for metric in ("ttft", "tpot", "e2e"):
            a, b = [have[i][metric] for i in ids], [want[i][metric] for i in ids]
            means = Row(run.file[:-4], "100-299", f"{metric} mean", "s", sum(b) / len(b), sum(a) / len(a))
            median = Row(run.file[:-4], "100-299", f"{metric} p50", "s", quantile(b, 0.5), quantile(a, 0.5))
            high = Row(run.file[:-4], "100-299", f"{metric} p90", "s", quantile(b, 0.9), quantile(a, 0.9))
            rows += [means, median, high]
            if metric == "ttft":
                criteria.append(Criterion(f"{name} TTFT mean", 100 * abs(means.error or 0), 10 if name == "E3" else 5))
            else:
                criteria.append(Criterion(f"{name} {metric.upper()} mean", 100 * abs(means.error or 0), 3))
                criteria.append(Criterion(f"{name} {metric.upper()} p50, p90", 100 * max(abs(median.error or 0), abs(high.error or 0)), 5))
    analysis = (
        "E1 and E2 are within every tolerance. E3 (two lockstep engines with expert parallelism) misses TPOT and E2E: over the run its measured TPOT falls "
        "from 48 to 51 ms (first 160 requests, while 8,000 prompt tokens/s come in) to 34 ms (last 20, decoding only), the simulated one rises from 43 to 50 ms "
        "and falls to 38 ms. The logged throughputs say why: prompt tokens slow decoding by about 38 us each, summed over both engines, but the TTFTs of the "
        "same requests allow no more than 28 us. Tried on the first 100 requests and rejected, for they fit these better and the other 200 worse (TPOT off by "
        "6 to 7.5 %): compute hidden behind the reading of weights, experts that serve both engines' tokens, prompt tokens of both engines summed, an own fixed time "
        "for steps with prompt tokens. The published constants are the plain ones."
    )
    return Outcome(rows, criteria, "five step constants per run on its first 100 requests (E3: and the size of the expert term)", analysis)


def e4_run() -> Run:
    """Return the held run: E2's weights and KV terms scaled to Qwen3-32B over two GPUs, plus 128 all-reduces a step over PCIe."""
    step, sequence, context, token, pair = RUNS["E2"].constants
    weights = 65.5e9 / 2 / 16.06e9
    kv = 262_144 / 2 / 131_072
    reduces, alpha, beta = 128, 12e-6, 22e9
    wire = reduces * 5120 * 2 / beta
    flops = 32.8 / 2 / 8.03
    scaled = (step * weights + reduces * alpha, sequence + wire, context * kv, token * flops + wire, pair * 64 * 64 / 2 / (32 * 32))
    return Run("E4_rtxpro6000_qwen3-32b_tp2_INPUTS_ONLY.csv", "qwen3-32b", _vllm(128, 16000, tensor_parallel_size=2), scaled)


def predict_s15(folder: Path) -> list[Row]:
    """Predict E4 without calibration on it; intervals are the stated tolerances of an uncalibrated prediction."""
    run = e4_run()
    lines = read_table(folder, run.file)
    have = simulated(replay(run, lines, run.constants))
    rows = []
    for metric, unit, scale, spread in (("ttft", "s", 1.0, 0.5), ("tpot", "ms", 1e3, 0.25), ("e2e", "s", 1.0, 0.25)):
        values = [scale * entry[metric] for entry in have.values()]
        picks = {"mean": sum(values) / len(values), **{f"p{p}": quantile(values, p / 100) for p in (50, 90, 99)}}
        for pick, value in picks.items():
            rows.append(
                Row(
                    "E4_rtxpro6000_qwen3-32b_tp2",
                    "",
                    f"{metric}_{pick}_{unit}",
                    unit,
                    None,
                    value,
                    value * (1 - spread),
                    value * (1 + spread),
                )
            )
    return rows


def scenarios() -> list[Scenario]:
    """Return S15."""
    peer = "LLMServingSim itself: TTFT -13.6 to +0.6 %, TPOT -1.7 to +0.2 %"
    return [
        Scenario(
            "S15", "LLMServingSim replays (vLLM)", "TPOT, E2E mean 3 %, P50/P90 5 %; TTFT mean 5 % (E3 10 %)", peer, judge_s15, predict_s15
        )
    ]
