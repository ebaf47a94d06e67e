"""The workload and clients blocks: a trace, or a seeded recipe; and how clients behave."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from kvsim.config.schema.types import (
    Block,
    Count,
    Many,
    Name,
    NotNegativeSeconds,
    Number,
    PositiveCount,
    PositiveNumber,
    PositiveSeconds,
    Seconds,
)


class Law(Block):
    """A length or time law: constant, exponential, lognormal, gamma, uniform, geometric; ``mean`` with ``cv``, or ``low`` and ``high``.

    ``empirical``: one of ``values``, by ``weights`` (else each as likely), or of the lengths that the requests of a ``trace`` have:
    ``of`` its prompts or outputs.
    """

    dist: Literal["constant", "exponential", "lognormal", "gamma", "uniform", "geometric", "pareto", "empirical"] = "lognormal"
    values: Annotated[list[Annotated[Number, Field(ge=0)]], Field(max_length=100_000)] = []
    weights: list[PositiveNumber] | None = None
    trace: Name | None = None
    of: Literal["prompt", "output"] = "prompt"
    mean: PositiveNumber | None = None
    cv: Annotated[Number, Field(ge=0)] = 0.5
    low: Annotated[Number, Field(ge=0)] | None = None
    high: PositiveNumber | None = None

    @model_validator(mode="after")
    def _complete(self) -> Law:
        if self.dist == "empirical":
            if bool(self.values) == (self.trace is not None):
                raise ValueError("an empirical law needs either values or a trace, like {dist: empirical, values: [100, 900]}")
            if self.weights is not None and len(self.weights) != len(self.values):
                raise ValueError(f"{len(self.weights)} weights for {len(self.values)} values; allowed: one for each")
        elif self.values or self.weights is not None or self.trace is not None:
            raise ValueError("values, weights and trace belong to an empirical law: {dist: empirical, values: [100, 900]}")
        elif self.mean is None and self.high is None:
            raise ValueError("a law needs its mean, or low and high, like {dist: lognormal, mean: 1000, cv: 0.5}")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low is {self.low:g}, high {self.high:g}; allowed: low up to high")
        return self


Length = Annotated[Count, Field(ge=0)] | Law
Duration = NotNegativeSeconds | Law


#: What each arrival process takes.
ARRIVAL_KEYS: dict[str, tuple[str, ...]] = {
    "poisson": (), "gamma": ("cv",), "weibull": ("cv",), "mmpp": ("burst", "burst_share", "burst_s"), "piecewise": ("steps", "period"),
    "recorded": ("trace",),
}  # fmt: skip


class Arrivals(Block):
    """When requests or sessions begin, at the recipe's mean rate.

    ``gamma``, ``weibull``: gaps with coefficient of variation ``cv``. ``mmpp``: bursts of mean length ``burst_s`` that take ``burst_share`` of
    the time at ``burst`` times the rate between them. ``piecewise``: ``steps`` of [second, factor of the rate], repeated after ``period``.
    ``recorded``: the times of a trace, stretched to the rate.
    """

    process: Literal["poisson", "gamma", "weibull", "mmpp", "piecewise", "recorded"] = "poisson"
    cv: Annotated[Number, Field(ge=0.1, le=20)] = 2.0
    burst: Annotated[Number, Field(gt=1)] = 5.0
    burst_share: Annotated[Number, Field(gt=0, lt=1)] = 0.2
    burst_s: PositiveSeconds = 30.0
    steps: list[tuple[NotNegativeSeconds, Annotated[Number, Field(ge=0)]]] = []
    period: PositiveSeconds | None = None
    trace: Name | None = None

    @model_validator(mode="after")
    def _complete(self) -> Arrivals:
        idle = sorted(self.model_fields_set - {"process", *ARRIVAL_KEYS[self.process]})
        if idle:
            takes = ", ".join(ARRIVAL_KEYS[self.process]) or "no key"
            raise ValueError(f"arrivals.{idle[0]} has no effect with process '{self.process}', which takes {takes}")
        if self.process == "recorded" and self.trace is None:
            raise ValueError("arrivals of process 'recorded' need a trace: {process: recorded, trace: file}")
        if self.process == "piecewise":
            starts = [start for start, _ in self.steps]
            if not starts or starts[0] != 0 or starts != sorted(set(starts)):
                raise ValueError(
                    "arrivals of process 'piecewise' need steps like [[0, 1], [600, 3]]: seconds from 0, ascending, each with its factor"
                )
            if self.period is not None and self.period <= starts[-1]:
                raise ValueError(f"arrivals.period is {self.period:g} s; must be after the last step at {starts[-1]:g} s")
            if not any(factor > 0 for _, factor in self.steps) or (self.period is None and self.steps[-1][1] == 0):
                raise ValueError("arrivals.steps would end in silence; the last factor must be above 0, or give a period with one that is")
        return self


#: Turns of one conversation: each holds all before it.
MOST_TURNS = 10_000


class Documents(Block):
    """Shared documents: each request (first turn) reads ``per_request`` of ``count``, drawn by a Zipf law (document k is as popular as 1 / k^zipf).

    ``share``: the part of the requests that read any.
    """

    count: Many = 100
    tokens: Length = 2000
    per_request: Annotated[Count, Field(ge=1, le=10_000)] = 1
    zipf: Annotated[Number, Field(ge=0, le=5)] = 1.0
    share: Annotated[Number, Field(gt=0, le=1)] = 1.0


class Tree(Block):
    """A tree of shared prefixes: a request goes from the root through ``depth`` levels, one of ``branching`` texts of ``tokens`` at each."""

    depth: Annotated[Count, Field(ge=1, le=50)] = 3
    branching: Annotated[Count, Field(ge=1, le=10_000)] = 4
    tokens: PositiveCount = 500


class TraceWorkload(Block):
    """Requests from a file. ``rate_scale`` multiplies the rate: timestamps are divided by it."""

    kind: Literal["trace"] = "trace"
    trace: Name
    format: Name | None = None
    block_size: PositiveCount | None = None
    rate_scale: PositiveNumber = 1.0
    limit: PositiveCount | None = None
    start: NotNegativeSeconds | None = None
    end: PositiveSeconds | None = None
    sample_sessions: Annotated[Number, Field(gt=0, le=1)] | None = None
    zero_outputs: Literal["skip", "prefill_only"] = "skip"
    time_unit: Literal["s", "ms", "us", "ns"] | None = None
    columns: dict[str, str] | None = None
    arrivals: dict[str, Any] | None = None
    tokens_per_word: PositiveNumber | None = None
    outputs_cached: bool = True
    options: dict[str, Any] = {}


class MultiTurn(Block):
    """Conversations that grow: system prompt, documents, turns of new text, answers, think time between them.

    ``tenants``: sessions belong to them in turn; ``isolated``: tenants never share, whatever the text (as with cache salts or LoRA adapters).
    """

    kind: Literal["multi_turn"]
    sessions: Many = 100
    sessions_per_s: PositiveNumber | None = None
    users: Many | None = None
    turns: Annotated[Count, Field(ge=1, le=MOST_TURNS)] | Law = 5
    system_prompt_tokens: Annotated[Count, Field(ge=0)] = 0
    system_prompts: Many = 1
    first_tokens: Length = 1000
    turn_tokens: Length = 300
    output_tokens: Length = 200
    think_time: Duration = 10.0
    loop: Literal["closed", "open"] = "closed"
    arrivals: Arrivals | None = None
    documents: Documents | None = None
    tenants: Many = 1
    isolated: bool = False

    @model_validator(mode="after")
    def _bounded(self) -> MultiTurn:
        if self.loop == "open" and self.users is not None:
            raise ValueError("users has no effect with loop: open, where every session has its own times; use loop: closed")
        if isinstance(self.turns, Law):
            most = max(self.turns.mean or self.turns.high or 0, *self.turns.values, 0)
            if most > MOST_TURNS:
                raise ValueError(f"turns: a mean or value of {most:g}; allowed: up to {MOST_TURNS:,}")
            if self.turns.trace is not None:
                raise ValueError("turns cannot have the lengths of a trace; give values: {dist: empirical, values: [1, 2, 5]}")
        return self


class Poisson(Block):
    """Independent requests at exponential gaps (or ``arrivals``). What they share: a prefix, a tree of prefixes, documents; else nothing.

    ``tenants``: each has its own shared prefix; ``isolated``: tenants never share, whatever the text (as with cache salts or LoRA adapters).
    """

    kind: Literal["poisson"]
    rate_per_s: PositiveNumber
    requests: Many | None = None
    duration: PositiveSeconds | None = None
    prompt_tokens: Length = 1000
    output_tokens: Length = 100
    shared_prefix_tokens: Annotated[Count, Field(ge=0)] = 0
    arrivals: Arrivals | None = None
    documents: Documents | None = None
    tree: Tree | None = None
    tenants: Many = 1
    isolated: bool = False


class BenchMultiturn(Block):
    """SGLang's multi-turn benchmark client: one sender, a ready queue, exponential sleeps, at most so many in flight.

    ``length_factor``: text clients re-tokenise, which makes prompts longer (1.037 for 2025 clients).
    """

    kind: Literal["bench_multiturn"]
    clients: Many = 256
    rounds: Many = 5
    request_length: PositiveCount = 512
    question_length: PositiveCount | None = None
    output_length: PositiveCount = 64
    max_parallel: PositiveCount = 128
    request_rate: PositiveNumber = 1.0
    round_barrier: bool = False
    ready_queue: Literal["random", "fifo"] = "random"
    length_factor: PositiveNumber = 1.0


Workload = Annotated[TraceWorkload | MultiTurn | Poisson | BenchMultiturn, Field(discriminator="kind")]


class Clients(Block):
    """How clients behave. ``loop``: which times of a trace are kept; ``concurrency``: at most so many requests in flight."""

    loop: Literal["open", "closed"] | None = None
    concurrency: PositiveCount | None = None
    timeout: PositiveSeconds | None = None
    think_time: Seconds | None = None
    options: dict[str, Any] = {}
