"""Launch commands: from what an operator typed to an engine block and back. One table per engine family.

SGLang's flags: srt/server_args.py (0.5.9, 0.5.23). Nothing is dropped in silence: flags without effect on the simulation are listed, flags
whose effect is not modelled and unknown flags are errors.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvsim.config.command_vllm import command_of_vllm, engine_of_vllm, is_vllm
from kvsim.errors import ConfigError, did_you_mean

MAX_LENGTH = 100_000

#: Flag -> key path of the engine block; a value follows.
VALUES: dict[str, str] = {
    "--tensor-parallel-size": "tp",
    "--tp-size": "tp",
    "--tp": "tp",
    "--pipeline-parallel-size": "pp",
    "--pp-size": "pp",
    "--pp": "pp",
    "--data-parallel-size": "dp_size",
    "--dp-size": "dp_size",
    "--dp": "dp_size",
    "--expert-parallel-size": "ep_size",
    "--ep-size": "ep_size",
    "--ep": "ep_size",
    "--load-balance-method": "load_balance_method",
    "--mem-fraction-static": "mem_fraction_static",
    "--max-total-tokens": "max_total_tokens",
    "--page-size": "page_size",
    "--chunked-prefill-size": "chunked_prefill_size",
    "--max-prefill-tokens": "max_prefill_tokens",
    "--max-running-requests": "max_running_requests",
    "--max-queued-requests": "max_queued_requests",
    "--schedule-policy": "schedule_policy",
    "--schedule-conservativeness": "schedule_conservativeness",
    "--cuda-graph-max-bs": "cuda_graph_max_bs",
    "--cuda-graph-max-bs-decode": "cuda_graph_max_bs",
    "--kv-cache-dtype": "kv_cache_dtype",
    "--attention-backend": "attention_backend",
    "--context-length": "context_length",
    "--radix-eviction-policy": "radix_eviction_policy",
    "--priority-scheduling-preemption-threshold": "priority_scheduling_preemption_threshold",
    "--hicache-ratio": "hicache.ratio",
    "--hicache-size": "hicache.size",
    "--hicache-write-policy": "hicache.write_policy",
    "--hicache-io-backend": "hicache.io_backend",
    "--hicache-mem-layout": "hicache.mem_layout",
    "--hicache-storage-backend": "hicache.storage_backend",
    "--hicache-storage-prefetch-policy": "hicache.storage_prefetch_policy",
    "--speculative-algorithm": "speculative_algorithm",
    "--speculative-algo": "speculative_algorithm",
    "--speculative-num-steps": "speculative_num_steps",
    "--speculative-eagle-topk": "speculative_eagle_topk",
    "--speculative-num-draft-tokens": "speculative_num_draft_tokens",
}
SWITCHES: dict[str, str] = {
    "--enable-dp-attention": "enable_dp_attention",
    "--disable-cuda-graph": "disable_cuda_graph",
    "--disable-cuda-graph-padding": "disable_cuda_graph_padding",
    "--disable-radix-cache": "disable_radix_cache",
    "--disable-overlap-schedule": "disable_overlap_schedule",
    "--enable-mixed-chunk": "enable_mixed_chunk",
    "--enable-priority-scheduling": "enable_priority_scheduling",
    "--schedule-low-priority-values-first": "schedule_low_priority_values_first",
    "--allow-auto-truncate": "allow_auto_truncate",
    "--enable-hierarchical-cache": "hicache.enabled",
}
LISTS = {"--cuda-graph-bs": "cuda_graph_bs"}
#: Flags that change nothing here; with a value, or without.
IGNORED_VALUES = (
    "--model-path", "--model", "--tokenizer-path", "--host", "--port", "--served-model-name", "--api-key", "--log-level", "--log-level-http",
    "--dtype", "--quantization", "--load-format", "--revision", "--random-seed", "--watchdog-timeout", "--dist-init-addr", "--nnodes", "--node-rank",
    "--tool-call-parser", "--reasoning-parser", "--chat-template", "--download-dir", "--decode-log-interval", "--log-requests-level",
    "--log-requests-format", "--stream-interval", "--nccl-port", "--device", "--base-gpu-id", "--model-loader-extra-config", "--moe-runner-backend",
    "--moe-a2a-backend", "--sampling-backend", "--grammar-backend", "--mm-attention-backend", "--fp8-gemm-backend", "--sleep-on-idle",
    "--export-metrics-to-file-dir", "--crash-dump-folder", "--numa-node", "--json-model-override-args", "--file-storage-path",
    "--speculative-draft-model-path", "--speculative-draft-model", "--preferred-sampling-params", "--tokenizer-worker-num",
)  # fmt: skip
IGNORED_SWITCHES = (
    "--trust-remote-code", "--enable-metrics", "--enable-cache-report", "--log-requests", "--skip-server-warmup", "--skip-tokenizer-init",
    "--export-metrics-to-file", "--enable-request-time-stats-logging", "--show-time-cost", "--enable-p2p-check", "--disable-custom-all-reduce",
    "--enable-torch-compile", "--disable-shared-experts-fusion", "--enable-multimodal", "--enable-trace", "--enable-nccl-nvls",
    "--disable-hicache-numa-detect", "--enable-flashinfer-allreduce-fusion", "--enable-symm-mem", "--disable-piecewise-cuda-graph",
    "--enable-piecewise-cuda-graph", "--sleep-on-idle", "--disable-fast-image-processor", "--enable-metrics-for-all-schedulers",
)  # fmt: skip
NOT_MODELLED = {
    "--disaggregation-mode": "prefill-decode disaggregation is not modelled",
    "--enable-lora": "LoRA weights are not modelled (a LoRA id only separates prefixes)",
    "--enable-two-batch-overlap": "two-batch overlap is not modelled",
    "--enable-prefill-delayer": "the prefill delayer is not reachable from a scenario (the scheduler has it)",
    "--prefill-decode-interval": "the prefill-decode interval (0.5.23) is not modelled",
    "--swa-full-tokens-ratio": "hybrid sliding-window pools are not modelled",
}
_STARTS = ("sglang.launch_server", "sglang/launch_server.py")


@dataclass(slots=True)
class ParsedCommand:
    """A launch command read: the engine block, the model it names, flags without effect here, environment settings."""

    engine: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    without_effect: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


def engine_of_command(command: str) -> dict[str, Any]:
    """Return the engine block that a launch command states. Raises ConfigError with every fault."""
    from kvsim.config.server_args import is_server_args, parse_server_args

    if is_server_args(command):
        return parse_server_args(command).engine
    words = split_command(command)
    return engine_of_vllm(words) if is_vllm(words) else parse_sglang(words).engine


def split_command(command: str) -> list[str]:
    """Return the words of a command as a shell would, line continuations joined."""
    if len(command) > MAX_LENGTH:
        raise ConfigError(f"engine.command: longer than {MAX_LENGTH:,} characters")
    joined = re.sub(r"\\\s*\n", " ", command).replace("\n", " ")
    try:
        return [word for word in shlex.split(joined, comments=False) if word != "\\"]
    except ValueError as error:
        raise ConfigError(f"engine.command: quotes do not close: {error}") from None


def parse_sglang(words: Sequence[str]) -> ParsedCommand:
    """Return what an SGLang launch command says. Raises ConfigError with every fault."""
    start = next(
        (i + 1 for i, word in enumerate(words) if word.endswith(_STARTS) or (word == "serve" and i and words[i - 1].endswith("sglang"))),
        None,
    )
    if start is None:
        flag = next((i for i, word in enumerate(words) if word.startswith("--")), None)
        if flag is None:
            raise ConfigError(
                "engine.command: no launch command found; expected `python -m sglang.launch_server ...`, `sglang serve ...` or `vllm serve ...`"
            )
        start = flag
    reader = _Reader(list(words), start)
    reader.read()
    if reader.faults:
        raise ConfigError([f"engine.command: {fault}" for fault in reader.faults])
    return reader.finish()


class _Reader:
    def __init__(self, words: list[str], start: int) -> None:
        self.words, self.at = words, start
        self.out = ParsedCommand(
            environment=dict(word.split("=", 1) for word in words[:start] if re.fullmatch(r"[A-Z][A-Z0-9_]*=.*", word))
        )
        self.flat: dict[str, Any] = {}
        self.faults: list[str] = []

    def read(self) -> None:
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if word.startswith("--"):
                self._flag(word)
            elif self.out.model is None and not word.startswith("-"):
                self.out.model = word

    def _flag(self, word: str) -> None:
        flag, joined, value = word.partition("=")
        flag = "--" + flag[2:].replace("_", "-")
        if flag in NOT_MODELLED:
            self.faults.append(f"{flag}: {NOT_MODELLED[flag]}")
            self._optional()
        elif flag in SWITCHES:
            self.flat[SWITCHES[flag]] = True
        elif flag in LISTS:
            self.flat[LISTS[flag]] = self._list()
        elif flag in VALUES or flag in IGNORED_VALUES:
            given = value if joined else self._value(flag)
            if flag in VALUES:
                self._set(flag, given)
            else:
                self._ignored(flag, given)
        elif flag in IGNORED_SWITCHES:
            self.out.without_effect.append(flag)
        else:
            known = (*VALUES, *SWITCHES, *LISTS, *IGNORED_VALUES, *IGNORED_SWITCHES)
            self.faults.append(f"unknown flag {flag}{did_you_mean(flag, known)}")
            self._optional()

    def _value(self, flag: str) -> str | None:
        if self.at >= len(self.words) or self.words[self.at].startswith("--"):
            self.faults.append(f"{flag} needs a value")
            return None
        self.at += 1
        return self.words[self.at - 1]

    def _optional(self) -> None:
        if self.at < len(self.words) and not self.words[self.at].startswith("-"):
            self.at += 1

    def _list(self) -> list[str]:
        out = []
        while self.at < len(self.words) and not self.words[self.at].startswith("-"):
            out.append(self.words[self.at])
            self.at += 1
        return out

    def _set(self, flag: str, value: str | None) -> None:
        key = VALUES[flag]
        if value is None:
            return
        if key in self.flat and self.flat[key] != value:
            self.faults.append(f"{flag} {value}: given before as {self.flat[key]}")
        self.flat[key] = value

    def _ignored(self, flag: str, value: str | None) -> None:
        if flag in ("--model-path", "--model") and value is not None:
            self.out.model = value
        else:
            self.out.without_effect.append(flag)

    def finish(self) -> ParsedCommand:
        enabled = self.flat.pop("hicache.enabled", False)
        for key, value in self.flat.items():
            block, _, inner = key.rpartition(".")
            target = self.out.engine.setdefault(block, {}) if block else self.out.engine
            target[inner] = value
        hicache = self.out.engine.setdefault("hicache", {})
        if enabled:
            hicache.setdefault("ratio", "2.0")
        else:
            hicache["ratio"] = 0
            hicache.pop("size", None)
        return self.out


def as_command(engine: Mapping[str, Any], model: str) -> str:
    """Return the launch command of an engine block: every relevant flag once, in the table's order."""
    from kvsim.config.schema.family import family_of

    if family_of(engine) == "vllm":
        return command_of_vllm(dict(engine), model)
    flags = []
    seen = set()
    hicache = dict(engine.get("hicache") or {})
    on = bool(float(hicache.get("ratio") or 0)) or bool(float(hicache.get("size") or 0))
    for flag, key in VALUES.items():
        value = _at(engine, key)
        if key in seen or value is None or (key.startswith("hicache.") and (not on or (key == "hicache.size" and not float(value)))):
            continue
        seen.add(key)
        flags.append(f"{flag} {shlex.quote(_text(value))}")
    for flag, key in SWITCHES.items():
        if (key == "hicache.enabled" and on) or (key != "hicache.enabled" and _at(engine, key) is True):
            flags.append(flag)
    if engine.get("cuda_graph_bs"):
        flags.append("--cuda-graph-bs " + " ".join(map(str, engine["cuda_graph_bs"])))
    return " \\\n  ".join([f"python -m sglang.launch_server --model-path {shlex.quote(model)}", *flags])


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _at(engine: Mapping[str, Any], key: str) -> Any:
    block, _, inner = key.rpartition(".")
    target = engine.get(block) if block else engine
    return target.get(inner) if isinstance(target, Mapping) else None
