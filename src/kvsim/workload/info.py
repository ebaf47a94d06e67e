"""What a trace is, in one pass: sizes, rate over time, the reuse an unlimited cache would see, sessions, what is missing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kvsim.content import common
from kvsim.workload.mooncake import OUTPUT_BASE
from kvsim.workload.prefixes import PrefixTree
from kvsim.workload.read import TraceReader
from kvsim.workload.recent import SESSIONS, Recent, Timeline
from kvsim.workload.spec import RequestSpec

PS = 1e-12
SLICES = 10


@dataclass(slots=True)
class TraceInfo:
    """The figures of one trace. Tokens; times in seconds. ``ceiling``: share of prompt tokens an unlimited cache serves (page 1).

    ``unit``: what the file's times are in. ``recorded_hit_rate``: cached over prompt tokens of the requests that record them.
    """

    path: str
    format: str
    sure: str
    because: str
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    span_s: float = 0.0
    longest_prompt: int = 0
    sessions: int = 0
    reused_tokens: int = 0
    ceiling: float | None = None
    content: str = ""
    unit: str = ""
    recorded_hit_rate: float | None = None
    out_of_order: int = 0
    skipped: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    rates_per_s: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def data(self) -> dict[str, Any]:
        """Return everything as plain data."""
        out = {name: getattr(self, name) for name in self.__dataclass_fields__}
        out["skipped"] = {reason: {"count": count, "first_lines": lines} for reason, (count, lines) in self.skipped.items()}
        return out


class Reuse:
    """Prefix tokens seen in earlier prompts, as an unlimited cache would serve them (the last token never hits).

    Content that a reader made up because its file has none can be met again in its own session only, and is remembered there; everything else
    is in a tree. So memory grows with the distinct content that a file states, not with its rows.
    """

    def __init__(self, *, stated: bool) -> None:
        self._stated = stated
        self._tree = PrefixTree()
        self._last: Recent[str, RequestSpec] = Recent()

    def add(self, spec: RequestSpec) -> int:
        """Return the tokens of a prompt that were seen before, and remember it."""
        if not self._stated and len(spec.prompt) == 1 and spec.prompt[0][0] >= OUTPUT_BASE:
            if spec.session is None:
                return 0
            before = self._last.get(spec.session)
            self._last.set(spec.session, spec)
            return 0 if before is None else min(common(before.prompt, spec.prompt), spec.prompt_tokens - 1)
        seen = min(self._tree.match(spec.prompt, spec.namespace), spec.prompt_tokens - 1)
        self._tree.insert(spec.prompt, spec.namespace)
        return seen


def inspect(reader: TraceReader, specs: Iterable[RequestSpec] | None = None) -> TraceInfo:
    """Return the figures of a trace, reading it once; memory grows with distinct content, not with rows.

    ``specs``: what ``reader`` gave, if it has been read already.
    """
    detected = reader.detected
    assert detected is not None
    info = TraceInfo(reader.path, reader.format, detected.sure, detected.because)
    reuse, times = Reuse(stated=reader.format == "kvsim"), Timeline()
    sessions: set[str] = set()
    cached = prompts = 0
    for spec in reader if specs is None else specs:
        info.requests += 1
        info.prompt_tokens += spec.prompt_tokens
        info.output_tokens += spec.output_tokens
        info.longest_prompt = max(info.longest_prompt, spec.prompt_tokens)
        times.add(spec.arrival_ps)
        if spec.recorded_cached_tokens is not None:
            cached, prompts = cached + spec.recorded_cached_tokens, prompts + spec.prompt_tokens
        if spec.session is not None and len(sessions) < SESSIONS:
            sessions.add(spec.session)
        info.reused_tokens += reuse.add(spec)
    report = reader.report
    info.sessions, info.content, info.skipped, info.out_of_order = len(sessions), report.content, report.skipped, report.out_of_order
    info.unit, info.recorded_hit_rate = report.unit, cached / prompts if prompts else None
    known = not report.content.startswith("not at all")
    info.ceiling = info.reused_tokens / info.prompt_tokens if known and info.prompt_tokens else None
    info.span_s = times.last_ps // 1_000_000 * 1e-6
    info.rates_per_s = times.rates(SLICES)
    info.notes = [*report.notes, *_notes(info)]
    return info


def _notes(info: TraceInfo) -> list[str]:
    notes = []
    if info.sessions >= SESSIONS:
        notes.append(f"more than {SESSIONS:,} sessions: they were not counted further")
    if info.out_of_order:
        notes.append(f"{info.out_of_order} records out of order: sorted by time")
    if info.ceiling is None:
        notes.append("no prefixes in the file: any hit rate is an assumption")
    rates = [rate for rate in info.rates_per_s if rate > 0]
    if rates and max(rates) > 10 * min(rates):
        notes.append(f"the rate varies from {min(rates):.3g} to {max(rates):.3g} requests/s over the span: a slice is not the whole")
    if info.requests >= 3 and info.span_s and info.requests / info.span_s >= 999:
        notes.append(f"{info.requests / info.span_s:,.0f} requests/s: check the time unit (workload.time_unit)")
    elif info.requests >= 3 and info.span_s > 999 * (info.requests - 1):
        notes.append(f"a request every {info.span_s / (info.requests - 1):,.0f} s: check the time unit (workload.time_unit)")
    if info.requests > 20 and info.span_s > 400 * 86400:
        notes.append(f"a span of {info.span_s / 86400:,.0f} days: check the time unit (workload.time_unit)")
    return notes
