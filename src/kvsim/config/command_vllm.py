"""``vllm serve`` launch commands: from a command to the engine block and back (engine/arg_utils.py)."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

from kvsim.errors import ConfigError, did_you_mean
from kvsim.rules.vllm import OFFLOADING, SIMPLE

#: Flag -> key of the engine block; its value follows.
VALUES: dict[str, str] = {
    "--tensor-parallel-size": "tensor_parallel_size",
    "-tp": "tensor_parallel_size",
    "--pipeline-parallel-size": "pipeline_parallel_size",
    "-pp": "pipeline_parallel_size",
    "--data-parallel-size": "data_parallel_size",
    "-dp": "data_parallel_size",
    "--gpu-memory-utilization": "gpu_memory_utilization",
    "--kv-cache-memory-bytes": "kv_cache_memory_bytes",
    "--num-gpu-blocks-override": "num_gpu_blocks_override",
    "--block-size": "block_size",
    "--max-model-len": "max_model_len",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--max-num-seqs": "max_num_seqs",
    "--max-num-partial-prefills": "max_num_partial_prefills",
    "--long-prefill-token-threshold": "long_prefill_token_threshold",
    "--scheduling-policy": "scheduling_policy",
    "--watermark": "watermark",
    "--performance-mode": "performance_mode",
    "--kv-cache-dtype": "kv_cache_dtype",
    "--attention-backend": "attention_backend",
    "--kv-offloading-size": "kv_offloading_size",
    "--kv-offloading-backend": "kv_offloading_backend",
}
#: Flag -> key; ``--no-...`` says false.
SWITCHES: dict[str, str] = {
    "--enable-chunked-prefill": "enable_chunked_prefill",
    "--enable-prefix-caching": "enable_prefix_caching",
    "--async-scheduling": "async_scheduling",
    "--scheduler-reserve-full-isl": "scheduler_reserve_full_isl",
    "--enable-expert-parallel": "enable_expert_parallel",
    "--enforce-eager": "enforce_eager",
}
#: Flags with a value that change nothing here.
IGNORED_VALUES = (
    "--model", "--host", "--port", "--served-model-name", "--tokenizer", "--tokenizer-mode", "--dtype",
    "--seed", "--api-key", "--chat-template", "--tool-call-parser", "--reasoning-parser", "--download-dir",
    "--load-format", "--revision", "--uvicorn-log-level", "--generation-config",
    "--distributed-executor-backend", "--quantization", "-q",
)  # fmt: skip
IGNORED_SWITCHES = (
    "--trust-remote-code", "--enable-auto-tool-choice", "--disable-log-requests", "--disable-log-stats",
    "--enable-log-requests", "--enable-prompt-tokens-details", "--enable-logging-iteration-details",
    "--disable-uvicorn-access-log",
)  # fmt: skip
#: Flags whose effect is not modelled: an error, never silence.
NOT_MODELLED = {
    "--speculative-config": "speculative decoding under vLLM's rules is not modelled",
    "--decode-context-parallel-size": "context parallelism is not modelled",
    "--prefill-context-parallel-size": "context parallelism is not modelled",
    "--enable-lora": "LoRA is not modelled",
    "--disable-hybrid-kv-cache-manager": "hybrid models are not modelled",
}
KEYS_TEXT = frozenset({"scheduling_policy", "performance_mode", "kv_cache_dtype", "attention_backend", "kv_offloading_backend"})


def is_vllm(words: Sequence[str]) -> bool:
    """Tell whether a launch command starts vLLM."""
    return any(word == "vllm" or word.endswith("/vllm") or word.startswith("vllm.entrypoints") for word in words[:12])


def engine_of_vllm(words: Sequence[str], rules: str = "vllm-0.24.0") -> dict[str, Any]:
    """Return the engine block that a ``vllm serve`` command (split into words) states.

    Raises ConfigError with all faults: unknown flags, missing or impossible values, effects that are not modelled.
    """
    engine: dict[str, Any] = {"rules": rules}
    faults: list[str] = []
    rest = [word for word in words if word != "\\"]
    simple = "VLLM_USE_SIMPLE_KV_OFFLOAD=1" in rest
    at = next((i + 1 for i, word in enumerate(rest) if word == "serve" or word.startswith("vllm.entrypoints")), len(rest))
    while at < len(rest):
        at = _flag(rest, at, engine, faults)
    engine.setdefault("tensor_parallel_size", 1)  # vLLM's default: one GPU
    if simple:
        engine.setdefault("offload", {})["connector"] = "simple"
    if faults:
        raise ConfigError([f"engine.command: {fault}" for fault in faults])
    return engine


def ignored_by_vllm(words: Sequence[str]) -> list[str]:
    """Return the flags of a command that change nothing here, in its order."""
    flags = ["--" + word.partition("=")[0][2:].replace("_", "-") for word in words if word.startswith("--")]
    return [flag for flag in flags if flag in IGNORED_VALUES or flag in IGNORED_SWITCHES]


def _flag(words: list[str], at: int, engine: dict[str, Any], faults: list[str]) -> int:
    flag, joined, value = words[at].partition("=")
    flag = "--" + flag[2:].replace("_", "-") if flag.startswith("--") else flag
    if not flag.startswith("-"):
        return at + 1  # the model
    if flag in NOT_MODELLED:
        faults.append(f"{flag}: {NOT_MODELLED[flag]}")
        return _next(words, at, bool(joined))
    if flag in SWITCHES or flag in IGNORED_SWITCHES or ("--no-" in flag and f"--{flag[5:]}" in SWITCHES):
        if flag in SWITCHES:
            engine[SWITCHES[flag]] = True
        elif flag not in IGNORED_SWITCHES:
            engine[SWITCHES[f"--{flag[5:]}"]] = False
        return at + 1
    if flag not in VALUES and flag not in IGNORED_VALUES and flag != "--kv-transfer-config":
        known = (*VALUES, *SWITCHES, *IGNORED_VALUES, *IGNORED_SWITCHES, "--kv-transfer-config")
        faults.append(f"unknown flag {flag}{did_you_mean(flag, known)}")
        return _next(words, at, bool(joined))
    if not joined:
        if at + 1 >= len(words) or (words[at + 1].startswith("--")):
            faults.append(f"{flag} needs a value")
            return at + 1
        value = words[at + 1]
    if flag == "--kv-transfer-config":
        _transfer_config(value, engine, faults)
    elif flag in VALUES:
        engine[VALUES[flag]] = _value(VALUES[flag], value)
    return at + (1 if joined else 2)


def _next(words: list[str], at: int, joined: bool) -> int:
    """Skip a flag and, if the next word looks like one, its value."""
    has_value = not joined and at + 1 < len(words) and not words[at + 1].startswith("-")
    return at + (2 if has_value else 1)


def _value(key: str, text: str) -> Any:
    """Read a value as vLLM does: 1k = 1000, 1K = 1024 (human_readable_int); the schema checks the rest."""
    if key in KEYS_TEXT:
        return text
    if key == "max_model_len" and text in ("auto", "-1"):
        return "auto"
    human = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG])", text)
    if human:
        factor = {"k": 1000, "K": 1024, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}[human[2]]
        return int(float(human[1]) * factor)
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _transfer_config(text: str, engine: dict[str, Any], faults: list[str]) -> None:
    """--kv-transfer-config: the native connectors' JSON."""
    try:
        config = json.loads(text)
        name, extra = config["kv_connector"], config.get("kv_connector_extra_config") or {}
    except (ValueError, TypeError, KeyError, AttributeError):
        faults.append(f"--kv-transfer-config: not JSON with a kv_connector: {text:.80}")
        return
    if name not in (OFFLOADING, SIMPLE):
        faults.append(f"--kv-transfer-config: connector {name} is not modelled; modelled: {OFFLOADING}, {SIMPLE}")
        return
    offload = engine.setdefault("offload", {})
    offload["connector"] = "simple" if name == SIMPLE else "offloading"
    keys = ("block_size", "eviction_policy", "store_threshold", "offload_prompt_only", "lazy_offload")
    offload.update({key: extra[key] for key in keys if key in extra})
    if "cpu_bytes_to_use" in extra:
        engine["kv_offloading_size"] = float(extra["cpu_bytes_to_use"]) / 2**30


def command_of_vllm(engine: dict[str, Any], model: str) -> str:
    """Return the launch command of an engine block (plain data); keys that are no flags are left out."""
    words = ["vllm", "serve", model]
    flags = {key: flag for flag, key in VALUES.items() if flag.startswith("--")}
    switches = {key: flag for flag, key in SWITCHES.items()}
    for key, value in engine.items():
        if value is None:
            continue
        if key in flags:
            words += [flags[key], str(value)]
        elif key in switches:
            words.append(switches[key] if value else "--no-" + switches[key][2:])
    offload = engine.get("offload") or {}
    return ("VLLM_USE_SIMPLE_KV_OFFLOAD=1 " if offload.get("connector") == "simple" else "") + shlex.join(words)
