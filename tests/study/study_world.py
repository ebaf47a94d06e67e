"""Queues made of the machine: one request at a time, service times given through prompt lengths."""

from __future__ import annotations

import math
from typing import Any

from kvsim.config.load import load
from kvsim.study.point import plain_scenario

#: One server: 1 s of service per 10,000 prompt tokens, the answer's one token comes with the prefill.
QUEUE = [
    "engine.max_running_requests=1",
    "engine.device_tokens=100000000",
    "engine.page_size=1",
    "engine.disable_radix_cache=true",
    "workload.output_tokens=1",
]
SERVICE_S = 0.1


def queue_scenario(*overrides: str) -> Any:
    return load("toy", [*QUEUE, "workload.prompt_tokens=1000", *overrides])


def queue_base(*overrides: str) -> dict[str, Any]:
    return plain_scenario(queue_scenario(*overrides))


def md1_wait_below(rate: float, service: float, limit: float) -> float:
    """P(W <= limit) of M/D/1 (Erlang 1909; see Tijms, A First Course in Stochastic Models, 9.4)."""
    total = 0.0
    for k in range(int(limit / service + 1e-12) + 1):
        x = rate * (k * service - limit)
        total += (x**k / math.factorial(k)) * math.exp(-x)
    return (1 - rate * service) * total


def md1_rate(service: float, limit: float, share: float) -> float:
    """The arrival rate at which exactly ``share`` of requests wait at most ``limit``."""
    low, high = 1e-6, (1 - 1e-9) / service
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if md1_wait_below(middle, service, limit) > share else (low, middle)
    return (low + high) / 2
