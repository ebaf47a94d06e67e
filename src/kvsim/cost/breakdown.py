"""Where the time of one step goes: a row per component, for ``explain --step``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvsim.cost.analytic import AnalyticTime
from kvsim.errors import ConfigError

_COUNT = re.compile(r"^(\d+(?:\.\d+)?)([kKmM]?)$")


@dataclass(frozen=True, slots=True)
class StepShape:
    """One step as a person describes it: tokens to compute per prefill request, their cached tokens, decoding
    sequences and contexts."""

    new_tokens: int = 0
    cached_tokens: int = 0
    decode_batch: int = 0
    context: int = 0

    @property
    def pairs2(self) -> int:
        """Return twice the (new, context) pairs of the prefill part."""
        return self.new_tokens * (2 * self.cached_tokens + self.new_tokens + 1)


@dataclass(frozen=True, slots=True)
class Row:
    """One component: milliseconds, its share of the step, and what bounds it (compute, memory, launch, wire)."""

    component: str
    ms: float
    share: float
    bound: str


def parse_step(text: str) -> StepShape:
    """Return the step of a text such as ``"prefill=8192 cached=100k decode=32x16k"`` (k = 1,000, m = 1,000,000; all
    optional)."""
    values: dict[str, str] = {}
    for word in text.replace(",", " ").split():
        name, eq, value = word.partition("=")
        if not eq or name not in {"prefill", "cached", "decode"}:
            raise ConfigError(f"--step: '{word}' is not understood; write e.g. \"prefill=8192 cached=100k decode=32x16k\"")
        values[name] = value
    batch, _, context = values.get("decode", "0x0").lower().partition("x")
    step = StepShape(_count(values.get("prefill", "0")), _count(values.get("cached", "0")), _count(batch), _count(context or "0"))
    if not step.new_tokens and not step.decode_batch:
        raise ConfigError("--step: give prefill=TOKENS, decode=BATCHxCONTEXT, or both")
    if step.cached_tokens and not step.new_tokens:
        raise ConfigError("--step: cached=N needs prefill=TOKENS")
    if step.decode_batch and not step.context:
        raise ConfigError("--step: decode needs a context, e.g. decode=32x16k")
    return step


def breakdown(time: AnalyticTime, step: StepShape) -> list[Row]:
    """Return the components of a step in the order of their time, largest first; they add up to the step."""
    tokens = step.new_tokens + (time.padded(step.decode_batch) if not step.new_tokens else step.decode_batch)
    batch = step.decode_batch if step.new_tokens else (time.padded(step.decode_batch) if step.decode_batch else 0)
    heads = batch + (1 if step.new_tokens else 0)
    parts = [
        ("dense matrices", time.gemm_s(tokens), _gemm_bound(time, tokens)),
        ("routed experts", time.moe_s(tokens), _moe_bound(time, tokens)),
        ("prefill attention", time.prefill_attention_s(step.new_tokens, step.pairs2, step.cached_tokens), "compute"),
        ("decode attention", time.decode_attention_s(batch, step.decode_batch * step.context, step.context), "memory"),
        ("all-reduce", time.allreduce_s(tokens), "wire" if _wire_bound(time, tokens) else "latency"),
        ("overheads", time.overhead_s(tokens), "launch"),
        (
            "head",
            time.head_s(heads),
            "memory" if time.inputs.head.flops_per_sequence * heads < time.inputs.head.weight_bytes * 100 else "compute",
        ),
    ]
    total = sum(seconds for _, seconds, _ in parts)
    rows = [Row(name, seconds * 1e3 * time.inputs.scale, seconds / total, bound) for name, seconds, bound in parts if seconds > 0]
    floor = time.inputs.overheads.eager_floor
    if (step.new_tokens or time.is_eager(step.decode_batch)) and floor > total:
        rows.append(
            Row(
                "waiting for eager launches",
                (floor - total) * 1e3 * time.inputs.scale,
                (floor - total) / floor,
                "launch",
            )
        )
    return sorted(rows, key=lambda row: -row.ms)


def _gemm_bound(time: AnalyticTime, tokens: int) -> str:
    launch, per_token, weights, _ = time._gemm
    return max((launch, "launch"), (tokens * per_token, "compute"), (weights, "memory"))[1]


def _moe_bound(time: AnalyticTime, tokens: int) -> str:
    moe, card = time.inputs.moe, time.inputs.card
    if moe is None:
        return ""
    hit = time.experts_hit(tokens)
    compute = (tokens * moe.top_k + moe.pad_tokens * hit) * moe.flops_per_routed_token / (card.flops * moe.flops_eff)
    return max((moe.t0, "launch"), (compute, "compute"), (hit * moe.expert_bytes / (card.mem_bw * moe.bw_eff), "memory"))[1]


def _wire_bound(time: AnalyticTime, tokens: int) -> bool:
    reduce = time.inputs.allreduce
    if reduce is None:
        return False
    size = tokens * reduce.bytes_per_token
    alpha, beta = min(reduce.protocols, key=lambda protocol: protocol[0] + size / protocol[1])
    return size / beta > alpha


def _count(text: str) -> int:
    match = _COUNT.match(text.strip())
    if not match:
        raise ConfigError(f"--step: '{text}' is not a count of tokens (e.g. 8192, 100k, 1.5m)")
    return round(float(match[1]) * {"": 1, "k": 1000, "m": 1_000_000}[match[2].lower()])
