"""Opens a trace in any format and yields its requests one by one: ``open_trace``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import IO, Any

from kvsim.errors import TraceError, UnknownName
from kvsim.workload import formats_csv, formats_doc, formats_jsonl, formats_weka
from kvsim.workload.assemble import Assembler, in_order
from kvsim.workload.detect import FORMATS, Detected, detect, times_of
from kvsim.workload.mooncake import DEFAULT_BLOCK, read_mooncake
from kvsim.workload.raw import Raw, ReadReport, Skip
from kvsim.workload.source_files import HEAD, holds_any, lines_of, open_bytes, position, shards, text_lines, whole
from kvsim.workload.spec import RequestSpec

WATCHED = 2_000
DIALECT = (b'"session_id"', b'"turn"', b'"priority"', b'"delay"', b'"end')
UNITS = {"s": 10**12, "ms": 10**9, "us": 10**6, "ns": 10**3}
BLOCKS = {"bailian": 16, "weka": 64, "mooncake": DEFAULT_BLOCK}
CONTENT = {
    "ids": "block ids: prefixes are known exactly",
    "session": "sessions only: a turn is taken to begin with the whole turn before it (an assumption); nothing else is shared",
    "text": "text: equal messages behind equal messages are equal, token counts are estimated from words",
    "none": "not at all: no prefixes are in the file, so hit rates are assumptions",
    "runs": "token runs: prefixes are known exactly",
}


class TraceReader:
    """An iterator of requests with its ``report``, ``format`` and ``detected`` at hand. Streaming: rows are made as they are asked for."""

    def __init__(self, path: str, format: str | None, options: dict[str, Any]) -> None:
        self.path, self.options = path, options
        if format is not None and format not in FORMATS:
            raise UnknownName("trace format", format, FORMATS)
        self.files = shards(path)
        self.report = ReadReport()
        self.detected = Detected(format, "given", "format: option") if format else None
        self._stdin: IO[bytes] | None = None
        self.watch: Callable[[int, float | None], None] | None = None  # told rows and share every few thousand rows
        self._stream: IO[bytes] | None = None
        self._before = 0  # bytes of the shards before it
        head = self._head(self.files[0])
        if self.detected is None:
            self.detected = detect(head, str(self.files[0]))
        self.format = self.detected.format
        self.report.unit = times_of(self.format, head, options.get("time_unit"), options.get("columns"))
        self.report.notes += self._notes(head)
        self._rows = self._filtered(self._specs())

    def __iter__(self) -> Iterator[RequestSpec]:
        """Return the requests not yet taken."""
        return self._rows

    def __next__(self) -> RequestSpec:
        """Return the next request."""
        return next(self._rows)

    def _open(self, file: Path | str) -> IO[bytes]:
        if file == "-":
            if self._stdin is None:
                self._stdin = open_bytes("-")
            return self._stdin
        return open_bytes(file)

    def _head(self, file: Path | str) -> bytes:
        """Return the beginning of a file."""
        stream = self._open(file)
        try:
            return bytes(stream.peek(HEAD)[:HEAD] if file == "-" else stream.read(HEAD))  # type: ignore[attr-defined]
        except Exception as error:
            raise TraceError(str(file), None, f"damaged or truncated: {error}") from None
        finally:
            if file != "-":
                stream.close()

    def _notes(self, head: bytes) -> list[str]:
        """Return what the format or this file cannot tell."""
        rate = (self.options.get("arrivals") or {}).get("rate_per_s")
        if self.format in ("sharegpt", "weka"):
            pace = "all begin at once" if rate is None else f"one begins every {1 / rate:.4g} s"
            start = "no times in the file" if self.format == "sharegpt" else "times count from a conversation's own start"
            if b'"start"' not in head:
                return [f"{start}: conversations {pace} (workload.arrivals: {{rate_per_s: ...}}); their turns are meant for a closed loop"]
        if self.report.unit.startswith("none"):
            return ["no times in the file: requests are laid out at the run's request rate, or workload.arrivals: {rate_per_s: ...}"]
        if self.format == "azure" and b"numimages" in head[:4096].lower():
            return ["images (NumImages) are not modelled apart: their tokens are those that ContextTokens counts"]
        return []

    def share(self) -> float | None:
        """Return the part of the files' bytes that has been read; None for standard input."""
        if self.path == "-" or self._stream is None or self._stream.closed:
            return None
        whole = sum(Path(file).stat().st_size for file in self.files)
        return (self._before + position(self._stream)) / whole if whole else None

    @property
    def block(self) -> int:
        """Tokens per id."""
        return int(self.options.get("block_size") or BLOCKS.get(self.format, DEFAULT_BLOCK))

    def _specs(self) -> Iterator[RequestSpec]:
        if self.format == "mooncake" and self._plain_mooncake():
            self.report.content = CONTENT["ids"]
            yield from self._fast_mooncake()
            return
        assembler = Assembler(self.report, self.path, zero_outputs=self.options.get("zero_outputs", "skip"))
        yield from assembler.specs(self._by_time())

    def _by_time(self) -> Iterator[Raw]:
        """Yield rows by time; conversations that are whole lines are sorted as a whole, anything else within a window."""
        if self.format != "weka":
            return in_order(self._raw(), self.report, self.path)
        rows = [row for row in self._raw() if isinstance(row, Raw)]
        self.report.rows = len(rows)
        rows.sort(key=lambda row: row.time_ps)
        return iter(rows)

    def _plain_mooncake(self) -> bool:
        """Whether the file has Mooncake's own four keys only, in every line (then a typed decoder reads it)."""
        if self.options.get("time_unit") or len(self.files) > 1 or self.path == "-" or not self.options.get("plain", True):
            return False
        with closing(self._open(self.files[0])) as stream:
            head = stream.read(HEAD)
            return b'"hash_ids"' in head and not holds_any(stream, head, DIALECT, str(self.files[0]))

    def _fast_mooncake(self) -> Iterator[RequestSpec]:
        with closing(self._open(self.files[0])) as stream:
            self._stream = stream
            yield from read_mooncake(
                lines_of(stream, self.path), self.path, self.report, block=self.block, zero_outputs=self.options.get("zero_outputs", "skip")
            )

    def _raw(self) -> Iterator[Raw | Skip]:
        seen = dict.fromkeys(("ids", "session", "runs"), False)
        for file in self.files:
            with closing(self._open(file)) as stream:
                self._stream = stream
                for row in self._format_rows(stream, str(file)):
                    if isinstance(row, Raw):
                        row.file = str(file) if len(self.files) > 1 else ""
                        seen["ids"] |= row.ids is not None
                        seen["session"] |= row.session is not None
                        seen["runs"] |= row.prompt is not None
                    yield row
                self._before += 0 if file == "-" else position(stream)
        if self.format == "sharegpt":
            seen = {"text": True}
        kind = next((name for name in ("text", "runs", "ids", "session") if seen.get(name)), "none")
        self.report.content = CONTENT[kind]

    def _format_rows(self, stream: IO[bytes], origin: str) -> Iterator[Raw | Skip]:
        options = self.options
        unit = UNITS.get(options.get("time_unit") or "")
        rate = (options.get("arrivals") or {}).get("rate_per_s")
        by_lines: dict[str, Callable[[Iterable[bytes]], Iterator[Raw | Skip]]] = {
            "mooncake": lambda lines: formats_jsonl.mooncake_rows(lines, origin, self.block, unit),
            "bailian": lambda lines: formats_jsonl.bailian(lines, origin, self.block),
            "aiperf": lambda lines: formats_jsonl.aiperf(lines, origin),
            "sglang_metrics": lambda lines: formats_jsonl.sglang_metrics(lines, origin),
            "dynamo": lambda lines: formats_jsonl.dynamo(lines, origin),
            "weka": lambda lines: formats_weka.weka(lines, origin, rate),
            "langfuse": lambda lines: formats_jsonl.langfuse(lines, origin),
            "litellm": lambda lines: formats_jsonl.litellm(lines, origin),
            "kvsim": lambda lines: formats_jsonl.canonical_rows(lines, origin),
            "sglang_bench": lambda lines: formats_doc.sglang_bench(lines, origin, rate),
        }
        if self.format in by_lines:
            return by_lines[self.format](lines_of(stream, origin))
        if self.format == "azure":
            return formats_csv.azure(text_lines(stream, origin), origin)
        if self.format == "burstgpt":
            return formats_csv.burstgpt(text_lines(stream, origin), origin)
        if self.format == "csv":
            return formats_csv.mapped(text_lines(stream, origin), origin, options.get("columns") or {}, unit)
        if self.format == "access_log":
            return formats_doc.access_log(text_lines(stream, origin), origin)
        data = whole(stream, origin)
        if self.format == "sharegpt":
            return formats_doc.sharegpt(data, origin, options.get("tokens_per_word"), rate)
        return formats_doc.otel(data, origin) if self.format == "otel" else formats_doc.vllm_bench(data, origin, rate)

    def _filtered(self, specs: Iterator[RequestSpec]) -> Iterator[RequestSpec]:
        taken = 0
        for spec in self._chosen(specs):
            yield spec
            taken += 1
            if taken % WATCHED == 0 and self.watch is not None:
                self.watch(taken, self.share())
        if not taken:
            raise TraceError(self.path, None, f"no request in it ({_reasons(self.report) or 'no rows'})")

    def _chosen(self, specs: Iterator[RequestSpec]) -> Iterator[RequestSpec]:
        """Return the requests of the window, the sample and the limit, moved and scaled."""
        options = self.options
        start, scale = round((options.get("start") or 0) * 10**12), Fraction(str(options.get("rate_scale") or 1))
        end = None if options.get("end") is None else round(options["end"] * 10**12)
        share = options.get("sample_sessions")
        if start or end is not None or share is not None or scale != 1:
            specs = _window(specs, start, end, share, scale)
        return specs if options.get("limit") is None else islice(specs, options["limit"])


def _window(specs: Iterator[RequestSpec], start: int, end: int | None, share: float | None, scale: Fraction) -> Iterator[RequestSpec]:
    origin: int | None = None
    for spec in specs:
        if spec.arrival_ps < start:
            continue
        if end is not None and spec.arrival_ps >= end:
            break
        if share is not None and not _sampled(spec, share):
            continue
        if origin is None:
            origin = spec.arrival_ps if start else 0
        _move(spec, origin, scale)
        yield spec


def _move(spec: RequestSpec, origin: int, scale: Fraction) -> None:
    """Take ``origin`` off a request's times and divide its arrival; how long its answer took stays."""
    before = spec.arrival_ps
    spec.arrival_ps = (before - origin) * scale.denominator // scale.numerator
    if spec.recorded_end_ps is not None:
        spec.recorded_end_ps += spec.arrival_ps - before


def _sampled(spec: RequestSpec, share: float) -> bool:
    """Keep whole sessions (requests without one count alone), by a hash: the same ones every time."""
    import hashlib

    key = (spec.session or spec.id).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") < share * (1 << 64)


def _reasons(report: ReadReport) -> str:
    return ", ".join(f"{count} skipped: {reason}" for reason, (count, _) in report.skipped.items())


def open_trace(path: str, format: str | None = None, **options: Any) -> TraceReader:
    """Return the requests of a trace. ``path``: a file, a folder of shards, or "-"; gzip and zstd are read as they are.

    Options: block_size, zero_outputs (skip | prefill_only), time_unit, columns, arrivals, tokens_per_word, limit, start, end (s), rate_scale, sample_sessions.
    Raises TraceError (file and line), UnknownName.
    """
    return TraceReader(str(path), format, options)


__all__ = ["TraceReader", "open_trace"]
