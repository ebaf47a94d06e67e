"""S09: vLLM CPU offload on an H100 (Llama-3.1-8B): TTFT by prompt length, throughput by hit rate."""

from __future__ import annotations

from pathlib import Path

from kvsim.study.validation.core import Criterion, Outcome, Row, Scenario, errors, read_table, within

THROUGHPUT, TTFT = "B3b_vllm_offload_throughput_vs_hit", "B3_vllm_offload_ttft"
PROMPT = 512


def service_times(folder: Path) -> tuple[float, float]:
    """Return seconds of a computed and of a loaded 512-token prompt, from both open ends of the throughput curve (0 % and 100 % hits)."""
    rates = {row["cpu_hit_pct"]: float(row["tok_s"]) for row in read_table(folder, f"{THROUGHPUT}.csv")}
    return PROMPT / rates["0"], PROMPT / rates["100"]


def throughput(hit: float, compute_s: float, load_s: float) -> float:
    """Return tokens/s at a share of whole-request hits: compute and load of different requests follow one another (no overlap)."""
    return PROMPT / ((1 - hit) * compute_s + hit * load_s)


def ttft_constants(folder: Path) -> dict[str, tuple[float, float]]:
    """Return (seconds per token or fixed, per token^2 or per token) of computing and of loading, least squares on the open figure."""
    import numpy as np

    out = {}
    for mode, powers in (("gpu_compute", (1, 2)), ("cpu_load", (0, 1))):
        rows = [row for row in read_table(folder, f"{TTFT}.csv") if row["mode"] == mode]
        if not rows:
            continue
        tokens = np.array([1e3 * float(row["prompt_ktokens"]) for row in rows])
        seconds = np.array([1e-3 * float(row["ttft_ms"]) for row in rows])
        design = np.stack([tokens**power / seconds for power in powers], axis=1)
        found, *_ = np.linalg.lstsq(design, np.ones(len(rows)), rcond=None)
        out[mode] = (float(found[0]), float(found[1]))
    return out


def judge_s09(folder: Path) -> Outcome:
    """Judge both curves."""
    compute_s, load_s = service_times(folder)
    rows = []
    for number, line in enumerate(read_table(folder, f"{THROUGHPUT}.csv")):
        hit = line["cpu_hit_pct"]
        if hit.isdigit():
            value = throughput(int(hit) / 100, compute_s, load_s)
            rows.append(
                Row(
                    THROUGHPUT,
                    str(number),
                    "tok_s",
                    "tok/s",
                    float(line["tok_s"]),
                    value,
                    value * 0.92,
                    value * 1.08,
                    scored=hit not in ("0", "100"),
                )
            )
    constants = ttft_constants(folder)
    curve = []
    for number, line in enumerate(read_table(folder, f"{TTFT}.csv")):
        if line["mode"] not in constants:
            continue
        a, b = constants[line["mode"]]
        tokens = 1e3 * float(line["prompt_ktokens"])
        seconds = a * tokens + b * tokens**2 if line["mode"] == "gpu_compute" else a + b * tokens
        curve.append(Row(TTFT, str(number), f"ttft_ms ({line['mode']})", "ms", float(line["ttft_ms"]), 1e3 * seconds))
    found = errors(rows)
    criteria = [
        within("throughput, worst point", rows, 1.0, 10),
        Criterion("throughput, mean", 100 * sum(found) / len(found), 5),
        within("TTFT curve, worst", curve, 1.0, 4),
    ]
    return Outcome(
        rows + curve, criteria, "both ends of the throughput curve (0 and 100 % hits); two constants per TTFT curve on its own points"
    )


def predict_s09(folder: Path) -> list[Row]:
    """Predict the held hit rates (row = hit percent)."""
    compute_s, load_s = service_times(folder)
    values = {hit: throughput(hit / 100, compute_s, load_s) for hit in (20, 40, 60, 80)}
    return [Row(THROUGHPUT, str(hit), "tok_s", "tok/s", None, value, value * 0.92, value * 1.08) for hit, value in values.items()]


def scenarios() -> list[Scenario]:
    """Return S09."""
    return [
        Scenario(
            "S09",
            "vLLM CPU offload: TTFT and throughput by hit rate",
            "10 % per point, 5 % mean; TTFT 4 %",
            "BLIS target TTFT 15 %",
            judge_s09,
            predict_s09,
        )
    ]
