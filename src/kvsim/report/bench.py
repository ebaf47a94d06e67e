"""Result files with the keys of the engines' own benchmark clients, so that existing comparison scripts just work.

SGLang: one JSON object as ``python -m sglang.bench_serving --output-file`` appends it (0.5.9). vLLM: the file of
``vllm bench serve --save-result --save-detailed`` (0.24). A simulation has no texts and no per-token gaps per
request: ``generated_texts`` and ``itls`` are left out; ITL statistics are exact over all gaps.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import ConfigError
from kvsim.measure.latency import Latencies, inter_token
from kvsim.report.frames import PS
from kvsim.report.names import model_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.record.recording import Recording

MS = 1e3
PERCENTILES = (25, 50, 75, 90, 95, 99)


def write_bench_json(recording: Recording, summary: dict[str, Any], path: str | Path) -> Path:
    """Write the result file in the engine family's own format and return its path."""
    target = Path(path)
    result = vllm_result(recording, summary) if family_of(recording) == "vllm" else sglang_result(recording, summary)
    try:
        target.write_text(json.dumps(result, allow_nan=False) + "\n", "utf-8")
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written: {error.strerror}") from None
    return target


def family_of(recording: Recording) -> str:
    """Return the engine family ("sglang" or "vllm") of a recording's scenario."""
    engine = recording.resolved.get("engine") or {}
    rules = engine.get("rules") or engine.get("family") or "sglang"
    if isinstance(rules, dict):
        rules = rules.get("base") or "sglang"
    return "vllm" if str(engine.get("family") or rules).startswith("vllm") else "sglang"


def sglang_result(recording: Recording, summary: dict[str, Any]) -> dict[str, Any]:
    """Return one line of sglang.bench_serving's output file."""
    latencies = Latencies(recording)
    workload = recording.resolved.get("workload") or {}
    return {
        "backend": "sglang",
        "dataset_name": str(workload.get("kind") or workload.get("format") or workload.get("trace") or "kvsim"),
        "request_rate": _rate(recording),
        "max_concurrency": _concurrency_limit(recording),
        **_counts(recording),
        "total_input_text_tokens": _input(recording),
        "total_output_tokens_retokenized": _output(recording),
        **_throughputs(recording),
        "input_throughput": _per_s(_input(recording), recording),
        "total_throughput": _per_s(_input(recording) + _output(recording), recording),
        **_spread("e2e_latency", latencies.e2e),
        **_spread("ttft", latencies.ttft),
        **_spread("tpot", latencies.tpot),
        **_itl(recording),
        "concurrency": sum(latencies.e2e) / _duration(recording) if _duration(recording) else 0.0,
        "accept_length": (recording.manifest.get("speculation") or {}).get("accept_length"),
        **_details(recording),
    }


def vllm_result(recording: Recording, summary: dict[str, Any]) -> dict[str, Any]:
    """Return the result of vllm bench serve."""
    latencies = Latencies(recording)
    slo = summary.get("slo")
    return {
        "backend": "vllm",
        "endpoint_type": "simulated",
        "model_id": model_name(recording.resolved),
        "tokenizer_id": model_name(recording.resolved),
        "num_prompts": len(recording.requests),
        "request_rate": _rate(recording),
        "burstiness": None,
        "max_concurrency": _concurrency_limit(recording),
        **_counts(recording),
        "failed": sum(1 for row in recording.requests if row.status != "finished"),
        **_throughputs(recording),
        "request_goodput": None if slo is None else slo["goodput_requests_per_s"],
        "total_token_throughput": _per_s(_input(recording) + _output(recording), recording),
        **_spread("ttft", latencies.ttft),
        **_spread("tpot", latencies.tpot),
        **_itl(recording),
        **_spread("e2el", latencies.e2e),
        **_details(recording),
        "start_times": [row.arrival_ps * PS for row in _ordered(recording)],
    }


def _counts(recording: Recording) -> dict[str, Any]:
    return {
        "duration": _duration(recording),
        "completed": sum(1 for row in recording.requests if row.status == "finished"),
        "total_input_tokens": _input(recording),
        "total_output_tokens": _output(recording),
    }


def _throughputs(recording: Recording) -> dict[str, float]:
    finished = sum(1 for row in recording.requests if row.status == "finished")
    return {
        "request_throughput": _per_s(finished, recording),
        "output_throughput": _per_s(_output(recording), recording),
    }


def _duration(recording: Recording) -> float:
    """Return the client's view of the duration: first send to last end, in seconds."""
    ends = [row.end_ps for row in recording.requests if row.end_ps is not None]
    return (max(ends) - min(row.arrival_ps for row in recording.requests)) * PS if ends else 0.0


def _per_s(amount: float, recording: Recording) -> float:
    duration = _duration(recording)
    return amount / duration if duration > 0 else 0.0


def _input(recording: Recording) -> int:
    """Return prompt tokens of finished requests: what both clients count."""
    return sum(row.prompt_tokens for row in recording.requests if row.status == "finished")


def _output(recording: Recording) -> int:
    return sum(row.output_tokens for row in recording.requests if row.status == "finished")


def _rate(recording: Recording) -> float | str:
    rows = recording.requests
    if len(rows) < 2:
        return "inf"
    span = max(row.arrival_ps for row in rows) - min(row.arrival_ps for row in rows)
    return (len(rows) - 1) / (span * PS) if span else "inf"


def _concurrency_limit(recording: Recording) -> int | None:
    clients = recording.resolved.get("clients")
    value = clients.get("max_concurrency", clients.get("concurrency")) if isinstance(clients, dict) else None
    return value if isinstance(value, int) else None


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return mean, median, std and percentiles of seconds as milliseconds; zeros without a value, as the clients print
    them.
    """
    import numpy as np

    data = np.asarray(values or [0.0], dtype=np.float64) * MS
    out = {
        f"mean_{name}_ms": float(data.mean()),
        f"median_{name}_ms": float(np.median(data)),
        f"std_{name}_ms": float(data.std()),
    }
    return {**out, **{f"p{p}_{name}_ms": float(np.percentile(data, p)) for p in PERCENTILES}}


def _itl(recording: Recording) -> dict[str, float]:
    values = inter_token(recording, PERCENTILES)
    if values is None:
        return _spread("itl", [])
    mean = values["mean"]
    square = sum(c * _squares(g, r, s) for _, _, g, c, r, s in recording.gaps) * PS * PS / values["count"]
    out = {
        "mean_itl_ms": mean * MS,
        "median_itl_ms": values["p50"] * MS,
        "std_itl_ms": max(square - mean * mean, 0.0) ** 0.5 * MS,
        "max_itl_ms": values["max"] * MS,
    }
    return {**out, **{f"p{p}_itl_ms": values[f"p{p}"] * MS for p in PERCENTILES}}


def _squares(gap: int, repeat: int, slope: int) -> int:
    """Return sum((gap + i * slope)^2 for i in range(repeat)), exactly."""
    first, second = repeat * (repeat - 1) // 2, (repeat - 1) * repeat * (2 * repeat - 1) // 6
    return repeat * gap * gap + 2 * gap * slope * first + slope * slope * second


def _ordered(recording: Recording) -> list[Any]:
    return sorted(recording.requests, key=lambda row: (row.arrival_ps, row.id))


def _details(recording: Recording) -> dict[str, Any]:
    rows = _ordered(recording)
    return {
        "input_lens": [row.prompt_tokens for row in rows],
        "output_lens": [row.output_tokens if row.status == "finished" else 0 for row in rows],
        "ttfts": [0.0 if row.first_token_ps is None else (row.first_token_ps - row.arrival_ps) * PS for row in rows],
        "errors": ["" if row.status == "finished" else f"{row.status}: {row.reason}" for row in rows],
    }
