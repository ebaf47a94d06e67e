"""Writes the logs that production systems write, from requests: for tests of a pipeline, and for tools that read only those."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kvsim.workload.recent import Recent
from kvsim.workload.spec import RequestSpec

#: Where a log's clock begins when the format wants an epoch: 2023-11-14 22:13:20 UTC.
EPOCH_S = 1_700_000_000
Blocks = Callable[[RequestSpec], list[int]]


def _decimal(ps: int, digits: int = 6) -> str:
    whole, rest = divmod(ps, 10**12)
    return f"{whole}.{rest // 10 ** (12 - digits):0{digits}d}"


def _date(ps: int, digits: int) -> str:
    whole, rest = divmod(ps, 10**12)
    stamp = datetime.datetime.fromtimestamp(EPOCH_S + whole, datetime.UTC)
    return f"{stamp:%Y-%m-%d %H:%M:%S}.{rest // 10 ** (12 - digits):0{digits}d}"


def azure(specs: Iterable[RequestSpec]) -> Iterator[str]:
    """Yield Azure 2023 CSV lines (100 ns)."""
    yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    for spec in specs:
        yield f"{_date(spec.arrival_ps, 7)},{spec.prompt_tokens},{spec.output_tokens}"


def burstgpt(specs: Iterable[RequestSpec]) -> Iterator[str]:
    """Yield BurstGPT CSV lines (us)."""
    yield "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    for spec in specs:
        session = (spec.session or "").replace(",", "_")
        total = spec.prompt_tokens + spec.output_tokens
        yield f"{_decimal(spec.arrival_ps)},{session},,unknown,{spec.prompt_tokens},{spec.output_tokens},{total},API log"


def bailian(specs: Iterable[RequestSpec], blocks: Blocks) -> Iterator[str]:
    """Yield Qwen-Bailian lines (us): a turn's parent is the turn before it."""
    last: Recent[str, int] = Recent()
    for number, spec in enumerate(specs):
        before = None if spec.session is None else last.get(spec.session)
        parent = -1 if before is None else before
        if spec.session is not None:
            last.set(spec.session, number)
        yield (
            f'{{"chat_id": {number}, "parent_chat_id": {parent}, "timestamp": {_decimal(spec.arrival_ps)}, "input_length": {spec.prompt_tokens}, '
            f'"output_length": {spec.output_tokens}, "type": "text", "turn": {spec.turn + 1}, "hash_ids": {json.dumps(blocks(spec))}}}'
        )


def _rows(row: Callable[[RequestSpec], dict[str, Any]]) -> Callable[[Iterable[RequestSpec]], Iterator[str]]:
    return lambda specs: (json.dumps(row(spec)) for spec in specs)


def _aiperf(spec: RequestSpec) -> dict[str, Any]:
    start = EPOCH_S * 10**9 + spec.arrival_ps // 1000
    lengths = {"input_sequence_length": spec.prompt_tokens, "output_sequence_length": spec.output_tokens}
    meta: dict[str, Any] = {"x_request_id": spec.id, "conversation_id": spec.session, "turn_index": spec.turn, "request_start_ns": start}
    if spec.recorded_end_ps is not None:
        meta["request_end_ns"] = EPOCH_S * 10**9 + spec.recorded_end_ps // 1000
    return {
        "metadata": {**meta, "benchmark_phase": "profiling", "was_cancelled": False},
        "metrics": {name: {"value": value, "unit": "tokens"} for name, value in lengths.items()},
        "error": None,
    }


def _sglang_metrics(spec: RequestSpec) -> dict[str, Any]:
    received = EPOCH_S + spec.arrival_ps // 10**6 / 10**6
    row: dict[str, Any] = {
        "request_parameters": json.dumps({"rid": spec.id, "session_id": spec.session}), "id": spec.id, "finish_reason": {"type": "length"},
        "prompt_tokens": spec.prompt_tokens, "completion_tokens": spec.output_tokens, "request_received_ts": received,
    }  # fmt: skip
    if spec.recorded_end_ps is not None:
        row["request_finished_ts"] = EPOCH_S + spec.recorded_end_ps // 10**6 / 10**6
    return row


def _litellm(spec: RequestSpec) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": spec.id, "session_id": spec.session, "call_type": "acompletion", "status": "success", "prompt_tokens": spec.prompt_tokens,
        "completion_tokens": spec.output_tokens, "startTime": EPOCH_S + spec.arrival_ps // 10**6 / 10**6,
    }  # fmt: skip
    if spec.recorded_end_ps is not None:
        row["endTime"] = EPOCH_S + spec.recorded_end_ps // 10**6 / 10**6
    return row


def _langfuse(spec: RequestSpec) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": spec.id, "type": "GENERATION", "level": "DEFAULT", "session_id": spec.session, "start_time": _date(spec.arrival_ps, 6).replace(" ", "T") + "Z",
        "usage_details": {"input": spec.prompt_tokens, "output": spec.output_tokens},
    }  # fmt: skip
    if spec.recorded_end_ps is not None:
        row["end_time"] = _date(spec.recorded_end_ps, 6).replace(" ", "T") + "Z"
    return row


def dynamo(specs: Iterable[RequestSpec], blocks: Blocks, block: int) -> Iterator[str]:
    """Yield dynamo.request.trace.v1 lines (ms); a session that another one called names it as its parent."""
    home: Recent[str, str] = Recent()
    parents: Recent[str, str] = Recent()
    for spec in specs:
        start = EPOCH_S * 1000 + spec.arrival_ps // 10**9
        request: dict[str, Any] = {
            "request_id": spec.id, "input_tokens": spec.prompt_tokens, "output_tokens": spec.output_tokens, "request_received_ms": start,
            "replay": {"trace_block_size": block, "input_length": spec.prompt_tokens, "input_sequence_hashes": blocks(spec)},
        }  # fmt: skip
        if spec.recorded_end_ps is not None:
            request["total_time_ms"] = (spec.recorded_end_ps - spec.arrival_ps) // 10**9
        row = {
            "schema": "dynamo.request.trace.v1",
            "event_type": "request_end",
            "agent_context": _context(spec, home, parents),
            "request": request,
        }
        yield json.dumps(row)


def _context(spec: RequestSpec, home: Recent[str, str], parents: Recent[str, str]) -> dict[str, Any]:
    session = spec.session
    if session is None:
        return {"session_id": None}
    home.set(spec.id, session)
    parent = parents.get(session)
    if parent is None and spec.turn == 0 and spec.after and (parent := home.get(spec.after[0])) is not None:
        parents.set(session, parent)
    return {"session_id": session} if parent is None else {"session_id": session, "parent_session_id": parent}


def access_log(specs: Iterable[RequestSpec]) -> Iterator[str]:
    """Yield OpenAI-style access log lines (us)."""
    for spec in specs:
        stamp = datetime.datetime.fromtimestamp(EPOCH_S + spec.arrival_ps // 10**12, datetime.UTC)
        session = "" if spec.session is None else f" session={'_'.join(spec.session.split())}"
        yield (
            f'0.0.0.0 - - [{stamp:%d/%b/%Y:%H:%M:%S %z}] "POST /v1/chat/completions HTTP/1.1" 200 0 request_id={"_".join(spec.id.split())}{session} '
            f"prompt_tokens={spec.prompt_tokens} completion_tokens={spec.output_tokens} ts={_decimal(EPOCH_S * 10**12 + spec.arrival_ps)}"
        )


aiperf, sglang_metrics, litellm, langfuse = _rows(_aiperf), _rows(_sglang_metrics), _rows(_litellm), _rows(_langfuse)

_NO_CONTENT = "content (prefixes are assumed from sessions when read again)"
LOST = {
    "azure": "content and sessions; times are whole 100 ns",
    "burstgpt": f"{_NO_CONTENT}, ids, recorded ends; times are whole microseconds",
    "bailian": "ids, tenants, recorded ends; content is kept in blocks; times are whole microseconds",
    "aiperf": f"{_NO_CONTENT}, tenants; times are whole nanoseconds",
    "sglang_metrics": f"{_NO_CONTENT}, turn numbers, tenants; times are whole microseconds",
    "litellm": f"{_NO_CONTENT}, turn numbers, tenants; times are whole microseconds",
    "langfuse": f"{_NO_CONTENT}, turn numbers, tenants; times are whole microseconds",
    "dynamo": "turn numbers, tenants, think times; of who waits for whom only which session called which; content is kept in blocks; times are whole milliseconds",
    "access_log": f"{_NO_CONTENT}, turn numbers, tenants, recorded ends; times are whole microseconds",
}
