"""Damaged files of every format: a clear TraceError or a clean read, never another exception, never a hang."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from kvsim.errors import KvsimError
from kvsim.workload.read import open_trace

Damage = Callable[[bytes, random.Random], bytes]


def truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def flip(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randrange(1, 30)):
        out[rng.randrange(len(out))] = rng.randrange(256)
    return bytes(out)


def retype(data: bytes, rng: random.Random) -> bytes:
    digits = [i for i, c in enumerate(data) if chr(c).isdigit()]
    at = rng.choice(digits)
    value = rng.choice([b"null", b'"x"', b"-1", b"1e999", b"NaN", b"true", b"[]", b"{}", b"9" * 300, b"0", b"0.5", b"1e18"])
    return data[:at] + value + data[at + 1 :]


def bom(data: bytes, rng: random.Random) -> bytes:
    return b"\xef\xbb\xbf" + data


def crlf(data: bytes, rng: random.Random) -> bytes:
    return data.replace(b"\n", b"\r\n")


def utf16(data: bytes, rng: random.Random) -> bytes:
    return data.decode("utf-8", errors="replace").encode("utf-16")


def latin(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + b"\xe9\xff" + data[at:]


def shuffle(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    rng.shuffle(lines)
    return b"".join(lines)


def repeat(data: bytes, rng: random.Random) -> bytes:
    return data * 3


def nest(data: bytes, rng: random.Random) -> bytes:
    return b'{"requests": ' + b"[" * 2000 + b"]" * 2000 + b"}\n" + data


def swap_columns(data: bytes, rng: random.Random) -> bytes:
    return b"\n".join(b",".join(reversed(line.split(b","))) for line in data.split(b"\n"))


def cut_gzip(data: bytes, rng: random.Random) -> bytes:
    packed = gzip.compress(data)
    return packed[: rng.randrange(3, len(packed))]


def drop_key(data: bytes, rng: random.Random) -> bytes:
    words = [
        b'"timestamp"',
        b'"input_length"',
        b'"metadata"',
        b'"request"',
        b'"usage_details"',
        b'"prompt_tokens"',
        b'"t"',
        b'"in"',
        b"TIMESTAMP",
        b"Timestamp",
    ]
    present = [word for word in words if word in data]
    return data.replace(rng.choice(present), b'"other"', 1) if present else data[1:]


DAMAGES: list[Damage] = [truncate, flip, retype, bom, crlf, utf16, latin, shuffle, repeat, nest, swap_columns, cut_gzip, drop_key]


def read_damaged(path: Path) -> str:
    """Return "read" or the error's text; any other exception fails the test."""
    try:
        count = 0
        for count, spec in enumerate(open_trace(str(path)), 1):
            assert spec.prompt_tokens > 0
            assert spec.output_tokens > 0
            assert spec.arrival_ps >= 0
            assert count < 10_000
    except KvsimError as error:
        return str(error)
    return "read"


def fuzz(shared: Path, tmp_path: Path, seed: int, each: int) -> int:
    rng = random.Random(seed)
    number = 0
    for source in sorted((shared / "cases" / "formats").iterdir()):
        data = source.read_bytes()
        for damage in DAMAGES:
            for _ in range(each):
                target = tmp_path / f"{number}-{damage.__name__}-{source.name}"
                target.write_bytes(damage(data, rng))
                message = read_damaged(target)
                assert message == "read" or str(target) in message or "format" in message, message
                target.unlink()
                number += 1
    return number


def test_damaged_files_end_in_a_message(shared: Path, tmp_path: Path) -> None:
    assert fuzz(shared, tmp_path, seed=1, each=2) >= 400


@pytest.mark.long
def test_a_corpus_of_damaged_files_ends_in_messages(shared: Path, tmp_path: Path) -> None:
    assert fuzz(shared, tmp_path, seed=2, each=8) >= 1000


@pytest.mark.parametrize("to", ["kvsim", "mooncake"])
def test_canonical_to_a_format_and_back_keeps_what_it_can_carry(tmp_path: Path, to: str) -> None:
    from kvsim.workload.write import lines_for, write_lines

    rng = random.Random(5)
    source = tmp_path / "a.jsonl"
    rows = ['{"kvsim": "trace@1"}']
    at = 0
    for i in range(50):
        at += rng.randrange(1, 10**12) // 10**9 * 10**9
        own = rng.randrange(1, 400)
        rows.append(
            f'{{"id":"q{i}","at_ps":{at},"prompt":[[1000,{64 * rng.randrange(1, 9)}],[{(i + 1) << 20},{own}]],"output":{rng.randrange(1, 50)},"session":"s{i % 7}"}}'
        )
    source.write_text("\n".join(rows) + "\n")
    target = tmp_path / f"b.{to}"
    assert write_lines(lines_for(open_trace(str(source)), to, 64), str(target)) >= 50
    first, second = list(open_trace(str(source))), list(open_trace(str(target), block_size=64))
    assert [(r.arrival_ps, r.prompt_tokens, r.output_tokens, r.session) for r in first] == [
        (r.arrival_ps, r.prompt_tokens, r.output_tokens, r.session) for r in second
    ]
    if to == "kvsim":
        assert [r.prompt for r in first] == [r.prompt for r in second]


def test_an_anonymised_trace_keeps_lengths_and_reuse_and_no_string(tmp_path: Path) -> None:
    from kvsim.workload.info import inspect
    from kvsim.workload.write import anonymised, write_lines

    source = tmp_path / "a.jsonl"
    rows = ['{"kvsim": "trace@1"}']
    rows += [
        f'{{"id":"secret-{i}","at_ps":{i * 10**12},"prompt":[[777000,{160 * (1 + i % 3)}],[{(i + 1) << 22},{32 * (i % 5)}]],"output":7,"session":"alice-{i % 4}","tenant":"acme"}}'
        for i in range(40)
    ]
    source.write_text("\n".join(rows) + "\n")
    target = tmp_path / "anon.jsonl"
    write_lines(anonymised(open_trace(str(source)), 16), str(target))
    text = target.read_text()
    for word in ("secret", "alice", "acme", "777000"):
        assert word not in text
    a, b = inspect(open_trace(str(source))), inspect(open_trace(str(target), block_size=16))
    assert (a.requests, a.prompt_tokens, a.output_tokens, a.reused_tokens) == (
        b.requests,
        b.prompt_tokens,
        b.output_tokens,
        b.reused_tokens,
    )
    assert target.read_text() != ""
    assert write_lines(anonymised(open_trace(str(source)), 16), str(tmp_path / "other")) == 40
    assert (tmp_path / "other").read_text() != text
