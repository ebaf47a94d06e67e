"""Canonical to every format that can be written, and back: what the format can carry stays, what is lost is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.content import common
from kvsim.errors import ConfigError
from kvsim.workload.detect import FORMATS
from kvsim.workload.read import BLOCKS, open_trace
from kvsim.workload.spec import RequestSpec
from kvsim.workload.write import LOST, lines_for, write_lines

MS = 10**9
SESSIONS = ["weka", "otel", "aiperf", "bailian", "burstgpt", "dynamo", "litellm", "langfuse", "access_log", "sglang_metrics", "kvsim", "mooncake"]
ENDS = ["weka", "otel", "aiperf", "sglang_metrics", "litellm", "langfuse", "dynamo", "kvsim"]
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
    assert write_lines(lines_for(conversation(), format, BLOCKS.get(format, 64)), str(target)) >= 1
    options = (
        {"columns": {"time": "time_s", "input": "input_tokens", "output": "output_tokens", "session": "session"}} if format == "csv" else {}
    )
    reader = open_trace(
        str(target), block_size=64 if format == "mooncake" else BLOCKS.get(format, 64) if format == "bailian" else None, **options
    )
    assert reader.format == format
    return list(reader)


@pytest.mark.parametrize("format", [*sorted({*LOST} - {"mooncake", "sharegpt"}), "mooncake"])
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


@pytest.mark.parametrize("format", ["kvsim", "bailian", "dynamo", "weka"])
def test_shared_prefixes_survive_where_the_format_has_ids(tmp_path: Path, format: str) -> None:
    before, after = conversation(), back(tmp_path, format)
    for i in range(40):
        for j in range(i):
            assert common(after[i].prompt, after[j].prompt) == common(before[i].prompt, before[j].prompt)


def test_every_writable_format_says_what_is_lost_and_others_are_refused() -> None:
    assert all(LOST.values())
    assert {*LOST} == {*FORMATS}
    with pytest.raises(ConfigError, match="cannot write the format yaml"):
        lines_for([], "yaml", 16)


def test_a_sharegpt_document_keeps_lengths_turns_and_what_turns_share(tmp_path: Path) -> None:
    target = tmp_path / "s.json"
    growing = [RequestSpec(f"q{n}", 0, ((n % 2 << 24, 50 * (n // 2 + 1)),), 50 * (n // 2 + 1), 4, n << 30, session=f"s{n % 2}", turn=n // 2) for n in range(8)]
    write_lines(lines_for(growing, "sharegpt", 16), str(target))
    found = list(open_trace(str(target), tokens_per_word=1.0))
    assert sorted((r.session, r.turn, r.prompt_tokens, r.output_tokens) for r in found) == sorted((r.session, r.turn, r.prompt_tokens, r.output_tokens) for r in growing)
    first, second = (r for r in found if r.session == "s0" and r.turn < 2)
    assert common(first.prompt, second.prompt) == 50


def test_agents_survive_weka_with_who_calls_and_who_joins(tmp_path: Path) -> None:
    def turn(name: str, session: str, number: int, at: int, took: int, *after: str) -> RequestSpec:
        first = hash_of[session] << 24
        size = 128 * (number + 1)
        return RequestSpec(name, at * MS, ((first, size),), size, 5, (at + 900) << 30, session=session, turn=number, recorded_end_ps=(at + took) * MS, after=after)

    hash_of = {"w": 1, "w/a": 2, "w/a/b": 3, "v": 4}
    before = [
        turn("w#0", "w", 0, 0, 1000), turn("w/a#0", "w/a", 0, 1500, 1000, "w#0"), turn("w/a/b#0", "w/a/b", 0, 2600, 100, "w/a#0"),
        turn("w/a#1", "w/a", 1, 2800, 1000, "w/a/b#0"), turn("w#1", "w", 1, 4000, 500, "w/a#1"), turn("v#0", "v", 0, 4100, 10),
    ]  # fmt: skip
    target = tmp_path / "w.jsonl"
    assert write_lines(lines_for(before, "weka", 64), str(target)) == 2
    after = list(open_trace(str(target)))
    assert [(r.id, r.session, r.turn, r.arrival_ps, r.recorded_end_ps, r.after) for r in after] == [
        (r.id, r.session, r.turn, r.arrival_ps, r.recorded_end_ps, r.after) for r in before
    ]
    write_lines(lines_for(after, "kvsim", 64), str(tmp_path / "c.jsonl"))
    assert [r.after for r in open_trace(str(tmp_path / "c.jsonl"))] == [r.after for r in before]


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


def test_the_canonical_form_keeps_all_that_a_trace_has(tmp_path: Path) -> None:
    full = RequestSpec(
        "q", 0, ((5, 10),), 10, 3, 77, max_new_tokens=9, session="s", turn=2, namespace="n", tenant="t", priority=-4, recorded_cached_tokens=6,
        recorded_end_ps=8, think_ps=1, after=("a", "b"),
    )  # fmt: skip
    target = tmp_path / "c.jsonl"
    write_lines(lines_for([full], "kvsim", 64), str(target))
    assert list(open_trace(str(target))) == [full]


@pytest.mark.parametrize("size", [1 << 20, 100])
def test_sessions_that_begin_late_in_a_file_are_not_overlooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("kvsim.workload.source_files.PIECE", size)
    monkeypatch.setattr("kvsim.workload.read.HEAD", size)
    alone = [RequestSpec(f"x{n}", n * MS, ((n << 20, 64),), 64, 1, (n + 99) << 30) for n in range(300)]
    talk = [RequestSpec(f"y{n}", (n + 300) * MS, ((5 << 40, 64 * (n + 1)),), 64 * (n + 1), 1, n << 50, session="s", turn=n, think_ps=n * MS) for n in range(3)]
    target = tmp_path / "m.jsonl"
    write_lines(lines_for([*alone, *talk], "mooncake", 64), str(target))
    found = list(open_trace(str(target), "mooncake", block_size=64))
    assert [(r.session, r.turn, r.think_ps) for r in found[-3:]] == [("s", n, n * MS) for n in range(3)]
