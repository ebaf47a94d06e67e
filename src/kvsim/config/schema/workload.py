"""The workload and clients blocks: a trace, or a seeded recipe; and how clients behave."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from kvsim.config.schema.types import (
    Block,
    Count,
    Name,
    NotNegativeSeconds,
    Number,
    PositiveCount,
    PositiveNumber,
    PositiveSeconds,
    Seconds,
)


class Law(Block):
    """A length or time law: constant, exponential, lognormal, gamma, uniform, geometric; ``mean`` with ``cv``, or ``low`` and ``high``."""

    dist: Literal["constant", "exponential", "lognormal", "gamma", "uniform", "geometric", "pareto"] = "lognormal"
    mean: PositiveNumber | None = None
    cv: Annotated[Number, Field(ge=0)] = 0.5
    low: Annotated[Number, Field(ge=0)] | None = None
    high: PositiveNumber | None = None


Length = Annotated[Count, Field(ge=0)] | Law
Duration = NotNegativeSeconds | Law


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
    """Conversations that grow: system prompt, turns of new text, answers, think time between them."""

    kind: Literal["multi_turn"]
    sessions: PositiveCount = 100
    sessions_per_s: PositiveNumber | None = None
    users: PositiveCount | None = None
    turns: Length = 5
    system_prompt_tokens: Annotated[Count, Field(ge=0)] = 0
    system_prompts: PositiveCount = 1
    first_tokens: Length = 1000
    turn_tokens: Length = 300
    output_tokens: Length = 200
    think_time: Duration = 10.0
    loop: Literal["closed", "open"] = "closed"


class Poisson(Block):
    """Independent requests with nothing shared, at exponential gaps."""

    kind: Literal["poisson"]
    rate_per_s: PositiveNumber
    requests: PositiveCount | None = None
    duration: PositiveSeconds | None = None
    prompt_tokens: Length = 1000
    output_tokens: Length = 100
    shared_prefix_tokens: Annotated[Count, Field(ge=0)] = 0


class BenchMultiturn(Block):
    """SGLang's multi-turn benchmark client: one sender, a ready queue, exponential sleeps, at most so many in flight.

    ``length_factor``: text clients re-tokenise, which makes prompts longer (1.037 for 2025 clients).
    """

    kind: Literal["bench_multiturn"]
    clients: PositiveCount = 256
    rounds: PositiveCount = 5
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
