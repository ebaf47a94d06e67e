"""`kvsim verify`: one line per file, totals, the first difference, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsim.cli.app import run_command


@pytest.fixture
def some(shared: Path, tmp_path: Path) -> Path:
    for name in ("probe_slots_s3.json", "hand_wt_demote_loadback.json"):
        (tmp_path / name).write_bytes((shared / "oracle" / name).read_bytes())
    return tmp_path


def broken(folder: Path) -> Path:
    path = folder / "probe_slots_s3.json"
    recording = json.loads(path.read_text())
    recording["its"][4]["q"] += 1
    path.write_text(json.dumps(recording))
    return path


def test_a_folder_without_differences_exits_0_with_a_line_per_file(some: Path, capsys: pytest.CaptureFixture) -> None:
    assert run_command(["verify", str(some)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [
        ["same", "hand_wt_demote_loadback.json:"],
        ["same", "probe_slots_s3.json:"],
    ]
    assert "sglang-0.5.9: 2 files" in lines[-1]
    assert "0 files differ" in lines[-1]


def test_a_difference_exits_1_and_shows_file_row_field_values_and_state(
    some: Path, capsys: pytest.CaptureFixture
) -> None:
    path = broken(some)
    assert run_command(["verify", str(some)]) == 1
    out = capsys.readouterr().out
    assert "DIFFERS  probe_slots_s3.json: row 4, q" in out
    for part in (str(path), "row 4, field 'q'", "expected:", "got:", "before:", "state:"):
        assert part in out


def test_json_holds_every_file_the_totals_and_the_mismatch(some: Path, capsys: pytest.CaptureFixture) -> None:
    broken(some)
    assert run_command(["verify", str(some), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["ok"] is False
    assert [entry["ok"] for entry in data["files"]] == [True, False]
    assert data["files"][1]["mismatch"]["field"] == "q"
    assert data["totals"][0]["differing"] == 1


def test_another_rule_can_be_tried(some: Path, capsys: pytest.CaptureFixture) -> None:
    assert run_command(["verify", str(some), "--rule", "evict_full_amount=false"]) in (0, 1)
    assert "sglang-0.5.9 (evict_full_amount: no)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "setting", ["evict_ful_amount=false", "evict_full_amount=12", "evict_full_amount", "defects=no"]
)
def test_a_wrong_rule_exits_2(some: Path, capsys: pytest.CaptureFixture, setting: str) -> None:
    assert run_command(["verify", str(some), "--rule", setting]) == 2
    assert capsys.readouterr().err.startswith("error:")


def test_with_defects_kept_the_failing_step_is_a_finding(shared: Path, capsys: pytest.CaptureFixture) -> None:
    path = sorted((shared / "oracle").glob("rand_*_patched.json"))[0]
    assert run_command(["verify", str(path), "--rule", "defects=keep"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("finding")
    assert "sglang-0.5.9 (defects: keep) fails here" in " ".join(out.split())


CONTENTS = {
    "empty": b"",
    "text": b"hello",
    "binary": bytes(range(256)),
    "list": b"[]",
    "null": b"null",
    "format": b'{"format": "kvsim-oracle/9"}',
    "bare": b'{"format": "kvsim-sched-oracle/1"}',
    "bare cache": b'{"format": "kvsim-oracle/1"}',
    "bare vllm": b'{"format": "kvsim-vllm-oracle/1"}',
    "meta": b'{"format": "kvsim-sched-oracle/1", "meta": 3, "its": [], "requests": {}}',
    "nan": b'{"format": "kvsim-sched-oracle/1", "meta": NaN}',
    "engine": b'{"format": "kvsim-oracle/1", "meta": {"engine": "sglang 9"}, "ops": []}',
}


@pytest.mark.parametrize("content", CONTENTS)
def test_what_is_no_recording_exits_2_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(CONTENTS[content])
    assert run_command(["verify", str(path)]) == 2
    assert "x.json" in capsys.readouterr().err


CHANGES = {
    "page_size": [0, -1, "x", None, 1.5],
    "device_tokens": [-5, "many", None],
    "schedule_policy": ["best", 3],
    "eviction": ["none", 3],
    "max_running_requests": ["x", None],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in CHANGES.items() for value in values])
def test_a_recording_with_senseless_parameters_never_ends_in_a_traceback(
    some: Path, capsys: pytest.CaptureFixture, key: str, value: object
) -> None:
    path = some / "probe_slots_s3.json"
    recording = json.loads(path.read_text())
    recording["meta"][key] = value
    path.write_text(json.dumps(recording))
    assert run_command(["verify", str(path)]) in (1, 2)
    captured = capsys.readouterr()
    assert "probe_slots_s3.json" in captured.err + captured.out


def test_a_path_that_does_not_exist_and_an_empty_folder_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert run_command(["verify", str(tmp_path / "none.json")]) == 2
    assert "there is no such file or folder" in capsys.readouterr().err
    assert run_command(["verify", str(tmp_path)]) == 2
    assert "holds no .json file" in capsys.readouterr().err


def test_no_path_at_all_exits_2() -> None:
    assert run_command(["verify"]) == 2
