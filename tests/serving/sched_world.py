"""Small tight worlds for scheduler tests, driven with iterations as the clock."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field, replace
from typing import Any

from kvsim.content import canonical, length
from kvsim.kv.tiers import EngineFailure
from kvsim.rules.sglang import RULES, SglangParams
from kvsim.serving.port import Request, Step
from kvsim.serving.sglang.scheduler import SglangScheduler
from kvsim.workload.spec import RequestSpec

MOST_ITERATIONS = 4000


class Copies:
    """Copies that take a number of iterations which depends on their size; under write_back a write is waited for."""

    def __init__(self, per_write: int, per_load: int, waits: bool = False) -> None:
        self.per_write, self.per_load, self.waits = per_write, per_load, waits
        self.log: list[tuple[str, int, int]] = []

    def write(self, tokens: int, now: int) -> int:
        self.log.append(("write", tokens, now))
        return now if self.waits else now + self.per_write + tokens % 3

    def load(self, tokens: int, now: int) -> int:
        self.log.append(("load", tokens, now))
        return now + self.per_load + tokens % 2

    def done(self, ticket: object, now: int) -> bool:
        assert isinstance(ticket, int)
        return now >= ticket

    def finish_time(self, ticket: object, now: int) -> int:
        assert isinstance(ticket, int)
        return ticket


def request(name: str, prompt: Any, output: int, *, first: int = 0, at: int = 1, mnt: int | None = None, **more: Any) -> RequestSpec:
    """A request; ``prompt``: runs, or a number of tokens of its own."""
    number = sum(ord(letter) * 131**i for i, letter in enumerate(name))
    runs = canonical(((number * 1000, prompt),)) if isinstance(prompt, int) else canonical(prompt)
    return RequestSpec(
        id=name,
        arrival_ps=at,
        prompt=runs,
        prompt_tokens=length(runs),
        output_tokens=output,
        output_first=first or 10_000_000_000 + number * 10_000,
        max_new_tokens=mnt,
        **more,
    )


@dataclass
class Log:
    """What a drive saw: every planned step in full, when requests ended, and the last state."""

    steps: list[tuple[Any, ...]] = field(default_factory=list)
    settled: list[tuple[int, list[str], list[str], int]] = field(default_factory=list)
    retracted: list[tuple[int, list[str]]] = field(default_factory=list)
    requests: dict[str, Request] = field(default_factory=dict)
    runs: int = 0
    skipped: int = 0
    failure: str = ""
    end: dict[str, Any] = field(default_factory=dict)
    states: list[tuple[int, int, int]] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """Everything that must be equal in both modes."""
        per_request = {
            name: (
                r.status, r.reason, r.first_token_ps, r.end_ps, r.device_hit, r.host_hit, r.recompute_hit,
                r.retractions, r.retracted_tokens, r.output_done,
            )
            for name, r in self.requests.items()
        }  # fmt: skip
        return {
            "steps": self.steps,
            "settled": self.settled,
            "retracted": self.retracted,
            "requests": per_request,
            "failure": self.failure,
            "end": self.end,
        }


class Drive:
    """Runs one scheduler through iterations 1, 2, ... as the machine would, stepwise or with closed-form runs."""

    def __init__(self, params: SglangParams, specs: list[RequestSpec], copies: Copies, *, closed: bool) -> None:
        self.scheduler = SglangScheduler(params, copies)
        self.specs = sorted(specs, key=lambda spec: spec.arrival_ps)
        self.closed, self.copies = closed, copies
        self.log = Log()
        self.at = self.sent = self.idle = 0
        self.previous: Step | None = None

    def run(self) -> Log:
        """Iterate until nothing is left."""
        try:
            while self.at < MOST_ITERATIONS and self.idle < 4:
                self.at += 1
                self.iterate()
        except EngineFailure as failure:
            self.log.failure = str(failure)
        self._close()
        return self.log

    def _submit(self, until: int) -> None:
        while self.sent < len(self.specs) and self.specs[self.sent].arrival_ps <= until:
            spec = self.specs[self.sent]
            self.log.requests[spec.id] = self.scheduler.submit(spec, spec.arrival_ps)
            self.sent += 1

    def iterate(self) -> None:
        """One iteration: arrivals, plan, perhaps a run of quiet iterations, the outstanding result."""
        scheduler, now = self.scheduler, self.at
        self._submit(now)
        step = scheduler.plan(now)
        self._note_plan(step)
        outstanding = self.previous if scheduler.overlap else step
        if self.closed and step is not None and step.kind == "decode":
            outstanding = self._skip(step, outstanding)
        if outstanding is not None:
            self._settle(outstanding)
        elif step is None:
            scheduler.idle(now)
        self.previous = step if scheduler.overlap else None
        done = step is None and outstanding is None and self.sent == len(self.specs) and not scheduler.has_work()
        self.idle = self.idle + 1 if done else 0
        cache = scheduler.cache
        self.log.states.append((cache.free, cache.evictable, cache.protected))

    def _skip(self, step: Step, outstanding: Step | None) -> Step | None:
        scheduler = self.scheduler
        more = scheduler.quiet(self.previous)
        if self.sent < len(self.specs) and scheduler.arrival_matters():
            more = min(more, self.specs[self.sent].arrival_ps - 1 - self.at)
        if more <= 0:
            return outstanding
        for i in range(more):
            self.log.settled.append((self.at + i, [], [], step.decode_batch))
        context = step.sum_context
        scheduler.advance(more, step)
        for i in range(1, more + 1):
            self._note_step(self.at + i, step, context + i * step.decode_batch, step.max_context - more + i)
        self.log.runs += 1
        self.log.skipped += more
        self.at += more
        self._submit(self.at)
        return copy.copy(step) if scheduler.overlap else step

    def _note_step(self, at: int, step: Step, context: int, longest: int) -> None:
        self.log.steps.append(
            (
                at, step.kind, [(r.spec.id, prefix, new) for r, prefix, new in step.prefills],
                [r.spec.id for r in step.requests], step.new_tokens, step.pairs2, step.cached_tokens, step.decode_batch,
                context, longest, step.load_tokens, [r.spec.id for r in step.admitted],
            )
        )  # fmt: skip

    def _note_plan(self, step: Step | None) -> None:
        if self.scheduler.retracted_now:
            self.log.retracted.append((self.at, [r.spec.id for r in self.scheduler.retracted_now]))
        self.scheduler.ended.clear()
        if step is not None:
            self._note_step(self.at, step, step.sum_context, step.max_context)

    def _settle(self, step: Step) -> None:
        settled = self.scheduler.settle(step, self.at)
        names = [[r.spec.id for r in part] for part in (settled.first, settled.finished)]
        self.log.settled.append((self.at, names[0], names[1], settled.emitted))

    def _close(self) -> None:
        cache, scheduler = self.scheduler.cache, self.scheduler
        counters = (
            "free", "evictable", "protected", "host_used", "demoted", "dropped", "host_evicted", "host_duplicates",
            "backed_up", "loaded", "write_failures", "load_failures", "in_flight_writes", "in_flight_loads",
        )  # fmt: skip
        self.log.end = {name: getattr(cache, name) for name in counters} | {
            "tree": cache.dump(),
            "ratio": scheduler.ratio,
            "at": self.at,
            "copies": self.copies.log,
            "waiting": [r.spec.id for r in scheduler.waiting],
        }


def drive(params: SglangParams, specs: list[RequestSpec], *, closed: bool = False, delays: tuple[int, int] = (2, 2)) -> Log:
    """Run ``specs`` through a scheduler; returns the log."""
    copies = Copies(*delays, waits=params.write_policy == "write_back")
    return Drive(params, specs, copies, closed=closed).run()


def server(rules: str = "sglang-0.5.9", **settings: Any) -> SglangParams:
    """A server of the worked examples: page 1, overlap, radix cache, fcfs, no length limit."""
    base = SglangParams(rules=RULES[rules], page_size=1, device_tokens=200, max_input_tokens=1 << 60)
    return replace(base, **settings)


def random_world(seed: int) -> tuple[SglangParams, list[RequestSpec], tuple[int, int]]:
    """A small tight world: any rule set, page, policy, write policy, overlap or not, chunks, retractions."""
    rng = random.Random(seed)
    page = rng.choice([1, 1, 16, 64])
    scale = {1: 1, 16: 4, 64: 12}[page]
    device = rng.randrange(60, 260) * scale // page * page + page * 4
    hicache = rng.random() < 0.6
    chunk = rng.choice([None, rng.randrange(8, 60) * scale, rng.randrange(1, 6) * page * 2])
    rules = rng.choice(["sglang-0.5.9", "sglang-0.5.23"])
    params = server(
        rules,
        page_size=page,
        device_tokens=device,
        host_tokens=device * rng.choice([2, 3]) + page if hicache else 0,
        write_policy=rng.choice(["write_through", "write_through", "write_through_selective", "write_back"]),
        eviction=rng.choice(["lru", "lru", "lfu", "fifo"]),
        schedule_policy=rng.choice(["fcfs", "fcfs", "fcfs", "lpm", "lof", "random", "dfs-weight"]),
        schedule_conservativeness=rng.choice([0.02, 0.1, 0.3, 1.0]),
        chunked_prefill_size=chunk,
        max_prefill_tokens=rng.choice([16384, 40 * scale]),
        max_running_requests=rng.choice([3, 6, 50]),
        mixed_chunk=chunk is not None and rng.random() < 0.2,
        overlap=rng.random() < 0.6,
        radix_cache=rng.random() < 0.93,
        clip_max_new_tokens=rng.choice([4096, 4096, 20 * scale, 0]),
        new_token_ratio_decay_steps=rng.choice([600, 20]),
        seed=seed,
    )
    specs: list[RequestSpec] = []
    at, shared = 1, rng.randrange(0, 60) * scale
    for i in range(rng.randrange(3, 22)):
        at += rng.choice([0, 0, 1, 2, rng.randrange(30)])
        own = rng.randrange(1, 40) * scale
        prompt = [[5_000_000, shared], [1000 * (i + 1) * scale, own]] if rng.random() < 0.6 and shared else [[1000 * (i + 1) * scale, own]]
        if specs and rng.random() < 0.3:
            old = rng.choice(specs)
            prompt = [list(run) for run in old.prompt] + [
                [old.output_first, old.output_tokens],
                [900_000 + 1000 * i, own // 3 + 1],
            ]
        size = sum(count for _, count in prompt)
        room = device - size - 2 * page - 2
        if room < 2 or size >= device // 2:
            continue
        output = min(rng.choice([1, 2, rng.randrange(2, 30), rng.randrange(2, 120)]) * max(1, scale // 2), room)
        mnt = output if rng.random() < 0.6 else min(output + rng.randrange(0, 50), room)
        specs.append(request(f"r{i}", prompt, output, first=20_000_000 + i * 100_000, at=at, mnt=mnt, ignore_eos=rng.random() < 0.3))
    return params, specs, (rng.randrange(0, 9), rng.randrange(0, 9))
