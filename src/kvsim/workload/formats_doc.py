"""Whole-document JSON and text logs: SGLang and vLLM bench results, ShareGPT, OpenTelemetry spans, access logs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from kvsim.errors import TraceError
from kvsim.workload.formats_jsonl import _at, rows_of
from kvsim.workload.raw import PS, Raw, Skip, count_or_none, ps_of, tokens_of

MAX_DOCUMENT = 1 << 30
TOKENS_PER_WORD = 1.3


def document(data: bytes, origin: str) -> Any:
    """Return a JSON document. Raises TraceError with the line."""
    try:
        return json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise TraceError(origin, data.count(b"\n", 0, error.start) + 1, f"not UTF-8 text (byte 0x{data[error.start]:02x})") from None
    except RecursionError:
        raise TraceError(origin, 1, "not a JSON document that can be read: nested too deep") from None
    except ValueError as error:
        raise TraceError(origin, getattr(error, "lineno", 1), f"not a JSON document: {error}") from None


def sglang_bench(lines: Iterable[bytes], origin: str, rate: float | None) -> Iterator[Raw | Skip]:
    """Yield the requests of bench_serving --output-details: lengths, no arrival times; they are laid out at the run's request rate."""
    for line, row in rows_of(lines, origin):
        inputs, outputs = row.get("input_lens"), row.get("output_lens")
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
            raise TraceError(origin, line, "no input_lens and output_lens of equal length (run the benchmark with --output-details)")
        per_s = rate or row.get("request_rate")
        gap = round(PS / per_s) if isinstance(per_s, (int, float)) and not isinstance(per_s, bool) and 0 < per_s < 1e9 else 0
        for i, (prompt, output) in enumerate(zip(inputs, outputs, strict=True)):
            yield Raw(
                line,
                i * gap,
                tokens_of(prompt, origin, line, "input_lens", least=1),
                tokens_of(output, origin, line, "output_lens"),
                id=f"{line}-{i}",
            )


def vllm_bench(data: bytes, origin: str, rate: float | None) -> Iterator[Raw | Skip]:
    """Yield the requests of vllm bench serve --save-detailed; start_times where the file has them, else the request rate."""
    row = document(data, origin)
    inputs, outputs = _at(row, "input_lens"), _at(row, "output_lens")
    starts, failures = _at(row, "start_times"), _at(row, "errors") or []
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise TraceError(origin, 1, "no input_lens and output_lens of equal length (run the benchmark with --save-detailed)")
    if not isinstance(failures, list):
        raise TraceError(origin, 1, "errors must be a list")
    if isinstance(starts, list) and len(starts) != len(inputs):
        raise TraceError(origin, 1, f"{len(starts)} start_times for {len(inputs)} requests")
    per_s = rate or _at(row, "request_rate")
    gap = round(PS / per_s) if isinstance(per_s, (int, float)) and not isinstance(per_s, bool) and per_s > 0 else 0
    for i, (prompt, output) in enumerate(zip(inputs, outputs, strict=True)):
        if i < len(failures) and failures[i]:
            yield Skip(1, "failed request")
            continue
        time = ps_of(starts[i], PS, origin, 1, "start_times") if isinstance(starts, list) else i * gap
        yield Raw(1, time, tokens_of(prompt, origin, 1, "input_lens", least=1), tokens_of(output, origin, 1, "output_lens"), id=str(i))


def sharegpt(data: bytes, origin: str, tokens_per_word: float | None, rate: float | None = None) -> Iterator[Raw | Skip]:
    """Yield the answered turns of ShareGPT conversations; lengths from words; conversations without two turns are skipped.

    Content is by messages: the same text behind the same conversation is the same. Conversation k begins at k / ``rate``, or all at 0.
    """
    rows = document(data, origin)
    if not isinstance(rows, list):
        raise TraceError(origin, 1, "must be a list of conversations")
    texts = _Texts(tokens_per_word or TOKENS_PER_WORD)
    gap = round(PS / rate) if rate else 0
    begun = 0
    for number, row in enumerate(rows, 1):
        turns = _at(row, "conversations")
        if not isinstance(turns, list):
            raise TraceError(origin, number, "conversations must be a list")
        pairs = _pairs(turns)
        if not pairs:
            yield Skip(number, "no answered turn" if len(turns) > 1 else "a single turn")
            continue
        session = str(_at(row, "id") or number)
        context: list[list[int]] = []
        for turn, (asked, answered) in enumerate(pairs):
            context = [*context, texts.run(context, asked)]
            answer = texts.run(context, answered)
            yield Raw(number, begun * gap, sum(run[1] for run in context), answer[1], session=session, turn=turn, prompt=context, output_first=answer[0])
            context = [*context, answer]
        begun += 1


class _Texts:
    """Gives messages their tokens: the same text behind the same text the same ones."""

    def __init__(self, per_word: float) -> None:
        self._per_word, self._next = per_word, 0
        self._known: dict[tuple[int, str], list[int]] = {}

    def run(self, before: list[list[int]], text: str) -> list[int]:
        """Return the [first, count] of a message behind others."""
        key = (before[-1][0] if before else -1, text)
        found = self._known.get(key)
        if found is None:
            tokens = max(round(len(text.split()) * self._per_word), 1)
            found = self._known[key] = [self._next, tokens]
            self._next += tokens + 1
        return found


def _pairs(turns: list[Any]) -> list[tuple[str, str]]:
    out = []
    asked: str | None = None
    for turn in turns:
        who, text = _at(turn, "from"), _at(turn, "value")
        if not isinstance(text, str):
            continue
        if who in ("human", "user"):
            asked = text
        elif who in ("gpt", "assistant", "chatgpt") and asked is not None:
            out.append((asked, text))
            asked = None
    return out


def otel(data: bytes, origin: str) -> Iterator[Raw | Skip]:
    """Yield gen_ai spans of OTLP JSON; ns and counts may be text."""
    root = document(data, origin)
    for resource in _list(root, "resourceSpans", origin):
        for scope in _list(resource, "scopeSpans", origin):
            for number, span in enumerate(_list(scope, "spans", origin), 1):
                yield _span(span, origin, number)


def _list(row: Any, name: str, origin: str) -> list[Any]:
    value = _at(row, name)
    if value is not None and not isinstance(value, list):
        raise TraceError(origin, 1, f"{name} must be a list")
    return value or []


def _span(span: Any, origin: str, number: int) -> Raw | Skip:
    values = {str(_at(a, "key")): _plain(_at(a, "value")) for a in _list(span, "attributes", origin)}
    prompt = values.get("gen_ai.usage.input_tokens", values.get("gen_ai.usage.prompt_tokens"))
    output = values.get("gen_ai.usage.output_tokens", values.get("gen_ai.usage.completion_tokens"))
    if prompt is None:
        return Skip(number, "span without gen_ai usage")
    end = _at(span, "endTimeUnixNano")
    session = values.get("gen_ai.conversation.id")
    return Raw(
        number, ps_of(_integer(_at(span, "startTimeUnixNano")), 1000, origin, number, "startTimeUnixNano"),
        tokens_of(_integer(prompt), origin, number, "gen_ai.usage.input_tokens", least=1), tokens_of(_integer(output or 0), origin, number, "gen_ai.usage.output_tokens"),
        id=str(_at(span, "spanId") or ""), session=None if session is None else str(session),
        end_ps=None if end is None else ps_of(_integer(end), 1000, origin, number, "endTimeUnixNano"),
        cached=count_or_none(_integer(values.get("gen_ai.usage.cache_read.input_tokens")), origin, number, "gen_ai.usage.cache_read.input_tokens"),
    )  # fmt: skip


def _plain(value: Any) -> Any:
    return next(iter(value.values()), None) if isinstance(value, dict) else value


def _integer(value: Any) -> Any:
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,30}", value) else value


_LINE = re.compile(r'"(?:POST|GET|PUT) (\S+) HTTP/[\d.]+" (\d{3}) ')
_FIELD = re.compile(r"(\w+)=(\S+)")


def access_log(lines: Iterable[str], origin: str) -> Iterator[Raw | Skip]:
    """Yield OpenAI-style access log lines with usage as key=value; ``ts`` is the arrival, else the log's own end time less the duration."""
    for line, text in enumerate(lines, 1):
        if not text.strip():
            continue
        found = _LINE.search(text)
        if found is None:
            raise TraceError(origin, line, "not an access log line")
        fields = dict(_FIELD.findall(text))
        if not found[1].startswith("/v1/"):
            yield Skip(line, "another path")
        elif not found[2].startswith("2"):
            yield Skip(line, "failed request")
        elif "prompt_tokens" not in fields:
            yield Skip(line, "no token counts")
        else:
            yield Raw(
                line, _log_time(fields, text, origin, line), tokens_of(_integer(fields["prompt_tokens"]), origin, line, "prompt_tokens", least=1),
                tokens_of(_integer(fields.get("completion_tokens", "0")), origin, line, "completion_tokens"), id=fields.get("request_id", ""), session=fields.get("session"),
                cached=count_or_none(_integer(fields.get("cached_tokens")), origin, line, "cached_tokens"),
            )  # fmt: skip


def _log_time(fields: dict[str, str], text: str, origin: str, line: int) -> int:
    try:
        if "ts" in fields:
            return ps_of(float(fields["ts"]) if "." in fields["ts"] else int(fields["ts"]), PS, origin, line, "ts")
        import datetime

        stamp = re.search(r"\[([^\]]+)\]", text)
        end = datetime.datetime.strptime(stamp[1] if stamp else "", "%d/%b/%Y:%H:%M:%S %z")
        return max(int(end.timestamp()) * PS - ps_of(float(fields.get("duration_ms", "0")), 10**9, origin, line, "duration_ms"), 0)
    except (ValueError, OverflowError):
        raise TraceError(origin, line, "no arrival time: neither ts=... nor a [day/Mon/year:time zone] stamp") from None
