"""Streaming commands: memory does not grow with rows; counts of what is kept; progress."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvsim.workload.info import inspect
from kvsim.workload.read import TraceReader, open_trace
from kvsim.workload.recent import Recent, Timeline
from kvsim.workload.write import anonymised, lines_for

COLUMNS = {"time": "t", "input": "i", "output": "o", "session": "s"}


def table(folder: Path, rows: int, *, sessions: int = 50) -> Path:
    path = folder / f"{rows}.csv"
    if not path.exists():
        rng = Random(1)
        with path.open("w") as out:
            out.write("t,i,o,s\n")
            for number in range(rows):
                name = f"s{rng.randrange(sessions)}" if sessions and rng.random() < 0.5 else ""
                out.write(f"{number / 10},{rng.randrange(1, 4000)},{rng.randrange(1, 300)},{name}\n")
    return path


def peak(action: Callable[[TraceReader], Any], path: Path) -> int:
    tracemalloc.start()
    try:
        action(open_trace(str(path), columns=COLUMNS))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def drained(lines: Iterator[str]) -> int:
    return sum(1 for _ in lines)


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the buffers of fixed size small: what is left must not depend on the rows."""
    monkeypatch.setattr("kvsim.workload.source_files.PIECE", 1 << 14)
    monkeypatch.setattr("kvsim.workload.read.HEAD", 1 << 12)
    monkeypatch.setattr("kvsim.workload.assemble.WINDOW", 100)
    monkeypatch.setattr(Timeline, "EXACT", 500)


@pytest.mark.usefixtures("small_buffers")
@pytest.mark.parametrize(
    "action",
    [
        inspect,
        lambda reader: drained(lines_for(reader, "azure", 64)),
        lambda reader: drained(anonymised(reader, 2048, b"salt")),
    ],
    ids=["info", "convert", "anonymise"],
)
def test_ten_times_the_rows_take_the_same_memory(tmp_path: Path, action: Callable[[TraceReader], Any]) -> None:
    small, large = table(tmp_path, 3_000), table(tmp_path, 9_000)
    peak(action, small)  # imports and caches
    # the order window, a piece of the file and a session's last turn are all there is
    assert peak(action, large) < 1.1 * peak(action, small) + 20_000


@pytest.mark.usefixtures("small_buffers")
def test_content_met_once_is_not_remembered_when_blocks_are_named(tmp_path: Path) -> None:
    small, large = (table(tmp_path, rows, sessions=0) for rows in (3_001, 9_001))
    peak(lambda reader: drained(lines_for(reader, "mooncake", 512, made_up=True)), small)
    a, b = (peak(lambda reader: drained(lines_for(reader, "mooncake", 512, made_up=True)), path) for path in (small, large))
    assert b < 1.1 * a + 20_000


def test_who_is_not_met_for_long_is_forgotten_and_counted() -> None:
    recent: Recent[int, str] = Recent(10)
    for number in range(100):
        recent.set(number, str(number))
        assert recent.get(number // 20) is None or number < 40 or number // 20 in (3, 4)
    assert len(recent) <= 20
    assert recent.forgotten + len(recent) >= 100
    assert recent.get(99) == "99"


def test_a_session_met_again_and_again_is_never_forgotten() -> None:
    recent: Recent[int, str] = Recent(10)
    recent.set(-1, "here")
    for number in range(1000):
        recent.set(number, "")
        assert number % 7 or recent.get(-1) == "here"


def test_forgotten_sessions_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsim.workload.recent.Recent.__init__.__defaults__", (5,))
    file = tmp_path / "t.csv"
    file.write_text("t,i,o,s\n" + "".join(f"{n},10,1,s{n}\n" for n in range(40)))
    notes = inspect(open_trace(str(file), columns=COLUMNS)).notes
    assert any("sessions were forgotten after 5 others" in note for note in notes)


def test_a_long_timeline_has_the_rates_of_a_short_one() -> None:
    rng = Random(4)
    long = Timeline()
    counts = [0] * 10
    count = 3 * Timeline.EXACT
    for number in range(count):
        at = int((number / count) ** 2 * 5_000 * 10**12) + rng.randrange(10**9)
        long.add(at)
        counts[min(at * 10 // (5_000 * 10**12), 9)] += 1
    assert long.rates(10) == pytest.approx([value / 500 for value in counts], rel=0.01)
    assert sum(long.rates(10)) * long.last_ps * 1e-13 == pytest.approx(count, rel=1e-9)


def test_a_conversation_without_ids_is_one_run_however_many_turns_it_has(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("t,i,o,s\n" + "".join(f"{n},{100 * (n + 1)},20,a\n" for n in range(200)))
    found = list(open_trace(str(file), columns=COLUMNS))
    assert {len(spec.prompt) for spec in found} == {1}
    assert len({spec.prompt[0][0] for spec in found}) == 1
    assert all(spec.output_first == spec.prompt[0][0] + spec.prompt_tokens for spec in found)


def test_progress_tells_rows_and_the_share_of_the_file(tmp_path: Path) -> None:
    told: list[tuple[int, float | None]] = []
    reader = open_trace(str(table(tmp_path, 60_000)), columns=COLUMNS)
    reader.watch = lambda rows, share: told.append((rows, share))
    assert sum(1 for _ in reader) == 60_000
    assert [rows for rows, _ in told] == list(range(2_000, 60_001, 2_000))
    shares = [share for _, share in told if share is not None]
    assert shares == sorted(shares)
    assert 0 < shares[0] <= 1


def test_the_progress_line_is_for_terminals_and_on_stderr(tmp_path: Path) -> None:
    import os
    import pty
    import subprocess
    import sys

    path = table(tmp_path, 60_000)
    words = [sys.executable, "-m", "kvsim", "trace", "convert", str(path), "--columns", "time=t,input=i,output=o", "--to", "azure", "-o", str(tmp_path / "o")]
    quiet = subprocess.run(words, capture_output=True, check=True)
    assert b"reading" not in quiet.stderr + quiet.stdout
    ours, theirs = pty.openpty()
    shown = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    text = b""
    try:
        while piece := os.read(ours, 4096):
            text += piece
    except OSError:
        pass  # the other end is closed
    os.close(ours)
    assert shown.wait() == 0
    assert shown.stdout is not None
    assert shown.stdout.read() == b""
    shown.stdout.close()
    assert b"reading: " in text
    assert b"%" in text
