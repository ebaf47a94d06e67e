"""Canonical to every format that can be written, and back: what the format can carry stays, what is lost is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.content import common
from kvsim.errors import ConfigError
from kvsim.workload.read import BLOCKS, open_trace
from kvsim.workload.spec import RequestSpec
from kvsim.workload.write import LOST, lines_for, write_lines

MS = 10**9
SESSIONS = ["aiperf", "bailian", "burstgpt", "dynamo", "litellm", "langfuse", "access_log", "sglang_metrics", "kvsim", "mooncake"]
ENDS = ["aiperf", "sglang_metrics", "litellm", "langfuse", "dynamo", "kvsim"]
CONTENT = ["kvsim", "mooncake", "bailian", "dynamo"]


def conversation() -> list[RequestSpec]:
    out = []
    for number in range(40):
        session, turn = number % 8, number // 8
        size = 512 * (turn + 1)
        prompt = ((session << 24, size),)
        at = number * 1237 * MS
        out.append(
            RequestSpec(
                f"q{number}",
                at,
                prompt,
                size,
                3 + turn,
                (900 + number) << 24,
                session=f"s{session}",
                turn=turn,
                recorded_end_ps=at + 800 * MS,
            )
        )
    return out


def back(tmp_path: Path, format: str) -> list[RequestSpec]:
    target = tmp_path / f"written.{format}"
    assert write_lines(lines_for(conversation(), format, BLOCKS.get(format, 64)), str(target)) >= 40
    options = (
        {"columns": {"time": "time_s", "input": "input_tokens", "output": "output_tokens", "session": "session"}} if format == "csv" else {}
    )
    reader = open_trace(
        str(target), block_size=64 if format == "mooncake" else BLOCKS.get(format, 64) if format == "bailian" else None, **options
    )
    assert reader.format == format
    return list(reader)


@pytest.mark.parametrize("format", [*sorted({*LOST} - {"mooncake"}), "mooncake"])
def test_times_and_lengths_survive(tmp_path: Path, format: str) -> None:
    if format == "mooncake":
        target = tmp_path / "m"
        write_lines(lines_for(conversation(), "mooncake", 64), str(target))
        found = list(open_trace(str(target), block_size=64))
    else:
        found = back(tmp_path, format)
    assert [(r.arrival_ps, r.prompt_tokens, r.output_tokens) for r in found] == [
        (r.arrival_ps, r.prompt_tokens, r.output_tokens) for r in conversation()
    ]


@pytest.mark.parametrize("format", [name for name in SESSIONS if name != "mooncake"])
def test_sessions_and_their_turns_survive_where_the_format_has_them(tmp_path: Path, format: str) -> None:
    found = back(tmp_path, format)
    groups = {tuple(i for i, r in enumerate(found) if r.session == name) for name in {r.session for r in found}}
    assert groups == {tuple(range(start, 40, 8)) for start in range(8)}
    assert [r.turn for r in found] == [r.turn for r in conversation()]


@pytest.mark.parametrize("format", ENDS)
def test_recorded_ends_survive_where_the_format_has_them(tmp_path: Path, format: str) -> None:
    assert [r.recorded_end_ps for r in back(tmp_path, format)] == [r.recorded_end_ps for r in conversation()]


@pytest.mark.parametrize("format", ["kvsim", "bailian", "dynamo"])
def test_shared_prefixes_survive_where_the_format_has_ids(tmp_path: Path, format: str) -> None:
    before, after = conversation(), back(tmp_path, format)
    for i in range(40):
        for j in range(i):
            assert common(after[i].prompt, after[j].prompt) == common(before[i].prompt, before[j].prompt)


def test_every_writable_format_says_what_is_lost_and_others_are_refused() -> None:
    assert all(LOST.values())
    with pytest.raises(ConfigError, match="cannot write the format sharegpt"):
        lines_for([], "sharegpt", 16)


def test_anonymised_sessions_keep_their_turns_and_think_times_under_other_names(tmp_path: Path) -> None:
    from kvsim.workload.write import anonymised

    target = tmp_path / "anonymous.jsonl"
    write_lines(anonymised(conversation(), 64, b"salt"), str(target))
    found = list(open_trace(str(target), block_size=64))
    assert {r.session for r in found}.isdisjoint({r.session for r in conversation()})
    assert len({r.session for r in found}) == 8
    assert [(r.turn, r.recorded_end_ps) for r in found] == [(r.turn, r.recorded_end_ps) for r in conversation()]


def test_a_pipe_or_device_is_written_to_and_stays_what_it_is(tmp_path: Path) -> None:
    import os
    import stat
    import threading

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    assert write_lines(["a", "b"], str(pipe)) == 2
    reader.join()
    assert got == ["a\nb\n"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
