"""Writes formats that are one document or one object per conversation: WEKA / AgentX, ShareGPT, OTLP gen_ai spans, benchmark results.

Those but the spans need the whole trace in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kvsim.workload.spec import RequestSpec
from kvsim.workload.write_logs import EPOCH_S

Blocks = Callable[[RequestSpec], list[int]]
PS = 10**12


def _seconds(ps: int) -> int | float:
    """Return seconds: whole where they are, else the nearest decimal (exact to the picosecond below 2^53 ps, 2.5 hours)."""
    return ps // PS if ps % PS == 0 else ps / PS


def weka(specs: Iterable[RequestSpec], blocks: Blocks, block: int) -> Iterator[str]:
    """Yield one conversation a line: requests of sessions that nobody called, subagents behind the request that called them.

    ``t`` counts from the conversation's ``start`` (a key of kvsim's own, in seconds). Ids are local if no conversation shares
    anything with another, as namespaces tell, else global.
    """
    rows = list(specs)
    sessions: dict[str, list[RequestSpec]] = {}
    for spec in rows:
        sessions.setdefault(spec.session if spec.session is not None else f"request-{spec.id}", []).append(spec)
    home = {spec.id: name for name, turns in sessions.items() for spec in turns}
    called: dict[str, list[str]] = {}
    roots = []
    for name, turns in sessions.items():
        caller = next((other for other in turns[0].after if home.get(other, name) != name), None)
        if caller is None:
            roots.append(name)
        else:
            called.setdefault(caller, []).append(name)
    seen: set[str] = set()
    for name in [*roots, *sessions]:
        if name in seen:
            continue
        start = sessions[name][0].arrival_ps
        local = all(spec.namespace == name for spec in sessions[name])
        row: dict[str, Any] = {"id": name, "block_size": block, "hash_id_scope": "local" if local else "global", "start": _seconds(start)}
        yield json.dumps({**row, "requests": _requests(name, sessions, called, start, blocks, seen)})


def _requests(
    name: str, sessions: dict[str, list[RequestSpec]], called: dict[str, list[str]], start: int, blocks: Blocks, seen: set[str]
) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    seen.add(name)
    for spec in sessions[name]:
        row: dict[str, Any] = {"t": _seconds(spec.arrival_ps - start), "type": "n", "in": spec.prompt_tokens, "out": spec.output_tokens, "hash_ids": blocks(spec)}
        if spec.recorded_end_ps is not None:
            row["api_time"] = _seconds(spec.recorded_end_ps - spec.arrival_ps)
        if spec.think_ps is not None:
            row["think_time"] = _seconds(spec.think_ps)
        out.append(row)
        for other in called.get(spec.id, ()):
            if other in seen:
                continue
            inner = _requests(other, sessions, called, start, blocks, seen)
            out.append({"type": "subagent", "agent_id": other.removeprefix(f"{name}/"), "requests": inner})
    return out


def otel(specs: Iterable[RequestSpec]) -> Iterator[str]:
    """Yield one OTLP JSON document of gen_ai spans (ns), a span a line."""
    yield '{"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"scope": {"name": "kvsim"}, "spans": ['
    last: RequestSpec | None = None
    for number, spec in enumerate(specs):
        if last is not None:
            yield _span(last, number) + ","
        last = spec
    if last is not None:
        yield _span(last, 0)
    yield "]}]}]}"


def _span(spec: RequestSpec, number: int) -> str:
    def attribute(name: str, **value: Any) -> dict[str, Any]:
        return {"key": f"gen_ai.{name}", "value": value}

    start = EPOCH_S * 10**9 + spec.arrival_ps // 1000
    end = start if spec.recorded_end_ps is None else EPOCH_S * 10**9 + spec.recorded_end_ps // 1000
    attributes = [
        attribute("operation.name", stringValue="chat"),
        attribute("usage.input_tokens", intValue=str(spec.prompt_tokens)),
        attribute("usage.output_tokens", intValue=str(spec.output_tokens)),
    ]
    if spec.session is not None:
        attributes.append(attribute("conversation.id", stringValue=spec.session))
    if spec.recorded_cached_tokens is not None:
        attributes.append(attribute("usage.cache_read.input_tokens", intValue=str(spec.recorded_cached_tokens)))
    row: dict[str, Any] = {"traceId": f"{number:032x}", "spanId": spec.id, "name": "chat", "startTimeUnixNano": str(start)}
    if spec.recorded_end_ps is not None:
        row["endTimeUnixNano"] = str(end)
    return json.dumps({**row, "attributes": attributes})


def sglang_bench(specs: Iterable[RequestSpec]) -> Iterator[str]:
    """Yield one result of SGLang's bench_serving with details: lengths, and the mean rate at which they were sent."""
    rows = list(specs)
    span = (rows[-1].arrival_ps - rows[0].arrival_ps) / PS if rows else 0.0
    yield json.dumps({"backend": "sglang", "request_rate": (len(rows) - 1) / span if span else "inf", **_lengths(rows)})


def vllm_bench(specs: Iterable[RequestSpec]) -> Iterator[str]:
    """Yield one detailed result of vLLM's bench serve: lengths and start times (s)."""
    rows = list(specs)
    starts = [_seconds(spec.arrival_ps) for spec in rows]
    yield json.dumps({"backend": "vllm", "num_prompts": len(rows), "request_rate": "inf", **_lengths(rows), "start_times": starts})


def _lengths(rows: list[RequestSpec]) -> dict[str, Any]:
    return {
        "completed": len(rows), "total_input_tokens": sum(spec.prompt_tokens for spec in rows), "total_output_tokens": sum(spec.output_tokens for spec in rows),
        "input_lens": [spec.prompt_tokens for spec in rows], "output_lens": [spec.output_tokens for spec in rows], "errors": [""] * len(rows),
    }  # fmt: skip


def sharegpt(specs: Iterable[RequestSpec]) -> Iterator[str]:
    """Yield one ShareGPT document: a word per token, a conversation per session; read it with ``tokens_per_word`` 1.

    A question is what a prompt has beyond the turn before it; a prompt that does not contain that turn cannot be said in this format, and
    begins a conversation of its own.
    """
    conversations: dict[str, list[dict[str, str]]] = {}
    contexts: dict[str, tuple[str, int]] = {}
    for spec in specs:
        session = spec.session if spec.session is not None else f"request-{spec.id}"
        name, context = contexts.get(session, (session, 0))
        if context >= spec.prompt_tokens:
            name, context = f"{session}#{spec.turn}", 0
        turns = conversations.setdefault(name, [])
        turns.append({"from": "human", "value": " ".join(["q"] * (spec.prompt_tokens - context))})
        turns.append({"from": "gpt", "value": " ".join(["a"] * spec.output_tokens)})
        contexts[session] = (name, spec.prompt_tokens + spec.output_tokens)
    yield json.dumps([{"id": name, "conversations": turns} for name, turns in conversations.items()])


LOST = {
    "weka": "tenants, priorities, ids, sessions' own names for subagents outside their caller's; content is kept in blocks",
    "sharegpt": "times, recorded ends, think times, ids, namespaces, tenants, who waits for whom; content is a word per token "
    "(read with tokens_per_word 1), shared only inside a conversation",
    "otel": "content (prefixes are assumed from sessions when read again), turn numbers, think times, tenants, namespaces; times are whole nanoseconds",
    "sglang_bench": "content, sessions, ids, times: only lengths and the mean rate remain",
    "vllm_bench": "content, sessions, ids, recorded ends: only times and lengths remain",
}
