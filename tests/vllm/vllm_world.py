"""A small world for tests of the vLLM rules: constant step times, one FIFO per copy direction, any list of requests."""

from __future__ import annotations

import random
from dataclasses import replace

import simpy

from kvsim.cost.constant import ConstantTime, Rates
from kvsim.record.recorder import Recorder
from kvsim.rules.vllm import OFFLOADING, RULES, SIMPLE, VllmParams
from kvsim.serving.vllm.scheduler import VllmScheduler
from kvsim.sim.engine import Engine
from kvsim.sim.source import Source
from kvsim.workload.spec import RequestSpec

MS = 10**9


class Fifo:
    """Copies at a constant time per token, one after the other per direction."""

    def __init__(self, ps_per_token: int) -> None:
        self.rate = ps_per_token
        self.ends: tuple[list[int], list[int]] = ([], [])

    def _submit(self, way: int, tokens: int, now: int) -> tuple[int, int]:
        ends = self.ends[way]
        start = max(now, ends[-1] if ends else 0)
        ends.append(start + tokens * self.rate)
        return start, ends[-1]

    def write(self, tokens: int, now: int) -> tuple[int, int]:
        return self._submit(0, tokens, now)

    def load(self, tokens: int, now: int) -> tuple[int, int]:
        return self._submit(1, tokens, now)

    def done(self, ticket: tuple[int, int], now: int) -> bool:
        return ticket[1] <= now

    def finish_time(self, ticket: tuple[int, int], now: int) -> int:
        return ticket[1]

    def duration(self, ticket: tuple[int, int]) -> int:
        return ticket[1] - ticket[0]

    def next_done(self, now: int) -> int | None:
        return min((end for ends in self.ends for end in ends if end > now), default=None)


class ListClient:
    """Sends a list of requests at their times."""

    def __init__(self, specs: list[RequestSpec]) -> None:
        self.specs = sorted(specs, key=lambda spec: spec.arrival_ps)
        self.at = 0

    def next_send(self) -> int | None:
        return self.specs[self.at].arrival_ps if self.at < len(self.specs) else None

    def send(self, now: int) -> list[RequestSpec]:
        out = []
        while self.at < len(self.specs) and self.specs[self.at].arrival_ps <= now:
            out.append(self.specs[self.at])
            self.at += 1
        return out

    def ended(self, request_id: str, now: int, ok: bool) -> None: ...

    def unsent(self):
        return ()


def simulate(params: VllmParams, specs: list[RequestSpec], *, exact_steps: bool, ps_per_token: int = MS // 50):
    """Run the machine to its end; return (recording, scheduler)."""
    env = simpy.Environment(initial_time=0)
    recorder = Recorder({})
    links = Fifo(ps_per_token)
    scheduler = VllmScheduler(params, links)
    time = ConstantTime(Rates(20_000.0, 0.005, decode_per_context=1e-7, per_step=0.001))
    engine = Engine(env, scheduler, time, links, recorder, exact_steps=exact_steps)

    def deliver(sent: list[RequestSpec]) -> None:
        for spec in sent:
            engine.deliver(spec)

    source = Source(env, ListClient(specs), deliver)
    engine.source = source
    source.start()
    env.run()
    for request in scheduler.pending():
        recorder.request(request, "unfinished")
    return recorder.recording, scheduler


def random_world(seed: int) -> tuple[VllmParams, list[RequestSpec]]:
    """A tight pool, shared prefixes, early stops, conversations; settings drawn from all that the rules know."""
    rng = random.Random(seed)
    size = rng.choice([1, 16, 16, 64])
    longest = rng.choice([160, 400]) if size < 64 else 640
    blocks = -(-longest // size) + 1 + rng.randrange(0, 3 * longest // size + 2)
    connector = rng.choice(["", "", OFFLOADING, OFFLOADING, SIMPLE])
    params = VllmParams(
        RULES["vllm-0.24.0" if connector else rng.choice(["vllm-0.24.0", "vllm-0.19.0"])],
        num_gpu_blocks=blocks,
        max_model_len=longest,
        block_size=size,
        max_num_batched_tokens=rng.choice([64, 200, 1000]),
        max_num_seqs=rng.choice([3, 8, 64]),
        long_prefill_token_threshold=rng.choice([0, 0, 0, 40]),
        policy=rng.choice(["fcfs", "fcfs", "priority"]),
        scheduler_reserve_full_isl=rng.random() < 0.8,
        watermark=rng.choice([0.0, 0.0, 0.1]),
        async_scheduling=rng.random() < 0.6,
        enable_prefix_caching=connector == SIMPLE or rng.random() < 0.9,
        connector=connector,
        cpu_blocks=rng.choice([blocks // 2 + 2, 3 * blocks]) if connector else 0,
        cpu_policy=rng.choice(["lru", "arc"]),
        offload_prompt_only=rng.random() < 0.7,
        lazy_offload=rng.random() < 0.3,
    )
    return params, random_specs(rng, longest)


def random_specs(rng: random.Random, longest: int, count: int = 30) -> list[RequestSpec]:
    specs: list[RequestSpec] = []
    now = 0
    for number in range(count):
        now += int(rng.expovariate(1 / rng.choice([5, 60, 300])) * MS)
        shared = rng.randrange(3)
        parts = [
            (shared * 10_000, rng.randrange(1, longest // 3)),
            (100_000 + number * 1000, rng.randrange(1, longest // 3)),
        ]
        if specs and rng.random() < 0.3:
            before = rng.choice(specs)
            if before.prompt_tokens + before.output_tokens < longest // 2:
                parts = [*before.prompt, (before.output_first, before.output_tokens), parts[1]]
        prompt = tuple(parts)
        tokens = sum(part[1] for part in prompt)
        room = longest - tokens
        if room < 2:
            continue
        limit = rng.randrange(1, min(room, 150))
        length = limit if rng.random() < 0.5 else rng.randrange(1, limit + 1)
        spec = RequestSpec(
            id=str(number),
            arrival_ps=now,
            prompt=prompt,
            prompt_tokens=tokens,
            output_tokens=length,
            output_first=10_000_000 + number * 1000,
            max_new_tokens=limit,
            priority=rng.randrange(3),
            timeout_ps=rng.choice([None, None, None, 200 * MS]),
        )
        specs.append(spec)
    return specs


def with_params(params: VllmParams, **changes: object) -> VllmParams:
    return replace(params, **changes)
