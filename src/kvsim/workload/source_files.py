"""Bytes of a trace: a file, a folder of shards, gzip or zstd, or standard input; bounded memory, clear errors."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

from kvsim.errors import MissingExtra, TraceError

HEAD = 1 << 16
PIECE = 1 << 20
MAX_LINE = 64 << 20
MAX_DOCUMENT = 1 << 30


def shards(path: str) -> list[Path | str]:
    """Return the files of a path: itself, the files of a folder in order of their names, or "-" for standard input."""
    if path == "-":
        return ["-"]
    place = Path(path)
    try:
        if place.is_dir():
            files = sorted(file for file in place.iterdir() if file.is_file() and not file.name.startswith("."))
            if not files:
                raise TraceError(path, None, "an empty folder")
            return list(files)
        if not place.exists():
            raise TraceError(path, None, "no such file")
    except (OSError, ValueError) as error:
        raise TraceError(path, None, f"cannot be read: {error}") from None
    return [place]


def open_bytes(file: Path | str) -> IO[bytes]:
    """Return the (uncompressed) bytes of one file."""
    raw: io.BufferedReader
    try:
        raw = cast("io.BufferedReader", sys.stdin.buffer) if file == "-" else Path(file).open("rb")  # noqa: SIM115 - closed by the reader
        magic = raw.peek(4)[:4]
    except OSError as error:
        raise TraceError(str(file), None, f"cannot be read: {error.strerror}") from None
    if magic[:2] == b"\x1f\x8b":
        return _unpacked(gzip.GzipFile(fileobj=raw, mode="rb"), raw)
    if magic == b"\x28\xb5\x2f\xfd":
        return _unpacked(_zstd(raw), raw)
    return raw


class _unpacked(io.BufferedReader):  # noqa: N801 - a stream as io's own
    """What a compressed file holds; ``packed`` is the file itself, closed with it."""

    def __init__(self, content: Any, packed: IO[bytes]) -> None:
        super().__init__(content, HEAD)
        self.packed = packed

    def close(self) -> None:
        super().close()
        self.packed.close()


def _zstd(raw: IO[bytes]) -> Any:
    try:
        import zstandard
    except ImportError:
        raise MissingExtra("reading .zst files", "zstd") from None
    return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)


def position(stream: IO[bytes]) -> int:
    """Return how many bytes of the file (compressed, if it is) have been read."""
    return int(getattr(stream, "packed", stream).tell())


def lines_of(file: IO[bytes], origin: str) -> Iterator[bytes]:
    """Yield lines, each of bounded length, split at line feeds, without a byte-order mark. Raises TraceError for a damaged or binary file."""
    return chain.from_iterable(_byte_pieces(file, origin))


def _byte_pieces(file: IO[bytes], origin: str) -> Iterator[list[bytes]]:
    """Yield the lines of one piece of the file after the other: checks per piece, not per line."""
    before, held, size = 0, [], 0  # held: pieces of a line that is not complete yet
    while True:
        try:
            piece = file.read(PIECE)
        except Exception as error:  # OSError, EOFError, zlib.error, zstandard's own error class
            raise TraceError(origin, before + 1, f"damaged or truncated: {error}") from None
        end = piece.rfind(b"\n") + 1
        if piece and not end:
            held.append(piece)
            size += len(piece)
            if size >= MAX_LINE:
                raise TraceError(origin, before + 1, f"a line longer than {MAX_LINE >> 20} MiB")
            continue
        data = b"".join((*held, piece[:end]))
        held, size = [piece[end:]], len(piece) - end
        if data:
            zero = data.find(b"\0")
            if zero >= 0:
                raise TraceError(origin, before + data.count(b"\n", 0, zero) + 1, "binary data, not text")
            lines = (data if before else data.removeprefix(b"\xef\xbb\xbf")).split(b"\n")
            if not lines[-1]:
                lines.pop()
            yield lines
            before += len(lines)
        if not piece:
            return


def holds_any(stream: IO[bytes], head: bytes, words: tuple[bytes, ...], origin: str) -> bool:
    """Tell whether any of ``words`` stands in ``head`` or in the rest of a stream. Raises TraceError."""
    most = max(map(len, words)) - 1
    piece = head
    while piece:
        if any(word in piece for word in words):
            return True
        try:
            following = stream.read(PIECE)
        except Exception as error:  # OSError, EOFError, zlib.error, zstandard's own error class
            raise TraceError(origin, None, f"damaged or truncated: {error}") from None
        piece = piece[-most:] + following if following else b""
    return False


def text_lines(file: IO[bytes], origin: str) -> Iterator[str]:
    """Yield lines as UTF-8 text without a byte-order mark, split at line feeds. Raises TraceError with the line."""
    return chain.from_iterable(_text_pieces(file, origin))


def _text_pieces(file: IO[bytes], origin: str) -> Iterator[list[str]]:
    before = 0
    for lines in _byte_pieces(file, origin):
        data = b"\n".join(lines)
        try:
            out = data.decode("utf-8").split("\n")
        except UnicodeDecodeError as error:
            line = before + data.count(b"\n", 0, error.start) + 1
            raise TraceError(origin, line, f"not UTF-8 text (byte 0x{data[error.start]:02x})") from None
        yield out
        before += len(lines)


def whole(file: IO[bytes], origin: str) -> bytes:
    """Return a whole document: at most 1 GiB, and at most a hundred times what a compressed file occupies. Raises TraceError."""
    limit = _bound(origin)
    pieces: list[bytes] = []
    size = 0
    try:
        while piece := file.read(1 << 20):
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise TraceError(
                    origin, None, f"a single document of more than {limit >> 20:,} MiB (1 GiB, or 100 times the compressed size); split it"
                )
    except TraceError:
        raise
    except Exception as error:  # OSError, EOFError, zlib.error, zstandard's own error class
        raise TraceError(origin, None, f"damaged or truncated: {error}") from None
    return b"".join(pieces)


def _bound(origin: str) -> int:
    try:
        stored = Path(origin).stat().st_size
    except (OSError, ValueError):
        return MAX_DOCUMENT
    return min(MAX_DOCUMENT, max(16 << 20, 100 * stored))
