from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kvsim.cli.app import run_command

TOY = ["toy", "--set", "workload.requests=40"]


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = run_command(list(argv))
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.fixture
def trace(tmp_path: Path) -> str:
    rows = [
        {"timestamp": 1000 * n, "input_length": 1500, "output_length": 3, "hash_ids": [n % 4, 100 + n % 8, 200 + n % 8]} for n in range(40)
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_curve_prints_capacities_knee_and_reuse(capsys: pytest.CaptureFixture[str], trace: str):
    code, out, _ = run(capsys, "curve", trace, "--belady")
    assert code == 0
    assert "Knee at" in out
    assert "Belady" in out
    assert all(len(line) <= 100 for line in out.splitlines())


def test_curve_marks_the_ratios_of_a_machine_in_json(capsys: pytest.CaptureFixture[str], trace: str):
    code, out, _ = run(capsys, "curve", trace, "--hardware", "8x-rtx-pro-6000", "--model", "kimi-k2.5-int4", "--ratios", "0,4", "--json")
    data = json.loads(out)
    assert code == 0
    assert [row["tokens"] for row in data["marks"]] == [159_215, 636_860]
    assert data["marks"][0]["hit_rate"] == data["ceiling"]  # this small trace fits


def damaged(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "binary.jsonl").write_bytes(bytes(range(256)) * 10)
    whole = gzip.compress(b'{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n' * 1000)
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "nan.jsonl").write_text('{"timestamp": 0, "input_length": NaN, "output_length": 1, "hash_ids": [1]}\n')
    (tmp_path / "huge.jsonl").write_text('{"timestamp": 0, "input_length": 1e300, "output_length": 1, "hash_ids": [1]}\n')
    names = {path.name: str(path) for path in tmp_path.iterdir()}
    return {**names, "folder": str(tmp_path), "missing": str(tmp_path / "nothing.jsonl")}


@pytest.mark.parametrize("name", ["empty.jsonl", "binary.jsonl", "cut.jsonl.gz", "nan.jsonl", "huge.jsonl", "folder", "missing"])
def test_a_damaged_trace_is_one_clear_error(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str):
    code, out, err = run(capsys, "curve", damaged(tmp_path)[name])
    assert (code, out) == (2, "")
    assert err.startswith("error:")


@pytest.mark.parametrize(
    "argv",
    [
        ["curve", "TRACE", "--block", "0"],
        ["curve", "TRACE", "--ratios", "1,x"],
        ["curve", "TRACE", "--sample", "2"],
        ["sweep", *TOY, "--axis", "nonsense"],
        ["sweep", *TOY, "--axis", "engine.nonsense=1,2"],
        ["sweep", *TOY, "--axis", "workload.rate_per_s=5..1", "--points", "3"],
        ["sweep", *TOY, "--cluster", "local:0"],
        ["search", *TOY],
        ["search", *TOY, "--set", "slo.ttft=1s", "--key", "engine.hicache.ratio"],
        ["options", *TOY],
        ["options", "no-such-scenario"],
        ["compare", "TRACE", "TRACE"],
    ],
)
def test_wrong_input_ends_with_exit_code_two(capsys: pytest.CaptureFixture[str], trace: str, argv: list[str]):
    code, out, err = run(capsys, *[trace if word == "TRACE" else word for word in argv])
    assert code == 2, err
    assert out == ""
    assert err.startswith("error:")


def test_compare_pairs_two_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    for name, cap in (("a", 100), ("b", 2)):
        run(capsys, "run", *TOY, "--set", f"engine.max_running_requests={cap}", "-o", str(tmp_path / name))
    code, out, _ = run(capsys, "compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json")
    data = json.loads(out)
    assert code == 0
    assert data["requests"] == {"first": 40, "second": 40, "paired": 40}
    assert data["figures"]["ttft_s"]["difference"] > 0


def test_search_exits_one_if_nothing_meets_the_slo(capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "search", *TOY, "--set", "slo.ttft=1ms")
    assert code == 1
    assert "No workload.rate_per_s was found" in out


def test_a_sweep_over_a_range_prints_its_points(capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "sweep", *TOY, "--axis", "workload.rate_per_s=1..5", "--points", "3", "--workers", "1", "--json")
    assert code == 0
    assert len(json.loads(out)["points"]) == 3


def test_misses_are_printed_with_the_run(capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "run", *TOY, "--misses")
    assert code == 0
    assert "never seen before" in out


def test_a_run_with_replications_prints_means_with_intervals(capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "run", *TOY, "--set", "run.replications=3", "--json")
    figures = json.loads(out)["replications"]["figures"]
    assert code == 0
    assert figures["ttft_mean_s"]["half_width"] > 0


def test_a_reached_precision_is_that_of_the_printed_mean(capsys: pytest.CaptureFixture[str]):
    _, out, _ = run(capsys, "run", "toy", "--set", "run.precision=0.25", "--json")
    found = json.loads(out)["replications"]
    assert found["figures"]["ttft_mean_s"]["half_width"] <= 0.25 * found["figures"]["ttft_mean_s"]["mean"]
    assert "reached with" in found["notes"][0]
