"""Every recorded decision of the real vLLM 0.24.0 scheduler and its CPU connectors, replayed by the simulating code."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvsim.serving.vllm.core as core
from kvsim.kv.blocks import BlockPool
from kvsim.verify.vllm_replay import compare, load

ROWS, FILES = 58_998, 237


def replay(files: list[Path]) -> int:
    rows = 0
    for file in files:
        count, _, wrong = compare(load(file))
        assert not wrong, (file.name, wrong[:3])
        rows += count
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
    data = load(shared / "oracle_vllm" / "hand_uncached_tail_first.json")
    assert not compare(data)[2]
    assert compare(data, rules)[2]


def test_a_changed_row_is_found(shared: Path) -> None:
    data = load(shared / "oracle_vllm" / "hand_basic.json")
    data["its"][-1]["s"][0] += 1
    assert compare(data)[1] == 1


def test_an_unlisted_event_is_found(shared: Path) -> None:
    data = load(shared / "oracle_vllm" / "hand_preempt_fcfs.json")
    data["its"] = [row for row in data["its"] if "pre" not in row]
    assert compare(data)[1] == 1
