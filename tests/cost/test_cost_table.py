from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.cost.table import TableTime, read_steps
from kvsim.errors import Infeasible, TraceError

TABLE = """kind,new_tokens,cached_tokens,batch,sum_context,latency_ms,max_context
prefill,1000,0,,,100,
prefill,1000,10000,,,200,
prefill,2000,0,,,180,
prefill,2000,10000,,,400,
decode,,,1,1000,10,
decode,,,1,9000,18,
decode,,,4,4000,16,
decode,,,4,36000,32,
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "steps.csv"
    path.write_text(TABLE)
    return path


def test_measured_points_come_back_and_neighbours_are_interpolated(table: Path) -> None:
    time = TableTime(read_steps(table), 61)
    assert time.prefill_ps(1000, 1000 * 1001, 0, 1, 0, 0, 0) == 100 * 10**9
    assert time.prefill_ps(1500, 1500 * (2 * 5000 + 1501), 5000, 1, 0, 0, 0) == (150 + 290) // 2 * 10**9
    assert time.decode_ps(1, 5000) == 14 * 10**9
    assert time.decode_ps(2, 2000) == 12 * 10**9


def test_runs_on_a_table_equal_their_steps(table: Path) -> None:
    time = TableTime(read_steps(table), 61)
    assert time.decode_run_ps(3, 9000, 500) == sum(time.decode_ps(3, 9000 + 3 * i) for i in range(500))


@pytest.mark.parametrize("step", [(3000, 0), (1500, 20_000)])
def test_prefill_outside_the_table_is_refused_with_the_measured_range(table: Path, step: tuple[int, int]) -> None:
    new, cached = step
    with pytest.raises(Infeasible, match=r"outside the measured range \("):
        TableTime(read_steps(table), 61).prefill_ps(new, new * (2 * cached + new + 1), cached, 1, 0, 0, 0)


@pytest.mark.parametrize(("batch", "context"), [(8, 40_000), (1, 50_000), (1, 10)])
def test_decode_outside_the_table_is_refused_or_extended_and_counted(table: Path, batch: int, context: int) -> None:
    with pytest.raises(Infeasible, match="extend"):
        TableTime(read_steps(table), 61).decode_ps(batch, context)
    extended = TableTime(read_steps(table), 61, outside="extend")
    assert extended.decode_ps(batch, context) > 0
    assert "outside the measured table" in extended.notes()[0]


def test_a_run_that_leaves_the_table_is_refused_as_a_whole(table: Path) -> None:
    with pytest.raises(Infeasible, match="mean context"):
        TableTime(read_steps(table), 61).decode_run_ps(1, 8900, 500)


def test_a_measurement_that_falls_with_context_is_raised_and_said(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(TABLE + "decode,,,1,5000,9,\n")
    steps = read_steps(path)
    assert steps.decode[1] == [(1000, 10 * 10**9), (5000, 10 * 10**9), (9000, 18 * 10**9)]
    assert "raised" in steps.notes[0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("decode,,,0,5,1,", "batch >= 1"),
        ("decode,,,1,5,nan,", "finite"),
        ("decode,,,1,5,-1,", "more than 0"),
        ("warm,,,1,5,1,", "allowed: decode, prefill"),
        ("prefill,x,0,,,1,", "not a number"),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(TABLE + line + "\n")
    with pytest.raises(TraceError, match=rf"steps\.csv:10: .*{message}"):
        read_steps(path)


@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe", b"a,b\n1,2\n"])
def test_a_file_that_is_no_table_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "steps.csv"
    path.write_bytes(content)
    with pytest.raises(TraceError):
        read_steps(path)


def test_a_run_that_leaves_the_table_says_so_in_its_manifest(tmp_path: Path) -> None:
    from kvsim.config.load import load
    from kvsim.config.resolve import resolve
    from kvsim.sim.simulate import simulate

    path = tmp_path / "steps.csv"
    path.write_text(TABLE)
    overrides = ["workload.requests=5", "workload.prompt_tokens=3000", f"costs={{kind: table, file: {path}, outside: extend}}"]
    recording = simulate(resolve(load("toy", overrides)))
    assert "outside the measured table" in recording.manifest["notes"][0]
