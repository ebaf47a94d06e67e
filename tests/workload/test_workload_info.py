"""`trace info` and its readers: ceilings, capacities, standard input, folders, compressed files, column maps."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvsim.errors import ConfigError
from kvsim.workload.info import inspect
from kvsim.workload.read import open_trace

ROWS = "".join(
    json.dumps({"timestamp": 500 * n, "input_length": 1025 + n, "output_length": 5, "hash_ids": [0, n % 3 + 1, 100 + n]}) + "\n"
    for n in range(30)
)


def kvsim(*words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "kvsim", *words], input=given, capture_output=True, check=False)


def test_the_mooncake_trace_has_its_published_sizes_and_ceiling(shared: Path) -> None:
    found = inspect(open_trace(str(shared / "traces" / "mooncake_conversation.jsonl")))
    assert (found.requests, found.prompt_tokens, found.output_tokens) == (12_031, 144_793_823, 4_122_048)
    assert found.ceiling == pytest.approx(0.3736, abs=0.00005)


def test_reuse_grows_with_capacity_up_to_near_the_ceiling(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text("".join(line for _, line in zip(range(1, 30), ROWS.splitlines(keepends=True)[1:], strict=False)))
    done = kvsim("trace", "info", str(file), "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    rates = [row["hit_rate"] for row in data["reuse_by_capacity"]]
    assert rates == sorted(rates)
    assert 0.9 * data["ceiling"] < rates[-1] <= data["ceiling"] + 1e-9


@pytest.mark.parametrize("packed", [False, True])
def test_standard_input_is_read_plain_or_gzipped(packed: bool) -> None:
    data = ROWS.encode()
    done = kvsim("trace", "info", "-", "--json", given=gzip.compress(data) if packed else data)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["requests"] == 30
    assert any("read once" in note for note in found["notes"])


def test_a_folder_of_shards_plain_gzip_and_zstd_is_one_trace(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    lines = ROWS.splitlines(keepends=True)
    (tmp_path / "a.jsonl").write_text("".join(lines[:10]))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress("".join(lines[10:20]).encode()))
    (tmp_path / "c.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress("".join(lines[20:]).encode()))
    found = list(open_trace(str(tmp_path)))
    assert [r.arrival_ps for r in found] == [n * 500 * 10**9 for n in range(30)]


def test_a_fault_in_a_folder_names_its_shard_and_line(tmp_path: Path) -> None:
    from kvsim.errors import TraceError

    (tmp_path / "a.jsonl").write_text(ROWS)
    (tmp_path / "b.jsonl").write_text(json.dumps({"timestamp": 20_000, "input_length": 20, "output_length": 5, "hash_ids": [1, 2]}) + "\n")
    with pytest.raises(TraceError, match=r"b\.jsonl:1: expected 1 id"):
        list(open_trace(str(tmp_path)))


def test_a_plain_csv_is_read_by_its_column_map(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("when;x,Ask,Answer,who\n1.5,7,2,a\n3.5,9,3,a\n")
    done = kvsim("trace", "info", str(file), "--columns", "time=when;x,input=Ask,output=Answer,session=who", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert (data["requests"], data["prompt_tokens"], data["output_tokens"], data["sessions"], data["span_s"]) == (2, 16, 5, 1, 2.0)


def test_a_wrong_column_map_names_what_is_allowed() -> None:
    from kvsim.cli.trace import column_map

    with pytest.raises(ConfigError, match="expected name=column"):
        column_map("time=a,inp=b")


def test_sampling_keeps_whole_sessions_and_the_same_ones(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("t,i,o,s\n" + "".join(f"{n},10,1,s{n % 50}\n" for n in range(500)))
    columns = {"time": "t", "input": "i", "output": "o", "session": "s"}
    whole = list(open_trace(str(file), columns=columns))
    some = list(open_trace(str(file), columns=columns, sample_sessions=0.4))
    again = [r.session for r in open_trace(str(file), columns=columns, sample_sessions=0.4)]
    assert [r.session for r in some] == again
    kept = {r.session for r in some}
    assert 8 < len(kept) < 32
    assert len(some) == sum(r.session in kept for r in whole)


def test_a_logs_start_is_its_end_less_its_duration(tmp_path: Path) -> None:
    file = tmp_path / "m.log"
    row = {"prompt_tokens": 10, "completion_tokens": 2, "finish_reason": {"type": "stop"}}
    file.write_text(
        json.dumps({**row, "id": "b", "e2e_latency": 1.0, "request_finished_ts": 1787481186.0})
        + "\n"
        + json.dumps({**row, "id": "a", "e2e_latency": 5.5, "request_finished_ts": 1787481187.0})
        + "\n"
    )
    reader = open_trace(str(file))
    assert [(r.id, r.arrival_ps) for r in reader] == [("a", 0), ("b", 3_500_000_000_000)]
    assert reader.report.out_of_order == 1


def test_nanoseconds_and_64_bit_ids_stay_whole_numbers(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    big = (1 << 63) + 12345
    file.write_text(
        json.dumps({"timestamp": 0, "input_length": 16, "output_length": 1, "hash_ids": [big]})
        + "\n"
        + json.dumps({"timestamp": 1, "input_length": 32, "output_length": 1, "hash_ids": [big, big + 1]})
        + "\n"
    )
    first, second = open_trace(str(file), block_size=16)
    assert first.prompt == ((big * 16, 16),)
    assert second.prompt == ((big * 16, 32),)


def test_ids_behind_two_parents_are_two_texts(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    rows = [[1, 5], [2, 5], [1, 5]]
    file.write_text(
        "".join(json.dumps({"timestamp": n, "input_length": 32, "output_length": 1, "hash_ids": ids}) + "\n" for n, ids in enumerate(rows))
    )
    a, b, c = open_trace(str(file), block_size=16)
    assert a.prompt == c.prompt
    assert a.prompt[1] != b.prompt[1]


def test_an_empty_stream_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvsim.errors import TraceError

    class Stdin:
        buffer = io.BufferedReader(io.BytesIO(b""))  # type: ignore[arg-type]

    monkeypatch.setattr(sys, "stdin", Stdin())
    with pytest.raises(TraceError, match="empty"):
        list(open_trace("-"))


def test_a_byte_order_mark_and_windows_line_ends_change_nothing(tmp_path: Path) -> None:
    plain, marked = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    plain.write_text(ROWS)
    marked.write_bytes(b"\xef\xbb\xbf" + ROWS.replace("\n", "\r\n").encode())
    assert list(open_trace(str(plain))) == list(open_trace(str(marked)))


def test_lines_are_told_apart_across_pieces_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvsim.errors import TraceError

    file = tmp_path / "a.jsonl"
    file.write_text(ROWS.rstrip("\n"))
    whole = list(open_trace(str(file)))
    for size in (1, 7, 64, 500):
        monkeypatch.setattr("kvsim.workload.source_files.PIECE", size)
        assert list(open_trace(str(file))) == whole
        for column, damage in (("csv", b"\xff"), ("csv", b"\0")):
            broken = tmp_path / "broken"
            broken.write_bytes(b"t,i,o\n1,2,3\n2,2," + damage + b"\n3,1,1\n")
            with pytest.raises(TraceError, match="broken:3: "):
                list(open_trace(str(broken), column, columns={"time": "t", "input": "i", "output": "o"}, time_unit="s"))
