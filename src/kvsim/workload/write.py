"""Writes traces: kvsim's canonical JSONL, Mooncake JSONL, a plain CSV; and says what a format cannot carry. Anonymises."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from kvsim.content import Runs, cut
from kvsim.errors import ConfigError
from kvsim.workload import write_docs, write_logs
from kvsim.workload.mooncake import OUTPUT_BASE
from kvsim.workload.spec import RequestSpec

LOST = {
    **write_logs.LOST,
    **write_docs.LOST,
    "kvsim": "nothing that a trace has",
    "mooncake": "content is kept in blocks (a partial tail as its own block), ids, tenants and who waits for whom are lost, times are whole milliseconds",
    "csv": "content and sessions' prefixes are lost: only times, lengths and session names remain",
}


def canonical(specs: Iterable[RequestSpec]) -> Iterator[str]:
    """Yield canonical JSONL lines, a header first."""
    yield json.dumps({"kvsim": "trace@1"})
    for spec in specs:
        row: dict[str, Any] = {
            "id": spec.id,
            "at_ps": spec.arrival_ps,
            "prompt": [list(run) for run in spec.prompt],
            "output": spec.output_tokens,
        }
        row["output_first"] = spec.output_first
        optional = {"session": spec.session, "turn": spec.turn or None, "namespace": spec.namespace or None, "tenant": spec.tenant or None}
        row.update({key: value for key, value in optional.items() if value is not None})
        if spec.after:
            row["after"] = spec.after
        row.update({key: value for key, value in _numbers(spec) if value is not None})
        yield json.dumps(row, separators=(",", ":"))


def _numbers(spec: RequestSpec) -> tuple[tuple[str, int | None], ...]:
    return (
        ("think_ps", spec.think_ps), ("end_ps", spec.recorded_end_ps), ("cached", spec.recorded_cached_tokens), ("priority", spec.priority),
        ("max_new", spec.max_new_tokens),
    )  # fmt: skip


class Blocks:
    """Names blocks of content: equal prefixes get equal ids (chained), different ones different ids; ids count up from 0 or are salted.

    ``made_up``: what has neither ids nor a session in its file was made up by its reader and is met once only, so it is not remembered.
    """

    def __init__(self, block: int, salt: bytes | None = None, *, made_up: bool = False) -> None:
        self.block, self.salt, self._made_up = block, salt, made_up
        self._known: dict[Any, int] = {}
        self._count = 0

    def ids(self, spec: RequestSpec) -> list[int]:
        """Return one id per block of the prompt, the partial tail included."""
        if self._made_up and self.salt is None and spec.session is None and len(spec.prompt) == 1 and spec.prompt[0][0] >= OUTPUT_BASE:
            return self._new(-(-spec.prompt_tokens // self.block))
        out: list[int] = []
        parent: int | str = spec.namespace
        for start in range(0, spec.prompt_tokens, self.block):
            parent = self._name(parent, cut(spec.prompt, start, start + self.block))
            out.append(parent)
        return out

    def _name(self, parent: int | str, content: Runs) -> int:
        if self.salt is not None:
            digest = hashlib.blake2b(repr((parent, content)).encode(), digest_size=8, key=self.salt).digest()
            return int.from_bytes(digest, "big") >> 14
        key = (parent, content)
        found = self._known.get(key)
        if found is None:
            (found,) = self._new(1)
            self._known[key] = found
        return found

    def _new(self, count: int) -> list[int]:
        """Return ids nobody has: for content that is met once only, nothing is remembered."""
        first, self._count = self._count, self._count + count
        return list(range(first, self._count))


def mooncake(
    specs: Iterable[RequestSpec], block: int, *, salt: bytes | None = None, shift_ms: int = 0, made_up: bool = False
) -> Iterator[str]:
    """Yield Mooncake JSONL lines with blocks of ``block`` tokens."""
    blocks = Blocks(block, salt, made_up=made_up)
    for spec in specs:
        row: dict[str, Any] = {
            "timestamp": spec.arrival_ps // 1_000_000_000 + shift_ms, "input_length": spec.prompt_tokens, "output_length": spec.output_tokens, "hash_ids": blocks.ids(spec),
        }  # fmt: skip
        if spec.session is not None:
            row["session_id"], row["turn"] = _session(spec.session, salt), spec.turn + 1
            if spec.recorded_end_ps is not None:
                row["end"] = spec.recorded_end_ps // 1_000_000_000 + shift_ms
            if spec.think_ps is not None:
                row["delay"] = spec.think_ps // 1_000_000_000
        yield json.dumps(row)


def _session(name: str, salt: bytes | None) -> str:
    """Return a session's name, or a salted pseudonym for it."""
    return (
        name
        if salt is None
        else hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, key=salt, person=b"session").hexdigest()
    )


def plain_csv(specs: Iterable[RequestSpec]) -> Iterator[str]:
    """Yield CSV lines: time_s, input_tokens, output_tokens, session."""
    yield "time_s,input_tokens,output_tokens,session"
    for spec in specs:
        whole, rest = divmod(spec.arrival_ps, 10**12)
        yield f"{whole}.{rest:012d},{spec.prompt_tokens},{spec.output_tokens},{(spec.session or '').replace(',', '_')}"


def lines_for(specs: Iterable[RequestSpec], format: str, block: int, *, made_up: bool = False) -> Iterator[str]:
    """Yield the lines of a format; ``made_up`` as for ``Blocks``. Raises ConfigError for one that cannot be written."""
    if format == "kvsim":
        return canonical(specs)
    if format == "mooncake":
        return mooncake(specs, block, made_up=made_up)
    if format == "csv":
        return plain_csv(specs)
    if format == "bailian":
        return write_logs.bailian(specs, Blocks(block, made_up=made_up).ids)
    if format == "dynamo":
        return write_logs.dynamo(specs, Blocks(block, made_up=made_up).ids, block)
    if format == "weka":
        return write_docs.weka(specs, Blocks(block).ids, block)
    if format in write_logs.LOST or format in write_docs.LOST:
        writer: Callable[[Iterable[RequestSpec]], Iterator[str]] = getattr(write_logs if format in write_logs.LOST else write_docs, format)
        return writer(specs)
    raise ConfigError(f"cannot write the format {format}; can: {', '.join(LOST)}")


def anonymised(specs: Iterable[RequestSpec], block: int, salt: bytes | None = None) -> Iterator[str]:
    """Yield Mooncake JSONL with salted, chained page hashes: lengths and reuse (by pages of ``block``) stay, nothing else survives.

    Times start at zero; ids, tenants and text are gone, sessions have pseudonyms (so closed loops stay possible).
    Without the salt (32 random bytes if None) hashes cannot be guessed.
    """
    return mooncake(specs, block, salt=salt or secrets.token_bytes(32))


def write_lines(lines: Iterable[str], target: str | None) -> int:
    """Write lines to a file (whole or not at all) or, for None, return -1 for the caller to print; return the count.

    A device or a pipe is written to as it is: putting a new file in its place would destroy it.
    """
    if target is None:
        return -1
    path = Path(target)
    try:
        if path.exists() and not path.is_file():
            return _written(lines, path)
        partial = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            count = _written(lines, partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written: {error.strerror}") from None
    return count


def _written(lines: Iterable[str], path: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for line in lines:
            file.write(line + "\n")
            count += 1
    return count
