"""Reads what a server printed at its start: weights, free memory, pool sizes. Lines of SGLang 0.5.9 / 0.5.23 and vLLM."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from kvsim.errors import ConfigError

MAX_LINE = 10_000
MAX_LINES = 2_000_000

PATTERNS = {
    "max_total_num_tokens": re.compile(r"max_total_num_tokens=(\d{1,12})\b"),
    "kv_tokens": re.compile(r"KV Cache is allocated\..{0,80}?#tokens: (\d{1,12})"),
    "load_end": re.compile(r"Load weight end\..{0,400}?avail mem=([\d.]{1,12}) GB, mem usage=([\d.]{1,12}) GB"),
    "load_begin": re.compile(r"Load weight begin\..{0,80}?avail mem=([\d.]{1,12}) GB"),
    "host": re.compile(r"Allocating ([\d.]{1,12}) GB host memory for hierarchical KV cache"),
    "chunk": re.compile(r"chunked_prefill_size=(-?\d{1,9})\b"),
    "running": re.compile(r"max_running_requests=(\d{1,9})\b"),
    "context": re.compile(r"context_len=(\d{1,12})\b"),
}
#: vLLM's lines (0.19 to 0.24): key of the engine block -> pattern.
VLLM_PATTERNS = {
    "gpu_kv_cache_tokens": re.compile(r"GPU KV cache size: ([\d,]{1,15}) tokens"),
    "available_kv_cache_memory": re.compile(r"Available KV cache memory: ([\d.]{1,12}) GiB"),
    "max_model_len": re.compile(r"Maximum concurrency for ([\d,]{1,12}) tokens per request"),
    "max_num_batched_tokens": re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d{1,9})\b"),
    "block_size": re.compile(r"Setting (?:attention|kv cache) block size to (\d{1,6})\b"),
    "weights_resident": re.compile(r"Model loading took ([\d.]{1,12}) GiB"),
}


@dataclass(slots=True)
class ServerLog:
    """What was found; GiB are the engine's "GB" of GPU memory, ``host_gb`` is 1e9 bytes per rank.

    ``vllm``: keys of the engine block and values, if a vLLM server wrote the log.
    """

    file: str
    tokens: int | None = None
    weights_gib: float | None = None
    free_before_gib: float | None = None
    host_gb: float | None = None
    chunk: int | None = None
    running: int | None = None
    context: int | None = None
    vllm: dict[str, str] = field(default_factory=dict)

    def overrides(self) -> list[str]:
        """Return the settings that make the printed values win."""
        if self.vllm:
            return [*(f"engine.{key}={value}" for key, value in self.vllm.items()), "engine.memory_source=printed by the engine"]
        out = []
        if self.tokens is not None:
            out.append(f"engine.max_total_num_tokens={self.tokens}")
        if self.weights_gib is not None:
            out.append(f"engine.weights_resident={self.weights_gib}GiB")
        if self.free_before_gib is not None:
            out.append(f"engine.free_before_weights={self.free_before_gib}GiB")
        if self.chunk is not None:
            out.append(f"engine.chunked_prefill_size={self.chunk}")
        if self.running is not None:
            out.append(f"engine.max_running_requests={self.running}")
        if self.context is not None:
            out.append(f"engine.context_length={self.context}")
        return [*out, "engine.memory_source=printed by the engine"]


def read_server_log(path: str) -> ServerLog:
    """Return what a server log says about memory. Raises ConfigError when it says nothing."""
    found = ServerLog(path)
    seen = False
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            for number in range(MAX_LINES):
                line = file.readline(MAX_LINE)
                if not line:
                    break
                seen = _note(found, line) or seen
                del number
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if not seen:
        raise ConfigError(
            f"{path}: no line of a server's start was found (expected for example 'max_total_num_tokens=...', 'KV Cache is allocated' or 'GPU KV cache size')"
        )
    return found


def _note(found: ServerLog, line: str) -> bool:
    for key, pattern in VLLM_PATTERNS.items():
        if printed := pattern.search(line):
            found.vllm[key] = printed.group(1).replace(",", "") + ("GiB" if "GiB" in printed.group(0) else "")
    hits = {name: match for name, pattern in PATTERNS.items() if (match := pattern.search(line))}
    if not hits:
        return bool(found.vllm)
    for name, match in hits.items():
        text = match.group(1).replace(",", "")
        if name in ("max_total_num_tokens", "kv_tokens"):
            found.tokens = int(text)
        elif name == "load_end":
            found.weights_gib = _number(match.group(2))
            found.free_before_gib = round((_number(text) or 0) + (found.weights_gib or 0), 2)
        elif name == "load_begin":
            found.free_before_gib = _number(text)
        elif name == "host":
            found.host_gb = _number(text)
        else:
            setattr(found, name, int(text))
    return True


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
