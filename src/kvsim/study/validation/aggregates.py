"""S17: public aggregate experiments whose request rates and length laws are not in the files."""

from __future__ import annotations

from pathlib import Path

from kvsim.study.validation.core import Row, Scenario, read_table

METRICS = (("e2e_mean_ms", "ms"), ("ttft_mean_ms", "ms"), ("itl_mean_ms", "ms"))


def predict_s17(folder: Path) -> list[Row]:
    """No prediction: request rates and lengths of the workloads are not in the files."""
    why = "request rate and length distribution of the workload are not in the files"
    lines = read_table(folder, "E7_blis_held_INPUTS_ONLY.csv")
    return [
        Row("E7_blis_held", str(number), metric, unit, None, None, reason=why) for number, _ in enumerate(lines) for metric, unit in METRICS
    ]


def scenarios() -> list[Scenario]:
    """Return S17."""
    return [Scenario("S17", "BLIS aggregate experiments", "not modelled", "see their own tables", None, predict_s17)]
