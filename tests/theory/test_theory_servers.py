"""Several servers, shared servers, and independent references: M/M/c, processor sharing, Che's approximation."""

from __future__ import annotations

import math
import random

import pytest

from kvsim.config.load import load_data
from kvsim.config.resolve import resolve
from kvsim.measure.steady import replication_estimate
from kvsim.record.recording import Recording
from kvsim.sim.simulate import simulate
from kvsim.workload.clients import OpenLoop
from kvsim.workload.spec import RequestSpec

STEP_S = 0.001


def toy(specs: list[RequestSpec], costs: dict[str, float], **engine: object) -> Recording:
    """Run requests on a server that decodes at constant cost and computes prompts in no time."""
    data = {
        "hardware": {"base": "8x-h100", "host_ram": "unlimited", "assumptions": []}, "model": "qwen3-14b",
        "engine": {
            "rules": "sglang-0.5.9", "tp": 1, "device_tokens": 4_000_000, "kv_bytes_per_token": 81920, "page_size": 1, "context_length": 1_000_000,
            "hicache": {"host_tokens": 0}, **engine,
        },
        "costs": {"kind": "constant", "prefill_tokens_per_s": 1e9, **costs},
    }  # fmt: skip
    return simulate(resolve(load_data(data)), client=OpenLoop(specs))


def poisson(seed: int, rate: float, count: int, length: str) -> list[RequestSpec]:
    """Return unrelated one-page requests whose output lengths are "exponential", "constant" or "two" (two kinds), mean 200."""
    rng = random.Random(seed)
    draw = {
        "exponential": lambda: 1 + round(rng.expovariate(1 / 199)), "constant": lambda: 200,
        "two": lambda: 50 if rng.random() < 0.8 else 800,
    }[length]  # fmt: skip
    at, out = 0.0, []
    for number in range(count):
        at += rng.expovariate(rate)
        base = (number + 1) << 24
        out.append(RequestSpec(str(number), round(at * 1e12), ((base, 8),), 8, draw(), base + (1 << 20), ignore_eos=True))
    return out


def erlang_c(servers: int, load: float) -> float:
    """Return the probability of waiting in M/M/c with ``load`` Erlang."""
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(load**k / math.factorial(k) for k in range(servers)) + last)


@pytest.mark.parametrize(("slots", "load"), [(2, 1.5), (4, 3.2)])
def test_waits_for_one_of_c_slots_agree_with_erlang_c(slots: int, load: float) -> None:
    service = 199 * STEP_S  # the first token comes with the prompt
    means = []
    for seed in range(5):
        recording = toy(poisson(seed, load / service, 3000, "exponential"), {"decode_step": STEP_S}, max_running_requests=slots)
        waits = [(row.first_token_ps - row.arrival_ps) * 1e-12 for row in recording.requests if row.first_token_ps is not None]
        means.append(sum(waits[300:]) / len(waits[300:]))
    found = replication_estimate(means)
    assert found.half_width is not None
    expected = erlang_c(slots, load) * service / (slots - load)
    assert abs(found.mean - expected) <= 1.6 * found.half_width + STEP_S  # 99 % of a t with 4 degrees of freedom; a step to join


@pytest.mark.parametrize("length", ["constant", "exponential", "two"])
def test_a_shared_server_depends_on_the_mean_length_only(length: str) -> None:
    """Processor sharing: E[T] = E[S] / (1 - load), whatever the law of the lengths."""
    load, service = 0.6, 199 * STEP_S
    means = []
    for seed in range(5):
        recording = toy(poisson(seed, load / service, 3000, length), {"decode_step": 0.0, "decode_per_sequence": STEP_S})
        stays = [(row.end_ps - row.arrival_ps) * 1e-12 for row in recording.requests if row.end_ps is not None]
        means.append(sum(stays[300:]) / len(stays[300:]))
    found = replication_estimate(means)
    assert found.half_width is not None
    assert abs(found.mean - service / (1 - load)) <= 1.6 * found.half_width + 5 * STEP_S


def che_hit_rate(shares: list[float], size: float) -> float:
    """Return LRU's hit rate for independent references: the time t in which ``size`` different items are asked for, then the sum of p (1 - e^-pt)."""
    low, high = 0.0, 1e9
    for _ in range(200):
        t = (low + high) / 2
        low, high = (t, high) if sum(1 - math.exp(-p * t) for p in shares) < size else (low, t)
    return sum(p * (1 - math.exp(-p * low)) for p in shares)


@pytest.mark.parametrize("kept", [20, 60])
def test_independent_references_hit_as_often_as_che_says(kept: int) -> None:
    items, tokens, page = 200, 64 * 4, 64
    weights = [1 / (rank + 1) ** 0.8 for rank in range(items)]
    shares = [weight / sum(weights) for weight in weights]
    rates = []
    for seed in range(4):
        rng, specs = random.Random(seed), []
        for number, item in enumerate(rng.choices(range(items), shares, k=4000)):
            own = (number + 1) << 24
            runs = (((item + 1) << 50, tokens), (own, 1))
            specs.append(RequestSpec(str(number), number * 10**11, runs, tokens + 1, 1, own + (1 << 20), ignore_eos=True))
        recording = toy(specs, {"decode_step": STEP_S}, page_size=page, device_tokens=kept * tokens + 2 * page)
        late = [row for row in recording.requests if int(row.id) >= 1000]
        rates.append(sum(row.device_hit for row in late) / (tokens * len(late)))
    found = replication_estimate(rates)
    assert found.half_width is not None
    assert (
        abs(found.mean - che_hit_rate(shares, kept)) <= 1.8 * found.half_width + 0.02
    )  # 99 % of a t with 3; the approximation's own error
