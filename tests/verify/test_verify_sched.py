"""Scheduler-level recordings of both engine versions, replayed on the scheduler the simulation uses."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from kvsim.kv.loading import Loading
from kvsim.rules.sglang import SglangParams
from kvsim.verify.cache_replay import load_recording
from kvsim.verify.run import FORMATS, verify
from kvsim.verify.sched_replay import FORMAT, replay_sched

ROWS = {"oracle": (159, 30_930), "oracle_0523": (135, 28_629)}


@pytest.mark.parametrize("folder", ROWS)
def test_every_recording_replays_with_no_differing_row(shared: Path, folder: str) -> None:
    results = list(verify([shared / folder]))
    assert [(r.file, r.mismatch) for r in results if not r.ok] == []
    assert (len(results), sum(r.rows for r in results)) == ROWS[folder]
    assert all(r.rows == r.of and not r.finding for r in results)


@pytest.mark.parametrize("folder", ROWS)
def test_step_by_step_replays_agree_too(shared: Path, folder: str) -> None:
    for path in sorted((shared / folder).glob("*.json"))[::4]:
        recording = load_recording(path, *FORMATS)
        if recording["format"] == FORMAT and not path.name.startswith("prod"):
            assert replay_sched(recording, path.name, stepwise=True).ok, path.name


@pytest.mark.long
@pytest.mark.parametrize("folder", ROWS)
def test_production_size_replays_agree_step_by_step(shared: Path, folder: str) -> None:
    for path in sorted((shared / folder).glob("prod_*.json")):
        assert replay_sched(load_recording(path, FORMAT), path.name, stepwise=True).ok, path.name


def recording_of(shared: Path) -> dict[str, Any]:
    return load_recording(shared / "oracle" / "probe_multiretract_s0.json", FORMAT)


@pytest.mark.parametrize("field", ["pf", "dec", "fin", "q", "ntr", "s", "retr"])
def test_a_changed_field_is_the_mismatch_reported(shared: Path, field: str) -> None:
    recording = recording_of(shared)
    index = next(i for i, row in enumerate(recording["its"]) if field in row)
    row = recording["its"][index]
    right = copy.deepcopy(row[field])
    row[field] = row[field] + 1 if isinstance(right, int | float) else [*row[field], 99]
    result = replay_sched(recording, "changed")
    assert result.mismatch is not None
    assert (result.mismatch.row, result.mismatch.field) == (index, field)
    assert result.mismatch.got == right
    assert {"row", "got", "before", "state"} <= result.mismatch.around.keys()


def test_a_row_that_the_engine_would_not_list_is_a_mismatch(shared: Path) -> None:
    recording = recording_of(shared)
    extra = dict(recording["its"][5])
    extra["it"] += 1
    recording["its"].insert(6, extra)
    assert replay_sched(recording).mismatch is not None


def test_a_missing_row_is_a_mismatch(shared: Path) -> None:
    recording = recording_of(shared)
    del recording["its"][5]
    mismatch = replay_sched(recording).mismatch
    assert mismatch is not None
    assert (mismatch.row, mismatch.field) == (5, "it")


def test_a_missing_last_row_is_a_mismatch(shared: Path) -> None:
    recording = recording_of(shared)
    del recording["its"][-1]
    assert replay_sched(recording).mismatch is not None


def _threshold(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """Break the load-back threshold in the one place where it is applied."""
    original = Loading.__init__

    def broken(self: Loading, params: SglangParams, transfers: Any) -> None:
        original(self, params, transfers)
        self.load_back_threshold = tokens

    monkeypatch.setattr(Loading, "__init__", broken)


def test_breaking_the_load_back_threshold_breaks_verify(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [shared / "oracle" / "hand_loadback_threshold_9.json", shared / "oracle" / "probe_edge_s366.json"]
    assert all(r.ok for r in verify(files))
    _threshold(monkeypatch, 9)
    broken = list(verify(files[:1]))
    assert not broken[0].ok
    _threshold(monkeypatch, 1)
    assert not any(r.ok for r in verify(files))


def test_breaking_the_load_back_threshold_breaks_the_simulated_scheduler_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def host_hit() -> int:
        from kvsim.rules.sglang import RULES
        from kvsim.serving.sglang.scheduler import SglangScheduler
        from kvsim.verify.clock import Delays
        from kvsim.workload.spec import RequestSpec

        params = SglangParams(
            rules=RULES["sglang-0.5.9"], page_size=1, device_tokens=100, host_tokens=400, overlap=False,
            max_input_tokens=1 << 60,
        )  # fmt: skip
        engine = SglangScheduler(params, Delays(0, 0))
        prompts = {"a": ((1, 9),), "x": ((500, 97),), "b": ((1, 9), (900, 5))}
        for now, (name, prompt) in enumerate(prompts.items()):
            size = sum(count for _, count in prompt)
            request = engine.submit(RequestSpec(name, now, prompt, size, 1, 10_000 * now + 2_000), now)
            step = engine.plan(now)
            assert step is not None
            engine.settle(step, now)
        return request.host_hit

    assert host_hit() == 0
    _threshold(monkeypatch, 9)
    assert host_hit() == 9


def test_the_replay_drives_the_scheduler_of_the_simulation() -> None:
    from kvsim.serving.sglang.scheduler import SglangScheduler
    from kvsim.sim import build
    from kvsim.verify import sched_replay

    assert sched_replay.SglangScheduler is SglangScheduler
    assert "kvsim.serving.sglang.scheduler import SglangScheduler" in Path(build.__file__).read_text(encoding="utf-8")
