"""Line-by-line JSON traces and logs: Qwen-Bailian, AIPerf, SGLang request metrics, Dynamo, Langfuse, LiteLLM, canonical."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import msgspec

from kvsim.errors import TraceError
from kvsim.workload.raw import PS, Raw, Skip, count_or_none, date_ps, epoch_unit, ps_of, tokens_of
from kvsim.workload.recent import Recent

MS = 10**9
US = 10**6
NS = 10**3


def rows_of(lines: Iterable[bytes], origin: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, object). Raises TraceError with file and line."""
    decode = msgspec.json.Decoder().decode
    for line, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            row = decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TraceError(origin, line, f"not JSON: {error}") from None
        if not isinstance(row, dict):
            raise TraceError(origin, line, f"must be an object, not {type(row).__name__}")
        yield line, row


def _at(row: Any, *path: str) -> Any:
    for step in path:
        row = row.get(step) if isinstance(row, dict) else None
    return row


def _need(row: Any, origin: str, line: int, *path: str) -> Any:
    value = _at(row, *path)
    if value is None:
        raise TraceError(origin, line, f"{'.'.join(path)} is missing")
    return value


def ids_of(value: object, origin: str, line: int, name: str = "hash_ids") -> list[int]:
    """Return block ids: whole numbers of up to 64 bits, kept as they are. Raises TraceError."""
    if not isinstance(value, list) or any(isinstance(x, bool) or not isinstance(x, int) or not -(1 << 63) <= x < 1 << 64 for x in value):
        raise TraceError(origin, line, f"{name} must be a list of whole numbers")
    return value


def bailian(lines: Iterable[bytes], origin: str, block: int) -> Iterator[Raw | Skip]:
    """Yield Qwen-Bailian rows: seconds, 16 tokens per id unless told otherwise, the input contains the history."""
    roots: Recent[Hashable, tuple[str, int]] = Recent()
    for line, row in rows_of(lines, origin):
        chat, parent = row.get("chat_id"), row.get("parent_chat_id", -1)
        if isinstance(chat, (list, dict)) or isinstance(parent, (list, dict)):
            raise TraceError(origin, line, "chat_id and parent_chat_id must be numbers or text")
        session, turn = (roots.get(parent) if parent != -1 else None) or (f"{chat}", -1)
        roots.set(chat, (session, turn + 1))
        yield Raw(
            line, ps_of(_need(row, origin, line, "timestamp"), PS, origin, line, "timestamp"),
            tokens_of(_need(row, origin, line, "input_length"), origin, line, "input_length", least=1),
            tokens_of(_need(row, origin, line, "output_length"), origin, line, "output_length"),
            ids_of(_need(row, origin, line, "hash_ids"), origin, line), block, id=str(chat), session=session, turn=turn + 1,
        )  # fmt: skip


def aiperf(lines: Iterable[bytes], origin: str) -> Iterator[Raw | Skip]:
    """Yield AIPerf profile_export rows: epoch ns; warm-up, failed and cancelled requests are skipped with their reason."""
    for line, row in rows_of(lines, origin):
        meta = _need(row, origin, line, "metadata")
        if row.get("error") is not None:
            yield Skip(line, "failed request")
        elif _at(meta, "was_cancelled"):
            yield Skip(line, "cancelled request")
        elif _at(meta, "benchmark_phase") == "warmup":
            yield Skip(line, "warm-up request")
        elif _at(row, "metrics", "input_sequence_length", "value") is None:
            yield Skip(line, "no token counts")
        else:
            end = _at(meta, "request_end_ns")
            yield Raw(
                line, ps_of(_need(meta, origin, line, "request_start_ns"), NS, origin, line, "request_start_ns"),
                tokens_of(_at(row, "metrics", "input_sequence_length", "value"), origin, line, "input_sequence_length", least=1),
                tokens_of(_at(row, "metrics", "output_sequence_length", "value") or 0, origin, line, "output_sequence_length"),
                id=str(_at(meta, "x_request_id") or ""), session=_text(_at(meta, "conversation_id")), turn=count_or_none(_at(meta, "turn_index"), origin, line, "turn_index") or 0,
                end_ps=None if end is None else ps_of(end, NS, origin, line, "request_end_ns"),
            )  # fmt: skip


def sglang_metrics(lines: Iterable[bytes], origin: str) -> Iterator[Raw | Skip]:
    """Yield rows of --export-metrics-to-file: epoch seconds, written at finish time; start = end - duration where the start is missing."""
    for line, row in rows_of(lines, origin):
        received = row.get("request_received_ts")
        finished, latency = row.get("request_finished_ts") or row.get("response_sent_to_client_ts"), row.get("e2e_latency")
        if received is None and (finished is None or latency is None):
            raise TraceError(
                origin, line, "no request_received_ts, and no finish time with e2e_latency (the server needs --enable-metrics)"
            )
        end = None if finished is None else ps_of(finished, PS, origin, line, "request_finished_ts")
        start = (
            ps_of(received, PS, origin, line, "request_received_ts")
            if received is not None
            else (end or 0) - ps_of(latency, PS, origin, line, "e2e_latency")
        )
        if _at(row, "finish_reason", "type") == "abort":
            yield Skip(line, "aborted request")
            continue
        cached = row.get("cached_tokens")
        yield Raw(
            line, start, tokens_of(_need(row, origin, line, "prompt_tokens"), origin, line, "prompt_tokens", least=1),
            tokens_of(_need(row, origin, line, "completion_tokens"), origin, line, "completion_tokens"),
            id=str(row.get("id", "")), end_ps=end, cached=None if cached is None else tokens_of(cached, origin, line, "cached_tokens"),
            session=_text(_parameter(row, "session_id")), max_new=_limit(row), scope=_space(row),
        )  # fmt: skip


def _parameter(row: dict[str, Any], name: str) -> Any:
    text = row.get("request_parameters")
    try:
        inner = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return None
    return _at(inner, name)


def _space(row: dict[str, Any]) -> str:
    """Return the prefix space of a request: its LoRA adapter and its cache salt."""
    names = (_parameter(row, name) for name in ("lora_path", "extra_key", "cache_salt"))
    return "/".join(str(name) for name in names if isinstance(name, (str, int)) and name != "")


def _limit(row: dict[str, Any]) -> int | None:
    limit = _at(_parameter(row, "sampling_params"), "max_new_tokens")
    return limit if isinstance(limit, int) and not isinstance(limit, bool) and 0 < limit < 1 << 40 else None


def dynamo(lines: Iterable[bytes], origin: str) -> Iterator[Raw | Skip]:
    """Yield dynamo.request.trace.v1 request_end events; tool events are skipped; the block size is inside."""
    for line, row in rows_of(lines, origin):
        if row.get("event_type") != "request_end":
            yield Skip(line, f"event {row.get('event_type')}")
            continue
        request = _need(row, origin, line, "request")
        replay = _at(request, "replay")
        hashes = _at(replay, "input_sequence_hashes")
        start = ps_of(_need(request, origin, line, "request_received_ms"), MS, origin, line, "request_received_ms")
        total = _at(request, "total_time_ms")
        yield Raw(
            line, start, tokens_of(_need(request, origin, line, "input_tokens"), origin, line, "input_tokens", least=1),
            tokens_of(_need(request, origin, line, "output_tokens"), origin, line, "output_tokens"),
            None if hashes is None else ids_of(hashes, origin, line, "input_sequence_hashes"),
            tokens_of(_at(replay, "trace_block_size") or 64, origin, line, "trace_block_size", least=1), id=str(_at(request, "request_id") or ""),
            session=_text(_at(row, "agent_context", "session_id")), parent=_text(_at(row, "agent_context", "parent_session_id")),
            end_ps=None if total is None else start + ps_of(total, MS, origin, line, "total_time_ms"),
            cached=count_or_none(_at(request, "cached_tokens"), origin, line, "cached_tokens"),
        )  # fmt: skip


def langfuse(lines: Iterable[bytes], origin: str) -> Iterator[Raw | Skip]:
    """Yield Langfuse observations (snake_case exports and camelCase API); only generations with usage are requests."""
    for line, row in rows_of(lines, origin):
        usage = row.get("usage_details") or row.get("usageDetails")
        if row.get("type") != "GENERATION":
            yield Skip(line, f"observation of type {row.get('type')}")
        elif not isinstance(usage, dict) or usage.get("input") is None:
            yield Skip(line, "no usage")
        elif row.get("level") == "ERROR":
            yield Skip(line, "failed request")
        else:
            start = date_ps(
                str(_need(row, origin, line, "start_time") if "start_time" in row else _need(row, origin, line, "startTime")),
                origin,
                line,
                "start_time",
            )
            end = row.get("end_time") or row.get("endTime")
            yield Raw(
                line, start, tokens_of(usage.get("input"), origin, line, "usage_details.input", least=1),
                tokens_of(usage.get("output") or 0, origin, line, "usage_details.output"), id=str(row.get("id", "")),
                session=_text(row.get("session_id") or row.get("sessionId") or row.get("trace_id") or row.get("traceId")),
                end_ps=None if end is None else date_ps(str(end), origin, line, "end_time"),
                cached=count_or_none(usage.get("input_cached_tokens"), origin, line, "usage_details.input_cached_tokens"),
            )  # fmt: skip


def litellm(lines: Iterable[bytes], origin: str) -> Iterator[Raw | Skip]:
    """Yield LiteLLM StandardLoggingPayload rows; ``cache_hit`` is the gateway's own cache and is skipped as such."""
    for line, row in rows_of(lines, origin):
        if row.get("status") not in (None, "success"):
            yield Skip(line, "failed request")
        elif row.get("cache_hit") is True:
            yield Skip(line, "answered by the gateway's response cache")
        elif not row.get("prompt_tokens"):
            yield Skip(line, "no token counts")
        else:
            end = row.get("endTime")
            yield Raw(
                line, ps_of(_need(row, origin, line, "startTime"), PS, origin, line, "startTime"),
                tokens_of(row["prompt_tokens"], origin, line, "prompt_tokens", least=1),
                tokens_of(row.get("completion_tokens") or 0, origin, line, "completion_tokens"), id=str(row.get("id", "")),
                session=_text(row.get("session_id") or row.get("trace_id")), end_ps=None if end is None else ps_of(end, PS, origin, line, "endTime"),
            )  # fmt: skip


def mooncake_rows(lines: Iterable[bytes], origin: str, block: int, unit: int | None) -> Iterator[Raw | Skip]:
    """Yield Mooncake rows and its dialects' session, turn, delay (ms after the answer before) and priority.

    A later turn may have a delay and no timestamp: it is then put so long after the start of the turn before it.
    """
    last: Recent[str, int] = Recent()
    for line, row in rows_of(lines, origin):
        session, delay = _text(row.get("session_id")), row.get("delay")
        think = None if delay is None else ps_of(delay, MS, origin, line, "delay")
        stamp = row.get("timestamp")
        per = unit or (epoch_unit(stamp) if isinstance(stamp, (int, float)) else None) or MS
        before = last.get(session) if stamp is None and session is not None else None
        time = before + (think or 0) if before is not None else ps_of(_need(row, origin, line, "timestamp"), per, origin, line, "timestamp")
        if session is not None:
            last.set(session, time)
        ids, priority = row.get("hash_ids"), row.get("priority")
        yield Raw(
            line, time, tokens_of(_need(row, origin, line, "input_length"), origin, line, "input_length", least=1),
            tokens_of(_need(row, origin, line, "output_length"), origin, line, "output_length"), None if ids is None else ids_of(ids, origin, line), block,
            session=session, turn=_turn(row), end_ps=_end(row, per, origin, line), priority=_whole(priority, origin, line, "priority"), think_ps=think,
        )  # fmt: skip


def _end(row: dict[str, Any], unit: int, origin: str, line: int) -> int | None:
    for name in ("end", "end_timestamp", "end_time"):
        if row.get(name) is not None:
            return ps_of(row[name], unit, origin, line, name)
    return None


def _turn(row: dict[str, Any]) -> int:
    turn = row.get("turn")
    return turn - 1 if isinstance(turn, int) and not isinstance(turn, bool) and turn > 0 else 0


def canonical_rows(lines: Iterable[bytes], origin: str) -> Iterator[Raw | Skip]:
    """Yield kvsim's own JSONL: ``at_ps``, ``prompt`` as [first, count] runs, ``output``, ``output_first``, session, turn, namespace."""
    for line, row in rows_of(lines, origin):
        if row.get("kvsim") is not None:
            continue  # the header
        runs = _need(row, origin, line, "prompt")
        if not isinstance(runs, list) or not all(
            isinstance(r, list) and len(r) == 2 and all(isinstance(x, int) and x >= 0 for x in r) for r in runs
        ):
            raise TraceError(origin, line, "prompt must be a list of [first, count] pairs")
        prompt = tokens_of(sum(run[1] for run in runs), origin, line, "prompt", least=1)
        first = row.get("output_first")
        yield Raw(
            line, ps_of(_need(row, origin, line, "at_ps"), 1, origin, line, "at_ps"), prompt, tokens_of(_need(row, origin, line, "output"), origin, line, "output"),
            id=str(row.get("id", "")), session=_text(row.get("session")), turn=count_or_none(row.get("turn"), origin, line, "turn") or 0, tenant=str(row.get("tenant") or ""),
            scope=str(row.get("namespace") or ""), prompt=runs, output_first=count_or_none(first, origin, line, "output_first", 1 << 90),
            think_ps=count_or_none(row.get("think_ps"), origin, line, "think_ps"),
            end_ps=count_or_none(row.get("end_ps"), origin, line, "end_ps"), after=_names(row.get("after"), origin, line),
            cached=count_or_none(row.get("cached"), origin, line, "cached"), priority=_whole(row.get("priority"), origin, line, "priority"),
            max_new=count_or_none(row.get("max_new"), origin, line, "max_new"),
        )  # fmt: skip


def _names(value: object, origin: str, line: int) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise TraceError(origin, line, "after must be a list of request ids")
    return tuple(value)


def _whole(value: object, origin: str, line: int, name: str) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or abs(value) > 1 << 53):
        raise TraceError(origin, line, f"{name} is {value!r:.60}; must be a whole number, or absent")
    return value


def _text(value: object) -> str | None:
    return None if value is None or value == "" else str(value)
