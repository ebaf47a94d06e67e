"""A user's own run: the same table for a scenario and a benchmark result file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvsim.config.load import load
from kvsim.config.resolve import resolve
from kvsim.config.yamlfile import read_text
from kvsim.errors import ConfigError
from kvsim.measure.summary import summarise
from kvsim.sim.simulate import simulate

#: Result key (SGLang bench_serving, vLLM bench) -> where it is in a summary, and the factor from our unit.
KEYS: dict[str, tuple[tuple[str, str], float]] = {
    "mean_ttft_ms": (("ttft_s", "mean_all"), 1e3),
    "median_ttft_ms": (("ttft_s", "p50"), 1e3),
    "p99_ttft_ms": (("ttft_s", "p99"), 1e3),
    "mean_tpot_ms": (("tpot_s", "mean_all"), 1e3),
    "median_tpot_ms": (("tpot_s", "p50"), 1e3),
    "p99_tpot_ms": (("tpot_s", "p99"), 1e3),
    "mean_itl_ms": (("itl_s", "mean"), 1e3),
    "mean_e2e_latency_ms": (("e2e_s", "mean_all"), 1e3),
    "mean_e2el_ms": (("e2e_s", "mean_all"), 1e3),
    "request_throughput": (("throughput", "requests_per_s"), 1.0),
    "output_throughput": (("throughput", "output_tokens_per_s"), 1.0),
}


def compare_with_measured(scenario: str, measured: str, overrides: list[str]) -> list[dict[str, Any]]:
    """Return measured, simulated and relative difference of every figure both have. Raises ConfigError."""
    results = read_results(Path(measured))
    summary = summarise(simulate(resolve(load(scenario, overrides))))
    found = [row for key, value in results.items() if key in KEYS and (row := _row(key, value, summary)) is not None]
    if not found:
        raise ConfigError(f"{measured}: none of the known figures is there; expected for example {', '.join(list(KEYS)[:4])}")
    return found


def read_results(path: Path) -> dict[str, float]:
    """Return the numbers of a benchmark result file: one JSON object, or JSON lines (the last one counts)."""
    text = read_text(path, "benchmark result").strip()
    for candidate in (text, text.splitlines()[-1] if text else ""):
        try:
            data = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(data, dict):
            return {key: float(value) for key, value in data.items() if isinstance(value, (int, float)) and not isinstance(value, bool)}
    raise ConfigError(f"{path}: not a benchmark result (a JSON object, or JSON lines)")


def _row(key: str, measured: float, summary: dict[str, Any]) -> dict[str, Any] | None:
    (block, name), factor = KEYS[key]
    values = summary.get(block)
    if not values or values.get(name) is None or not measured:
        return None
    simulated = values[name] * factor
    return {"figure": key, "measured": measured, "simulated": simulated, "difference": simulated / measured - 1}
