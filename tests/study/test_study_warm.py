from __future__ import annotations

import json
from pathlib import Path

import pytest
from study_world import queue_scenario

from kvsim.config.load import load
from kvsim.config.resolve import resolve
from kvsim.errors import ConfigError
from kvsim.measure.summary import summarise
from kvsim.record.recording import Recording
from kvsim.sim.simulate import simulate
from kvsim.workload.warm import first_of


def run(*overrides: str) -> Recording:
    return simulate(resolve(load("toy", list(overrides))))


def test_first_ten_minutes_are_left_out_and_the_rest_is_the_same():
    plain = simulate(resolve(queue_scenario("workload.requests=300")))
    warm = simulate(resolve(queue_scenario("workload.requests=300", "run.warm_start=first 20s")))
    start = 20 * 10**12
    late = [row for row in plain.requests if row.arrival_ps >= start]
    assert len(late) == len(warm.requests) < 300
    assert [row.id for row in late] == [row.id for row in warm.requests]
    assert [row.first_token_ps - row.arrival_ps for row in late] == [row.first_token_ps - row.arrival_ps for row in warm.requests]
    assert warm.manifest["end_ps"] == plain.manifest["end_ps"] - start
    assert "not counted" in warm.manifest["warm_start"]


def test_a_trace_fills_the_caches_first(tmp_path: Path):
    row = {"timestamp": 0, "input_length": 2000, "output_length": 1, "hash_ids": [1, 2, 3, 4]}
    again = {"timestamp": 0, "input_length": 2500, "output_length": 1, "hash_ids": [1, 2, 3, 4, 5]}
    for name, content in (("yesterday", row), ("today", again)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(content) + "\n")
    row["input_length"] = 2048
    (tmp_path / "yesterday.jsonl").write_text(json.dumps(row) + "\n")
    today = f'workload={{"kind": "trace", "trace": "{tmp_path}/today.jsonl"}}'
    cold, warm = run(today, "engine.page_size=1"), run(today, "engine.page_size=1", f"run.warm_start={tmp_path}/yesterday.jsonl")
    assert [row.device_hit for row in cold.requests] == [0]
    assert [row.device_hit for row in warm.requests] == [2048]
    assert summarise(warm)["requests"]["total"] == 1


def test_closed_loops_go_on_after_a_warm_up(tmp_path: Path):
    (tmp_path / "y.jsonl").write_text(json.dumps({"timestamp": 5, "input_length": 512, "output_length": 1, "hash_ids": [7]}) + "\n")
    recipe = 'workload={"kind": "multi_turn", "sessions": 3, "turns": 4, "first_tokens": 100, "turn_tokens": 50, "output_tokens": 5, "think_time": 1}'
    plain, warm = run(recipe), run(recipe, f"run.warm_start={tmp_path}/y.jsonl")
    assert len(warm.requests) == len(plain.requests) > 3
    assert {row.status for row in warm.requests} == {"finished"}


@pytest.mark.parametrize("text", ["first ten", "first 10", "first -3s", "first 5 days"])
def test_a_wrong_warm_start_is_an_error(text: str):
    with pytest.raises(ConfigError, match="first 10min"):
        first_of(text)
