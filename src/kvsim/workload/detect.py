"""Which format a file is in: by its first object, its header, or the shape of its first line; and how sure that is."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvsim.errors import TraceError
from kvsim.workload.raw import epoch_unit

FORMATS = (
    "mooncake", "bailian", "azure", "burstgpt", "sharegpt", "aiperf", "sglang_metrics", "sglang_bench", "vllm_bench", "dynamo", "weka", "otel",
    "langfuse", "litellm", "access_log", "kvsim", "csv",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Detected:
    """A format's name, "certain" or "likely", and what gave it away."""

    format: str
    sure: str
    because: str


def detect(head: bytes, origin: str) -> Detected:
    """Return the format that the beginning of a file shows. Raises TraceError when it shows none."""
    if not head.strip():
        raise TraceError(origin, None, "empty file")
    if b"\0" in head:
        raise TraceError(origin, 1, "binary data, not a trace")
    text = head.removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="replace").lstrip()
    first = text.partition("\n")[0].lower()
    if "#running-req" in first or "#new-seq" in first or first.startswith("# help"):
        raise TraceError(origin, 1, "a server's log or metrics: batches and counters, no requests to replay (kvsim calibrate reads what it can tell)")
    if text.startswith("["):
        return Detected("sharegpt", "likely" if '"conversations"' not in text else "certain", "a list of conversations")
    if text.startswith("{"):
        return _json(text, origin)
    if "contexttokens" in first:
        return Detected("azure", "certain", "columns TIMESTAMP, ContextTokens, GeneratedTokens")
    if "request tokens" in first:
        return Detected("burstgpt", "certain", "columns Timestamp, Request tokens, Response tokens")
    if re.search(r'"(post|get) \S+ http/', first):
        return Detected("access_log", "certain", "an access log line")
    if "," in first:
        return Detected("csv", "likely", "a CSV header; give workload.columns")
    raise TraceError(origin, 1, f"the format is not recognised from {first[:60]!r}; give format: one of {', '.join(FORMATS)}")


#: What times are in, by format; the others are looked at.
TIMES = {
    "bailian": "seconds", "azure": "dates", "burstgpt": "seconds", "aiperf": "epoch nanoseconds", "sglang_metrics": "epoch seconds", "dynamo": "epoch milliseconds",
    "weka": "seconds from the conversation's start", "otel": "epoch nanoseconds", "langfuse": "dates", "litellm": "epoch seconds", "access_log": "epoch seconds (ts), or dates",
    "kvsim": "picoseconds", "sharegpt": "none in the file", "sglang_bench": "none in the file",
}  # fmt: skip
EPOCHS = {10**12: "epoch seconds", 10**9: "epoch milliseconds", 10**6: "epoch microseconds", 10**3: "epoch nanoseconds"}


def times_of(format: str, head: bytes, given: str | None, columns: Mapping[str, str] | None) -> str:
    """Return the unit of a file's times in words: given, the format's, or what its first record shows."""
    if given:
        return f"{given} (given)"
    if format in TIMES:
        return TIMES[format]
    text = head.removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="replace").lstrip()
    if format == "vllm_bench":
        return "seconds" if '"start_times"' in text else "none in the file, or further on than looked at"
    stamp: Any = None
    if format == "mooncake":
        stamp = (_first_object(text) or {}).get("timestamp")
    elif format == "csv":
        rows = list(csv.reader(text.split("\n")[:2]))
        names = [name.strip().lower() for name in rows[0]] if len(rows) == 2 else []
        wanted = (columns or {}).get("time", "").strip().lower()
        stamp = rows[1][names.index(wanted)] if wanted in names and len(rows[1]) == len(names) else None
    try:
        unit = epoch_unit(float(stamp)) if isinstance(stamp, (int, float, str)) else None
    except (ValueError, OverflowError):
        return "dates"
    return EPOCHS[unit] if unit is not None else "milliseconds" if format == "mooncake" else "seconds"


def _json(text: str, origin: str) -> Detected:
    row = _first_object(text)
    if row is None:
        for name, mark in (
            ("otel", '"resourceSpans"'),
            ("vllm_bench", '"start_times"'),
            ("weka", '"hash_id_scope"'),
            ("sglang_bench", '"input_lens"'),
            ("mooncake", '"hash_ids"'),
        ):
            if mark in text:
                return Detected(name, "likely", f"{mark} in the beginning")
        raise TraceError(origin, 1, "not JSON, and no known format")
    keys = set(row)
    for name, needed, words in _RULES:
        if all(key in keys for key in needed):
            return Detected(name, "certain", words)
    if "input_lens" in keys:
        vllm = row.get("backend") == "vllm" or "start_times" in keys or "model_id" in keys
        return Detected("vllm_bench" if vllm else "sglang_bench", "certain", "input_lens of a benchmark result")
    if "usage_details" in keys or "usageDetails" in keys or row.get("type") == "GENERATION":
        return Detected("langfuse", "certain", "usage_details of an observation")
    if {"prompt_tokens", "e2e_latency"} <= keys or "request_parameters" in keys:
        return Detected("sglang_metrics", "certain", "prompt_tokens with e2e_latency")
    if isinstance(row.get("request_throughput"), dict) or isinstance(row.get("time_to_first_token"), dict):
        raise TraceError(origin, 1, "a benchmark's summary: averages and percentiles only, no requests to replay (AIPerf's profile_export.jsonl has them)")
    raise TraceError(
        origin, 1, f"the format is not recognised from the keys {', '.join(sorted(keys))[:120]}; give format: one of {', '.join(FORMATS)}"
    )


_RULES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("kvsim", ("kvsim",), "kvsim's own header"),
    ("kvsim", ("at_ps", "prompt"), "at_ps and prompt runs"),
    ("bailian", ("chat_id", "hash_ids"), "chat_id with hash_ids"),
    ("mooncake", ("timestamp", "input_length", "output_length"), "timestamp, input_length, output_length"),
    ("mooncake", ("session_id", "input_length", "output_length"), "session_id, input_length, output_length"),
    ("aiperf", ("metadata", "metrics"), "metadata and metrics"),
    ("dynamo", ("schema", "event_type"), "schema and event_type"),
    ("weka", ("requests", "block_size"), "conversations with block_size"),
    ("otel", ("resourceSpans",), "resourceSpans"),
    ("litellm", ("startTime", "prompt_tokens"), "startTime with prompt_tokens"),
)


def _first_object(text: str) -> dict[str, Any] | None:
    try:
        row, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
