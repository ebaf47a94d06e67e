"""At a horizon, too, runs of decode steps equal single steps: whoever is unfinished has received the same tokens."""

from __future__ import annotations

import pytest

from kvsim.config.load import load
from kvsim.config.resolve import resolve
from kvsim.sim.simulate import simulate

WORLDS = {
    "vllm": ("anchor-vllm", []),
    "vllm, synchronous": ("anchor-vllm", ["engine.async_scheduling=false"]),
    "sglang": ("anchor-sglang", []),
    "sglang, no overlap": ("anchor-sglang", ["engine.disable_overlap_schedule=true"]),
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("until", [37.0, 61.3])
def test_the_horizon_cuts_runs_and_steps_alike(world: str, until: float) -> None:
    name, more = WORLDS[world]
    rows = []
    for exact in ("false", "true"):
        sets = [f"run.until={until}", f"run.exact_steps={exact}", "workload.sessions_per_s=0.3", "workload.sessions=20", *more]
        rows.append(sorted(simulate(resolve(load(name, sets))).requests, key=lambda row: row.id))
    assert rows[0] == rows[1]
    assert any(row.status == "unfinished" and row.output_tokens > 1 for row in rows[0])
