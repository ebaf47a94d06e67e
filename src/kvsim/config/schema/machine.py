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
    Share,
)


class ConstantCosts(Block):
    """Constant rates: the toy world, where answers are arithmetic."""

    kind: Literal["constant"]
    prefill_tokens_per_s: PositiveNumber = 10_000.0
    decode_step: NotNegativeSeconds = 0.01
    layers: PositiveCount = 1
    per_step: NotNegativeSeconds = 0.0
    decode_per_context: NotNegativeSeconds = 0.0


class AnalyticCosts(Block):
    """The calibrated analytic model, component by component; ``constants`` overrides single numbers."""

    kind: Literal["analytic"] = "analytic"
    allreduce: Name = "nccl_tuned"
    decode_kernels: Name = "0.5.14"
    routing_dispersion: PositiveNumber = 1.0
    constants: dict[str, Number] = {}


class TableCosts(Block):
    """A user's CSV of measured steps, interpolated."""

    kind: Literal["table"]
    file: Name
    outside: Literal["refuse", "scale"] = "refuse"


class AiconfiguratorCosts(Block):
    """aiconfigurator-core as an estimator (optional extra)."""

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
    """The machine's links and what they share, from the hardware profile."""

    kind: Literal["topology"] = "topology"
    mode: Literal["kernel", "batch", "direct", "page_contig"] | None = None
    h2d: Rate | None = None
    d2h: Rate | None = None
    topology: Name | None = None
    layerwise_overlap: bool = True
    interference: Annotated[Number, Field(ge=0)] | None = None


Links = Annotated[ConstantLinks | TopologyLinks, Field(discriminator="kind")]


class Slo(Block):
    """A request meets it if every given bound holds; refused, aborted and unfinished ones miss it."""

    ttft: PositiveSeconds | None = None
    tpot: PositiveSeconds | None = None
    e2e: PositiveSeconds | None = None
    attainment: Share = 0.99


class Run(Block):
    """How to simulate: seed, horizon, warm-up, replications."""

    seed: Annotated[Count, Field(ge=0)] = 1
    until: PositiveSeconds | None = None
    warmup: Literal["auto", "none"] | Seconds = "auto"
    exact_steps: bool = False
    invariants: bool = False
    replications: PositiveCount = 1
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
