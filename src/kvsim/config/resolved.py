"""What ``resolve`` hands to the machine: every number derived once, with the arithmetic kept as text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """One line of shown arithmetic: what, the value, its unit, the formula in words, where it comes from.

    ``source``: "derived", "given", "printed by the engine", "assumption" or a citation with date.
    """

    what: str
    value: float | int | str | None
    unit: str
    formula: str
    source: str = "derived"


@dataclass(frozen=True, slots=True)
class Capacity:
    """Where the memory went. Bytes are per rank unless the name says total; tokens are distinct tokens of one engine.

    ``device_tokens``: usable KV slots; ``host_tokens``: usable host slots (0: no host tier); ``kv_bytes_per_token``: per rank.
    ``ranks``: GPUs of one engine; ``host_copies``: copies of a cached token in host RAM (ranks for stock MLA, 1 for shared).
    ``longest_prompt``: largest accepted prompt. ``infeasible``: reasons with what would work; empty if it fits.
    """

    device_tokens: int
    host_tokens: int
    page_size: int
    kv_bytes_per_token: int
    ranks: int
    host_copies: int
    device_pool_bytes: int
    host_bytes_per_rank: int
    host_bytes_total: int
    longest_prompt: int
    max_running_requests: int
    weight_bytes: int
    card_bytes: int
    free_before_bytes: int
    lines: tuple[Line, ...] = ()
    infeasible: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resolved:
    """A scenario with nothing left to derive.

    ``data``: the complete scenario as plain JSON-able data (what the manifest stores and ``--from`` reads back);
    ``digest``: SHA-256 of its canonical JSON; ``family``: "sglang" or "vllm"; ``engine``: SglangParams or VllmParams;
    ``scenario``: the validated pydantic object; ``hardware``, ``model``: the profiles.
    """

    scenario: Any
    data: dict[str, Any]
    digest: str
    family: str
    engine: Any
    hardware: Any
    model: Any
    capacity: Capacity
    warnings: tuple[str, ...] = ()
