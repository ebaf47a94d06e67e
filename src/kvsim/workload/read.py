"""Opens a trace in any format and yields its requests one by one."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvsim.errors import TraceError, UnknownName
from kvsim.workload.spec import RequestSpec

FORMATS = ("mooncake",)


def open_trace(path: str, format: str | None = None, **options: Any) -> Iterator[RequestSpec]:
    """Yield the requests of a file. Raises TraceError, UnknownName."""
    from kvsim.workload.mooncake import DEFAULT_BLOCK, read_mooncake

    if format not in (None, *FORMATS):
        raise UnknownName("trace format", str(format), FORMATS)
    block = options.get("block_size") or DEFAULT_BLOCK
    return read_mooncake(_lines(path), path, block=block, zero_outputs=options.get("zero_outputs", "skip"))


def _lines(path: str) -> Iterator[bytes]:
    file = Path(path)
    try:
        with file.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(file) if packed else file.open("rb") as lines:
            yield from lines
    except (OSError, EOFError) as error:
        raise TraceError(path, None, f"cannot be read: {error}") from None
