"""The laws of the engine's state hold in tight random worlds, and a broken one is found."""

from __future__ import annotations

import pytest
import vllm_world
from vllm_world import random_world, simulate

from kvsim.config.load import load
from kvsim.config.resolve import resolve
from kvsim.errors import InvariantError
from kvsim.serving.vllm.invariants import check, guard
from kvsim.serving.vllm.scheduler import VllmScheduler


@pytest.mark.parametrize("block", range(4))
def test_the_laws_hold_after_every_call(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_world, "VllmScheduler", lambda *given: guard(VllmScheduler(*given)))
    for seed in range(5000 + 6 * block, 5006 + 6 * block):
        params, specs = random_world(seed)
        recording, scheduler = simulate(params, specs, exact_steps=False)
        assert len(recording.requests) == len(specs)
        check(scheduler)


@pytest.mark.long
@pytest.mark.parametrize("block", range(10))
def test_the_laws_hold_after_every_call_at_length(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_world, "VllmScheduler", lambda *given: guard(VllmScheduler(*given)))
    for seed in range(6000 + 30 * block, 6030 + 30 * block):
        simulate(*random_world(seed), exact_steps=bool(seed % 2))


def test_guarding_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(5100, 5106):
        free = simulate(*random_world(seed), exact_steps=False)[0].requests
        with monkeypatch.context() as patch:
            patch.setattr(vllm_world, "VllmScheduler", lambda *given: guard(VllmScheduler(*given)))
            assert simulate(*random_world(seed), exact_steps=False)[0].requests == free


def test_a_lost_block_is_found() -> None:
    params, specs = random_world(5001)
    _, scheduler = simulate(params, specs, exact_steps=False)
    scheduler.pool.pop(1)
    with pytest.raises(InvariantError, match="blocks"):
        check(scheduler)


def test_a_run_can_be_guarded() -> None:
    from kvsim.sim.simulate import simulate as run

    resolved = resolve(load("anchor-vllm", ["workload.sessions=4", "run.invariants=true"]))
    assert {row.status for row in run(resolved).requests} == {"finished"}
