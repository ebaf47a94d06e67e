"""S01, S02: KV arithmetic and pool printouts."""

from __future__ import annotations

import re
from pathlib import Path

from kvsim.config.model import load_model
from kvsim.config.sglang_memory import host_tokens
from kvsim.study.validation.core import Outcome, Row, Scenario, read_table, within

GIB = 2**30


def judge_s01(folder: Path) -> Outcome:
    """Judge tokens against printed bytes: exact arithmetic where both are printed; otherwise the missing input is named."""
    rows = []
    for number, line in enumerate(read_table(folder, "A3_kv_capacity_open.csv")):
        cell = line["kv_bytes_per_token_per_rank(arith)"]
        printed, tokens = line["printed memory"], line["printed token capacity"]
        size = re.search(r"([\d.]+) ?(?:GiB|GB)", printed)
        measured = float(tokens) if tokens.isdigit() else None
        if size and cell.isdigit() and measured is not None:
            rows.append(
                Row("A3_kv_capacity_open", str(number), "printed token capacity", "tokens", measured, float(size[1]) * GIB / int(cell))
            )
        else:
            missing = "weights and free memory before loading are not printed" if measured is not None else "a range of several operators"
            rows.append(
                Row("A3_kv_capacity_open", str(number), "printed token capacity", "tokens", measured, None, reason=missing, scored=False)
            )
    return Outcome(rows, [within("worst row", rows, 1.0, 0.1)], "nothing")


def predict_s01(folder: Path) -> list[Row]:
    """Predict tokens of the held printouts where the printed KV bytes decide them."""
    rows = []
    for number, line in enumerate(read_table(folder, "A3_kv_capacity_held_INPUTS_ONLY.csv")):
        cell, printed = line["kv_bytes_per_token_per_rank(arith)"], line["printed memory"]
        size = re.search(r"KV size ([\d.]+) GB printed", printed)
        if size and cell.isdigit():
            value = float(size[1]) * GIB / int(cell)
            half = 0.005 * GIB / int(cell)
            rows.append(
                Row("A3_kv_capacity_held", str(number), "printed token capacity", "tokens", None, value, value - half, value + half)
            )
        else:
            rows.append(
                Row(
                    "A3_kv_capacity_held",
                    str(number),
                    "printed token capacity",
                    "tokens",
                    None,
                    None,
                    reason="weights, activation peak and graphs of this run are not printed",
                )
            )
    return rows


def judge_s02(folder: Path) -> Outcome:
    """Judge the printed host pool against tokens x ratio, pages and one more."""
    rows = []
    for number, line in enumerate(read_table(folder, "A4_hicache_host_size_open.csv")):
        printed = line["printed_host_GB"]
        number_of = re.search(r"[\d.]+", printed)
        if line["device_tokens"] and line["ratio"] and line["bytes_per_token_per_rank"]:
            host = host_tokens(int(line["device_tokens"]), float(line["ratio"]), 0, int(line["bytes_per_token_per_rank"]), 1)
            value = host * int(line["bytes_per_token_per_rank"]) / 1e9
            rows.append(Row("A4_hicache_host_size_open", str(number), "printed_host_GB", "GB", float(printed), value))
        elif "hicache-size 40 x 8" in line["notes"] and number_of:
            cell = load_model("deepseek-v3.1").kv_bytes_per_token(8)
            rows.append(
                Row(
                    "A4_hicache_host_size_open",
                    str(number),
                    "printed_host_GB",
                    "GB",
                    float(number_of[0]),
                    8 * host_tokens(1, 0, 40, cell, 1) * cell / 1e9,
                )
            )
        else:
            why = "device tokens or bytes per token of this model are not given"
            rows.append(
                Row(
                    "A4_hicache_host_size_open",
                    str(number),
                    "printed_host_GB",
                    "GB",
                    float(number_of[0]) if number_of else None,
                    None,
                    reason=why,
                    scored=False,
                )
            )
    return Outcome(rows, [within("worst row", rows, 1.0, 0.5)], "nothing")


def predict_s02(folder: Path) -> list[Row]:
    """The held rows give neither device tokens nor bytes per token."""
    lines = read_table(folder, "A4_hicache_host_size_held_INPUTS_ONLY.csv")
    why = "device tokens and bytes per token of this model are not given"
    return [Row("A4_hicache_host_size_held", str(i), "printed_host_GB", "GB", None, None, reason=why) for i, _ in enumerate(lines)]


def scenarios() -> list[Scenario]:
    """Return S01 and S02."""
    return [
        Scenario("S01", "KV bytes and pool printouts", "0.1 % tokens from printed bytes", "none published", judge_s01, predict_s01),
        Scenario("S02", "HiCache host-pool size", "0.5 %", "none published", judge_s02, predict_s02),
    ]
