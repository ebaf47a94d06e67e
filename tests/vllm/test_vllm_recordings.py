"""Every recorded decision of the real vLLM 0.24.0 scheduler and its CPU connectors, replayed by the simulating code."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvsim.serving.vllm.core as core
from kvsim.errors import TraceError
from kvsim.kv.blocks import BlockPool
from kvsim.rules.vllm import RULES
from kvsim.verify.cache_replay import load_recording
from kvsim.verify.vllm_replay import FORMAT, replay_vllm, replay_vllm_file

ROWS, FILES = 58_998, 237


def replay(files: list[Path]) -> int:
    rows = 0
    for file in files:
        result = replay_vllm_file(file)
        assert result.ok, (file.name, result.mismatch)
        rows += result.rows
    return rows


def recordings(shared: Path, *prefixes: str) -> list[Path]:
    files = sorted((shared / "oracle_vllm").glob("*.json"))
    return [file for file in files if file.name.startswith(prefixes)]


@pytest.mark.parametrize("kind", ["hand_", "probe_", "rand_", "prod_conv_stable"])
def test_recordings_replay_without_a_difference(shared: Path, kind: str) -> None:
    files = recordings(shared, kind)
    assert files
    replay(files)


@pytest.mark.long
def test_all_recordings_replay_without_a_difference(shared: Path) -> None:
    files = recordings(shared, "")
    assert len(files) == FILES
    assert replay(files) == ROWS


@pytest.mark.long
def test_recordings_replay_block_by_block_too(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core.VllmCore, "make_pool", lambda self, usable, first: BlockPool(usable, first))
    replay(recordings(shared, "hand_", "probe_", "rand_"))


@pytest.mark.parametrize("rules", ["vllm-0.19.0", "vllm-0.23.0"])
def test_earlier_versions_differ_where_released_blocks_go_to_the_back(shared: Path, rules: str) -> None:
    data = load_recording(shared / "oracle_vllm" / "hand_uncached_tail_first.json", FORMAT)
    assert replay_vllm(data).ok
    assert not replay_vllm(data, rules=RULES[rules]).ok


def test_a_changed_row_is_found(shared: Path) -> None:
    data = load_recording(shared / "oracle_vllm" / "hand_basic.json", FORMAT)
    data["its"][-1]["s"][0] += 1
    assert replay_vllm(data).differing == 1


def test_an_unlisted_event_is_found(shared: Path) -> None:
    data = load_recording(shared / "oracle_vllm" / "hand_preempt_fcfs.json", FORMAT)
    data["its"] = [row for row in data["its"] if "pre" not in row]
    assert replay_vllm(data).differing == 1


def test_an_incomplete_recording_is_an_error_that_names_it() -> None:
    with pytest.raises(TraceError, match=r"x\.json: not a complete recording"):
        replay_vllm({"meta": {"name": "x"}, "its": []}, "x.json")
