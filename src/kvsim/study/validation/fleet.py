"""S13, S14: fleets of engines behind a prefix-aware router; the published set-ups leave too much open to predict absolute times."""

from __future__ import annotations

from pathlib import Path

from kvsim.study.validation.core import Row, Scenario

METRICS = (("ttft_mean_s", "s"), ("ttft_p90_s", "s"), ("e2e_mean_s", "s"), ("e2e_p90_s", "s"), ("tok_s", "tok/s"))


def predict_s13(folder: Path) -> list[Row]:
    """No prediction: the router and the split of the load over eight engines are not published."""
    del folder
    why = "eight engines behind a router whose policy and per-engine share are not published; one engine alone is not comparable"
    return [Row("B4_llmd_qwen3-32b_lowcache", str(i), metric, unit, None, None, reason=why) for i in (0, 1) for metric, unit in METRICS]


def predict_s14(folder: Path) -> list[Row]:
    """No prediction: lengths, groups, CPU size and stage length are not published with the figures."""
    del folder
    why = "prompt and output lengths, groups, CPU pool and stage length are not published"
    return [
        Row("B5_llmd_gptoss120b_qps", str(qps), metric, unit, None, None, reason=why) for qps in range(5, 45, 5) for metric, unit in METRICS
    ]


def scenarios() -> list[Scenario]:
    """Return S13 and S14."""
    return [
        Scenario("S13", "llm-d Qwen3-32B, offload on and off", "not modelled", "", None, predict_s13),
        Scenario("S14", "llm-d gpt-oss-120b QPS sweep", "not modelled", "", None, predict_s14),
    ]
