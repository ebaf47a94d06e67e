"""What an operator has, as observations of step time: logs, benchmark results, a CSV of steps, Prometheus samples.

Every reader keeps only what one number of the time model can be held against, and counts what it leaves out, with why.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvsim.errors import TraceError

DECODE, PREFILL, TPOT = "decode", "prefill", "tpot"


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured time. ``kind`` decode: one step of ``batch`` sequences reading ``sum_context`` tokens. prefill: one
    request's
    ``new_tokens`` after ``cached_tokens``, in chunks. tpot: mean time per output token of a closed loop of ``batch``
    users with
    ``new_tokens`` of prompt and ``output_tokens`` of answer. ``group``: what leave-one-group-out leaves out together.
    """

    kind: str
    seconds: float
    group: str
    source: str
    new_tokens: int = 0
    cached_tokens: int = 0
    batch: int = 0
    sum_context: int = 0
    output_tokens: int = 0


@dataclass(slots=True)
class Observations:
    """All observations of a calibration, and how many lines or values each reason kept out."""

    rows: list[Observation] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def read_observations(paths: Sequence[Path], *, chunk: int | None = 8192) -> Observations:
    """Return the observations of files, each in the format its content shows. Raises TraceError with file and line."""
    found = Observations()
    for path in paths:
        text = _text_of(path)
        reader = _reader_of(text)
        if reader is None:
            raise TraceError(
                str(path),
                None,
                "is none of: a CSV of steps, a SGLang server log, a bench_serving or vLLM benchmark result, "
                "Prometheus samples, a probe's result",
            )
        before = len(found.rows)
        reader(text, str(path), found, chunk)
        if len(found.rows) == before:
            reasons = "; ".join(f"{count} x {reason}" for reason, count in found.skipped.items())
            raise TraceError(str(path), None, f"holds nothing to calibrate on ({reasons or 'no measurement'})")
    return found


def _text_of(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(str(path), None, f"cannot be read: {error}") from error
    if "\x00" in text:
        raise TraceError(str(path), None, "is a binary file")
    return text


def _reader_of(text: str) -> Any:
    head = text.lstrip()[:4000]
    if head.startswith("{"):
        return _read_json
    first = head.split("\n", 1)[0]
    if "kind" in first and "latency_ms" in first:
        return _read_steps
    if "Decode batch" in text or "Prefill batch" in text:
        return _read_log
    if re.search(r"^(sglang|vllm):\w+", text, re.MULTILINE):
        return _read_prometheus
    return None


# ---------------------------------------------------------------------- a CSV of steps
def _read_steps(text: str, source: str, found: Observations, chunk: int | None) -> None:
    from kvsim.cost.table import steps_of

    lines = text.splitlines()
    steps_of(csv.reader(lines), source)  # the same checks and messages as the table source
    for number, row in enumerate(csv.DictReader(lines), start=2):
        seconds = float(row["latency_ms"]) / 1e3
        where = f"{source}:{number}"
        if row["kind"].strip() == DECODE:
            batch, context = int(float(row["batch"])), int(float(row["sum_context"]))
            found.rows.append(
                Observation(
                    DECODE,
                    seconds,
                    row.get("group") or f"decode, batch {batch}",
                    where,
                    batch=batch,
                    sum_context=context,
                )
            )
        else:
            new, cached = int(float(row["new_tokens"])), int(float(row["cached_tokens"]))
            found.rows.append(
                Observation(
                    PREFILL,
                    seconds,
                    row.get("group") or f"prefill, {new} new",
                    where,
                    new_tokens=new,
                    cached_tokens=cached,
                )
            )


# ---------------------------------------------------------------------- a SGLang server log
_FIELD = re.compile(r"#?([a-zA-Z][a-zA-Z -]*?)(?: \(token/s\))?: ([\d.]+|True|False)")


@dataclass(slots=True)
class _Line:
    kind: str
    number: int
    values: dict[str, float]


def _log_lines(text: str) -> Iterator[_Line]:
    for number, line in enumerate(text.splitlines(), start=1):
        for kind, mark in ((DECODE, "Decode batch"), (PREFILL, "Prefill batch")):
            if mark in line:
                pairs = _FIELD.findall(line.split(mark, 1)[1])
                yield _Line(kind, number, {name: float(value) for name, value in pairs if value not in {"True", "False"}})


def _read_log(text: str, source: str, found: Observations, chunk: int | None) -> None:
    """SGLang 0.5.9 log lines. A throughput covers the time since the line before, so only pairs of like lines are
    used."""
    before: _Line | None = None
    context = 0
    for line in _log_lines(text):
        if line.kind == DECODE:
            _take_decode(line, before, source, found)
        else:
            context = _take_prefill(line, before, context, source, found, chunk)
        before = line


def _take_decode(line: _Line, before: _Line | None, source: str, found: Observations) -> None:
    running, rate, tokens = (line.values.get(name, 0.0) for name in ("running-req", "gen throughput", "token"))
    if "accept len" in line.values:
        found.skipped["decode line with speculation"] += 1
    elif before is None or before.kind != DECODE or before.values.get("running-req") != running:
        found.skipped["decode line whose interval holds a prefill or another batch size"] += 1
    elif running < 1 or rate <= 0 or tokens <= 0:
        found.skipped["decode line without running requests"] += 1
    else:
        context = (tokens + before.values.get("token", tokens)) / 2
        found.rows.append(
            Observation(
                DECODE,
                running / rate,
                f"decode, batch {running:.0f}",
                f"{source}:{line.number}",
                batch=int(running),
                sum_context=int(context),
            )
        )


def _take_prefill(line: _Line, before: _Line | None, context: int, source: str, found: Observations, chunk: int | None) -> int:
    """Use a throughput for the prefill *before* this line; return the context the present one starts at."""
    rate = line.values.get("input throughput", 0.0)
    if before is not None and before.kind == PREFILL and not before.values.get("running-req") and not line.values.get("running-req"):
        new = int(before.values.get("new-token", 0))
        if rate <= 0 or new <= 0 or before.values.get("new-seq", 1) > 1:
            found.skipped["prefill line without throughput, or of several requests"] += 1
        else:
            seconds, where = new / rate, f"{source}:{line.number}"
            found.rows.append(Observation(PREFILL, seconds, f"prefill at {_decade(context)}", where, new_tokens=new, cached_tokens=context))
    else:
        found.skipped["prefill line with decoding in its interval"] += 1
    cached = int(line.values.get("cached-token", 0))
    continues = before is not None and before.kind == PREFILL and chunk and int(before.values.get("new-token", 0)) == chunk and not cached
    return context + chunk if continues and chunk else cached


def _decade(tokens: int) -> str:
    return "no context" if tokens == 0 else f"{10 ** (len(str(tokens)) - 1):,}+ tokens of context"


# ---------------------------------------------------------------------- benchmark results and probes
def _read_json(text: str, source: str, found: Observations, chunk: int | None) -> None:
    for number, run in _objects(text, source):
        if "kvsim_probe" in run:
            _take_probe(run, source, found)
        elif "mean_tpot_ms" in run or "mean_ttft_ms" in run:
            _take_benchmark(run, f"{source}:{number}", found)
        else:
            found.skipped["JSON object without mean_ttft_ms or mean_tpot_ms"] += 1


def _objects(text: str, source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        while at < len(text) and text[at] in " \r\n\t":
            at += 1
        if at >= len(text):
            return
        line = text.count("\n", 0, at) + 1
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise TraceError(source, text.count("\n", 0, error.pos) + 1, f"is not valid JSON: {error.msg}") from error
        if isinstance(value, dict):
            yield line, value


def _positive(run: dict[str, Any], name: str) -> float:
    value = run.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else 0.0


def _take_benchmark(run: dict[str, Any], where: str, found: Observations) -> None:
    """One run of bench_serving (SGLang 0.5.9) or vllm bench serve: means over requests of a closed loop."""
    completed, users = _positive(run, "completed"), _positive(run, "max_concurrency")
    prompt = _positive(run, "total_input_tokens") / completed if completed else 0.0
    output = _positive(run, "total_output_tokens") / completed if completed else 0.0
    if not users or not prompt or not output:
        found.skipped["benchmark run without max_concurrency or token totals (an open loop: queueing would be fitted)"] += 1
        return
    if _positive(run, "accept_length") > 1.0:
        found.skipped["benchmark run with speculation"] += 1
        return
    if users == 1 and (ttft := _positive(run, "mean_ttft_ms")):
        found.rows.append(Observation(PREFILL, ttft / 1e3, "ttft of one user", where, new_tokens=round(prompt)))
    if tpot := _positive(run, "mean_tpot_ms"):
        if completed < 2 * users:
            found.skipped["benchmark run with fewer than two requests per user"] += 1
            return
        found.rows.append(
            Observation(
                TPOT,
                tpot / 1e3,
                f"{users:.0f} users",
                where,
                new_tokens=round(prompt),
                batch=int(users),
                sum_context=round(users * (prompt + output / 2)),
                output_tokens=round(output),
            )
        )


def _take_probe(run: dict[str, Any], source: str, found: Observations) -> None:
    for index, row in enumerate(run.get("measurements") or []):
        where, kind = f"{source}, measurement {index + 1}", row.get("kind")
        seconds = row.get("seconds")
        if not isinstance(seconds, (int, float)) or not seconds > 0:
            found.skipped[f"probe measurement that failed: {row.get('error', 'no time')}"] += 1
        elif kind == PREFILL:
            new, cached = int(row["new_tokens"]), int(row["cached_tokens"])
            found.rows.append(
                Observation(PREFILL, float(seconds), f"probe: prefill, {new} new", where, new_tokens=new, cached_tokens=cached)
            )
        elif kind == DECODE:
            batch, context = int(row["batch"]), int(row["sum_context"])
            found.rows.append(Observation(DECODE, float(seconds), f"probe: decode, batch {batch}", where, batch=batch, sum_context=context))


# ---------------------------------------------------------------------- Prometheus samples
_SAMPLE = re.compile(r"^((?:sglang|vllm):\w+)(?:\{[^}]*\})?\s+([-+\d.eE]+|NaN)")


def _read_prometheus(text: str, source: str, found: Observations, chunk: int | None) -> None:
    """Scrapes one after the other in one file: a scrape ends where a metric repeats. SGLang: gauges; vLLM: counter
    differences."""
    scrapes: list[dict[str, float]] = [{}]
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match:
            if match[1] in scrapes[-1]:
                scrapes.append({})
            scrapes[-1][match[1]] = float(match[2])
    for number, scrape in enumerate(scrapes, start=1):
        where = f"{source}, scrape {number}"
        if "sglang:gen_throughput" in scrape:
            _take_gauges(scrape, where, found)
        elif number > 1:
            _take_differences(scrapes[number - 2], scrape, where, found)


def _take_gauges(scrape: dict[str, float], where: str, found: Observations) -> None:
    running, tokens = scrape.get("sglang:num_running_reqs", 0.0), scrape.get("sglang:num_used_tokens", 0.0)
    rate = scrape["sglang:gen_throughput"]
    if running < 1 or tokens <= 0 or rate <= 0:
        found.skipped["scrape without running requests"] += 1
    elif scrape.get("sglang:num_queue_reqs", 0.0) > 0:
        found.skipped["scrape with a queue: prefills share the interval"] += 1
    else:
        found.rows.append(
            Observation(
                DECODE,
                running / rate,
                f"decode, batch {running:.0f}",
                where,
                batch=int(running),
                sum_context=int(tokens),
            )
        )


def _take_differences(old: dict[str, float], new: dict[str, float], where: str, found: Observations) -> None:
    name = "vllm:inter_token_latency_seconds"
    count = new.get(f"{name}_count", 0.0) - old.get(f"{name}_count", 0.0)
    total = new.get(f"{name}_sum", 0.0) - old.get(f"{name}_sum", 0.0)
    running, prompts = new.get("vllm:num_requests_running", 0.0), _difference(old, new, "vllm:prompt_tokens_total")
    outputs, requests = (
        _difference(old, new, "vllm:generation_tokens_total"),
        _difference(old, new, "vllm:request_success_total"),
    )
    if count <= 0 or running < 1 or requests < 1:
        found.skipped["scrape pair without finished requests"] += 1
        return
    prompt, output = prompts / requests, outputs / requests
    found.rows.append(
        Observation(
            TPOT,
            total / count,
            f"{running:.0f} running",
            where,
            new_tokens=round(prompt),
            batch=int(running),
            sum_context=round(running * (prompt + output / 2)),
            output_tokens=max(1, round(output)),
        )
    )


def _difference(old: dict[str, float], new: dict[str, float], name: str) -> float:
    return new.get(name, 0.0) - old.get(name, 0.0)


def groups_of(rows: Iterable[Observation]) -> list[str]:
    """Return the groups in the order of their first observation."""
    return list(dict.fromkeys(row.group for row in rows))
