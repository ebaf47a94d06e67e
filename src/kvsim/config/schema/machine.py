"""Blocks of costs, links, SLO, run, fleet: everything of a scenario that is neither engine nor workload."""

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
    Rate,
    Seconds,
    Seed,
    Share,
)

#: A part of one step; an hour is more than any engine takes.
StepSeconds = Annotated[Seconds, Field(ge=0, le=3600)]


class ConstantCosts(Block):
    """Constant rates: the toy world, where answers are arithmetic; and any step time that is linear in its features.

    Prefill: per_step + tokens / prefill_tokens_per_s + prefill_per_pair x attention pairs. Decode: decode_step + per sequence + per
    token of context read + expert_step x (1 - (1 - expert_share)^sequences). weight_step: the part of decode_step in which weights are
    read; computing prompt tokens hides behind it, the longer of both counts.
    """

    kind: Literal["constant"]
    prefill_tokens_per_s: PositiveNumber = 10_000.0
    decode_step: StepSeconds = 0.01
    layers: PositiveCount = 1
    per_step: StepSeconds = 0.0
    decode_per_sequence: StepSeconds = 0.0
    decode_per_context: Annotated[Seconds, Field(ge=0, le=1)] = 0.0
    prefill_per_pair: Annotated[Seconds, Field(ge=0, le=1)] = 0.0
    expert_step: StepSeconds = 0.0
    expert_share: Annotated[Number, Field(ge=0, le=1)] = 0.0
    weight_step: StepSeconds = 0.0


class AnalyticCosts(Block):
    """The calibrated analytic model, component by component; ``constants`` overrides single numbers (``kvsim calibrate``).

    ``allreduce``: a preset in place of the hardware profile's. ``decode_kernels``: engine version whose MLA decode kernels
    are used. ``routing_dispersion``: how evenly tokens spread over experts (benchmarks with similar prompts: 0.5).
    """

    kind: Literal["analytic"] = "analytic"
    allreduce: Name | None = None
    decode_kernels: Name = "0.5.14"
    routing_dispersion: Annotated[Number, Field(gt=0, le=1e6)] = 1.0
    constants: dict[str, Number] = {}


class TableCosts(Block):
    """A user's CSV of measured steps, interpolated. ``outside`` its range: refuse, or extend in a straight line and say so."""

    kind: Literal["table"]
    file: Name
    outside: Literal["refuse", "extend"] = "refuse"


class AiconfiguratorCosts(Block):
    """aiconfigurator-core as an estimator (optional extra). ``system``, ``model``: its own names."""

    kind: Literal["aiconfigurator"]
    system: Name | None = None
    model: Name | None = None
    backend: Name = "sglang"


Costs = Annotated[ConstantCosts | AnalyticCosts | TableCosts | AiconfiguratorCosts, Field(discriminator="kind")]


class ConstantLinks(Block):
    """A constant rate per direction, first come first served."""

    kind: Literal["constant"]
    h2d: Rate = 50e9
    d2h: Rate = 50e9
    latency: NotNegativeSeconds = 0.0
    layerwise_overlap: bool = True
    duplex: Share = 1.0


class TopologyLinks(Block):
    """The machine's links and what they share, from the hardware profile; every value here replaces the profile's.

    ``h2d``, ``d2h``: what the copy mode reaches per GPU. ``latency``: before a copy's first byte; ``layer_latency``: least time
    of one layer's copy (its launch). ``interference``: how much compute slows while a copy kernel loads.
    """

    kind: Literal["topology"] = "topology"
    mode: Literal["kernel", "batch", "direct", "page_contig"] | None = None
    h2d: Rate | None = None
    d2h: Rate | None = None
    topology: Literal["direct", "uplink2", "uplink4"] | None = None
    layerwise_overlap: bool = True
    interference: Annotated[Number, Field(ge=0)] | None = None
    duplex: Share | None = None
    latency: NotNegativeSeconds = 20e-6
    layer_latency: NotNegativeSeconds = 10e-6


Links = Annotated[ConstantLinks | TopologyLinks, Field(discriminator="kind")]


class Speculation(Block):
    """How drafts fare; the flags (steps, topk, draft tokens) are the engine's. Give ``accept_length`` or ``accept_rates``.

    ``accept_length``: mean tokens kept per step and sequence, 1 to steps + 1. ``accept_rates``: chance that the k-th drafted token is
    kept when all before it were. ``off_above``: larger decode batches run plainly. ``draft_layers``: layers of the draft model.
    """

    accept_length: Annotated[Number, Field(ge=1)] | None = None
    accept_rates: list[Annotated[Number, Field(ge=0, le=1)]] | None = None
    off_above: PositiveCount | None = None
    draft_layers: PositiveCount = 1


class Slo(Block):
    """A request meets it if every given bound holds; refused, aborted and unfinished ones miss it."""

    ttft: PositiveSeconds | None = None
    tpot: PositiveSeconds | None = None
    e2e: PositiveSeconds | None = None
    attainment: Share = 0.99


class Run(Block):
    """How to simulate: seed, horizon, warm-up, replications."""

    seed: Seed = 1
    until: PositiveSeconds | None = None
    warmup: Literal["auto", "none"] | Seconds = "auto"
    exact_steps: bool = False
    invariants: bool = False
    replications: Annotated[Count, Field(ge=1, le=100_000)] = 1
    precision: Annotated[Number, Field(gt=0, lt=1)] | None = None
    warm_start: Name | None = None

    @property
    def horizon_ps(self) -> int | None:
        """The horizon in picoseconds, or None to run to the end."""
        return None if self.until is None else round(self.until * 1e12)


class Cost(Block):
    """Prices, for studies of equal cost."""

    per_gpu_hour: PositiveNumber | None = None
    per_gb_ram_hour: PositiveNumber | None = None


class Study(Block):
    """What `kvsim sweep` varies by default: key path -> values."""

    axes: dict[str, list[Any]] = {}
    question: Name | None = None
