"""Damaged files made from samples of our own, read with the format detected and given: an answer or an InputError, in bounded memory."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvsim.errors import InputError
from kvsim.workload.read import open_trace

T0 = 1_787_481_184
SIZES = [(0, 0.0, 96, 16, [1, 2, 3]), (1, 0.5, 160, 32, [1, 2, 3, 4, 5]), (2, 1.5, 40, 8, [6, 7])]


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def per_row(make: Callable[..., dict[str, Any]]) -> bytes:
    return jsonl([make(*size) for size in SIZES])


SAMPLES: dict[str, bytes] = {
    "mooncake": per_row(lambda n, t, i, o, h: {"timestamp": int(t * 1000), "input_length": i, "output_length": o, "hash_ids": h[:1]}),
    "mooncake sessions": per_row(
        lambda n, t, i, o, h: {"timestamp": int(t * 1000), "input_length": i, "output_length": o, "session_id": "s", "delay": 5, "priority": 1, "end": 9000}
    ),
    "bailian": per_row(
        lambda n, t, i, o, h: {
            "chat_id": n, "parent_chat_id": n - 1 if n else -1, "timestamp": t, "input_length": i, "output_length": o, "turn": 1, "hash_ids": list(range(-(-i // 16)))
        }
    ),
    "azure": b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:47.1,12,4\n",
    "burstgpt": b"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    b"5.0,s1,1.2,ChatGPT,472,18,490,Conversation log\n6.0,,1.2,GPT-4,47,8,55,API log\n",
    "sharegpt": json.dumps([{"id": "c", "conversations": [{"from": "human", "value": "a b"}, {"from": "gpt", "value": "c"}] * 2}]).encode(),
    "aiperf": per_row(
        lambda n, t, i, o, h: {
            "metadata": {"conversation_id": "c", "turn_index": n, "x_request_id": str(n), "request_start_ns": T0 * 10**9 + n, "request_end_ns": T0 * 10**9 + 9},
            "metrics": {"input_sequence_length": {"value": i}, "output_sequence_length": {"value": o}}, "error": None,
        }
    ),
    "sglang_metrics": per_row(
        lambda n, t, i, o, h: {
            "request_parameters": '{"sampling_params": {"max_new_tokens": 9}}', "id": str(n), "finish_reason": {"type": "stop"}, "prompt_tokens": i,
            "completion_tokens": o, "cached_tokens": 0, "e2e_latency": 0.4, "request_received_ts": T0 + t, "request_finished_ts": T0 + t + 0.4,
        }
    ),
    "sglang_bench": jsonl([{"backend": "sglang", "request_rate": 2.0, "input_lens": [5, 6], "output_lens": [1, 2], "errors": ["", ""]}]),
    "vllm_bench": jsonl([{"backend": "vllm", "request_rate": "inf", "input_lens": [5, 6], "output_lens": [1, 2], "errors": ["", ""], "start_times": [9.0, 9.5]}]),
    "dynamo": per_row(
        lambda n, t, i, o, h: {
            "schema": "dynamo.request.trace.v1", "event_type": "request_end", "agent_context": {"session_id": "a"},
            "request": {"request_id": str(n), "input_tokens": i, "output_tokens": o, "cached_tokens": 0, "request_received_ms": T0 * 1000 + n, "total_time_ms": 200.5,
                        "replay": {"trace_block_size": 64, "input_length": i, "input_sequence_hashes": h[: -(-i // 64)]}},
        }
    ),
    "weka": jsonl([{"id": "w", "block_size": 32, "hash_id_scope": "local", "requests": [
        {"t": 0.5, "in": 96, "out": 3, "hash_ids": [1, 2, 3], "think_time": 0.1},
        {"type": "subagent", "agent_id": "x", "requests": [{"t": 2.0, "in": 40, "out": 3, "hash_ids": [1, 2]}]}]}]),
    "otel": json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [
        {"spanId": "1", "startTimeUnixNano": str(T0 * 10**9), "endTimeUnixNano": str(T0 * 10**9 + 5), "attributes": [
            {"key": f"gen_ai.usage.{name}_tokens", "value": {"intValue": "7"}} for name in ("input", "output", "cache_read.input")]}]}]}]}).encode(),
    "langfuse": per_row(
        lambda n, t, i, o, h: {
            "id": str(n), "type": "GENERATION", "trace_id": "t", "start_time": f"2026-08-23T10:00:0{n}.5Z", "end_time": f"2026-08-23T10:00:0{n}.9Z",
            "usage_details": {"input": i, "output": o, "input_cached_tokens": 0},
        }
    ),
    "litellm": per_row(
        lambda n, t, i, o, h: {"id": str(n), "startTime": T0 + t, "endTime": T0 + t + 0.2, "status": "success", "prompt_tokens": i, "completion_tokens": o, "trace_id": "q"}
    ),
    "access_log": b"".join(
        f'10.0.0.1 - - [23/Aug/2026:10:00:0{n} +0000] "POST /v1/chat/completions HTTP/1.1" 200 5 ts={T0 + n}.25 request_id=r{n} prompt_tokens={i} '
        f"completion_tokens={o} cached_tokens=0 session=a\n".encode() for n, _, i, o, _h in SIZES
    ),
    "kvsim": per_row(
        lambda n, t, i, o, h: {"id": str(n), "at_ps": n, "prompt": [[0, i]], "output": o, "output_first": 1 << 33, "session": "s", "turn": n, "think_ps": 5, "end_ps": 7,
                               "namespace": "n", "tenant": "t"}
    ),
}  # fmt: skip
WRONG = [
    "null",
    "true",
    '"x"',
    "-1",
    "1e400",
    "NaN",
    "[]",
    "{}",
    "9" * 400,
    "1.5",
    "[[1,-2]]",
    '"\\ud800"',
    "[null]",
    "18446744073709551616",
]


def truncated(data: bytes, rng: Random) -> bytes:
    return data[: rng.randrange(len(data))]


def one_value_wrong(data: bytes, rng: Random) -> bytes:
    spots = list(re.finditer(rb'(?<=[:,\[ =])(?:"[^"\n]*"|-?\d[\d.]*|null|\[[^\[\]\n]*\])', data))
    spot = spots[rng.randrange(len(spots))]
    return data[: spot.start()] + rng.choice(WRONG).encode() + data[spot.end() :]


def one_key_gone(data: bytes, rng: Random) -> bytes:
    spots = list(re.finditer(rb'"[a-zA-Z_]+"(?=:)', data)) or list(re.finditer(rb"\w+", data))
    spot = spots[rng.randrange(len(spots))]
    return data[: spot.start()] + b'"zz"' + data[spot.end() :]


def windows_and_bom(data: bytes, rng: Random) -> bytes:
    return b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n") + rng.choice([b"\x1a", b"\r\n\r\n", b"", b"\xff"])


def lines_doubled(data: bytes, rng: Random) -> bytes:
    lines = data.splitlines(keepends=True) * 2
    rng.shuffle(lines)
    return b"".join(lines)


def nested_bomb(data: bytes, rng: Random) -> bytes:
    depth = rng.choice([100, 3_000, 200_000])
    return data + b'{"a":' * depth + b"1" + b"}" * depth + b"\n" if rng.random() < 0.5 else b"[" * depth + data


def columns_swapped(data: bytes, rng: Random) -> bytes:
    lines = data.split(b"\n")
    mark = b"," if b"," in lines[0] else b" "
    rows = [line.split(mark) for line in lines]
    a, b = rng.randrange(len(rows[0])), rng.randrange(len(rows[0]))
    for row in rows[1:] if b"{" not in lines[0] else rows:
        if max(a, b) < len(row):
            row[a], row[b] = row[b], row[a]
    return b"\n".join(mark.join(row) for row in rows)


def another_encoding(data: bytes, rng: Random) -> bytes:
    line = rng.randrange(data.count(b"\n") + 1)
    lines = data.split(b"\n")
    lines[line] = lines[line].decode().encode(rng.choice(["utf-16", "utf-16-be", "utf-32"])) if rng.random() < 0.5 else lines[line] + "é".encode("latin-1")
    return b"\n".join(lines)


def quote_opened(data: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + b'"' + data[at:]


DAMAGES = [
    truncated,
    one_value_wrong,
    one_value_wrong,
    one_value_wrong,
    one_key_gone,
    windows_and_bom,
    lines_doubled,
    nested_bomb,
    quote_opened,
    columns_swapped,
    another_encoding,
]


def outcome(file: Path, damaged: bytes, format: str | None) -> str | None:
    """Return None if it was read, or the message, which must name the file."""
    file.write_bytes(damaged)
    message = None
    try:
        for spec in open_trace(str(file), format):
            assert spec.prompt_tokens >= 1
            assert spec.output_tokens >= 1
            assert spec.arrival_ps >= 0
    except InputError as error:
        message = str(error)
    if message is not None:
        assert str(file) in message
        # a line, unless it is about the file as a whole
        assert re.search(re.escape(str(file)) + r":\d+: ", message) or any(words in message for words in WHOLE), message
    return message


#: What is said of a whole file.
WHOLE = ("empty file", "no request in it", "recogni", "a single document", "damaged or truncated", "workload.columns must")


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_the_undamaged_sample_reads(name: str, tmp_path: Path) -> None:
    assert outcome(tmp_path / "whole", SAMPLES[name], None) is None


@pytest.mark.parametrize("rounds", [4, pytest.param(60, marks=pytest.mark.long)])
def test_damaged_samples_give_an_answer_or_a_message(tmp_path: Path, rounds: int) -> None:
    count = refused = 0
    for name, data in SAMPLES.items():
        for number in range(rounds):
            for at, damage in enumerate(DAMAGES):
                damaged = damage(data, Random(f"{name}/{at}/{number}"))
                for given in (None, name.partition(" ")[0]):
                    refused += outcome(tmp_path / "damaged", damaged, given) is not None
                    count += 1
    assert count > 1_000
    assert refused > count // 4


def test_a_gzip_bomb_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    import tracemalloc

    file = tmp_path / "bomb.gz"
    with gzip.open(file, "wb", compresslevel=1) as packed:
        for _ in range(300):
            packed.write(b" " * (1 << 20))
    tracemalloc.start()
    try:
        for format in ("otel", "mooncake", "kvsim", "azure"):
            with pytest.raises(InputError):
                list(open_trace(str(file), format))
        assert tracemalloc.get_traced_memory()[1] < 700 << 20
    finally:
        tracemalloc.stop()
