"""The scenario as a person writes it: one schema, one file per block."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from kvsim.config.schema.family import Engine
from kvsim.config.schema.machine import Cost, Costs, Links, Run, Slo, Speculation, Study
from kvsim.config.schema.types import Block, Count, Name
from kvsim.config.schema.workload import Clients, Workload

__all__ = ["Scenario"]


def _default_kind(kind: str) -> BeforeValidator:
    def add(value: object) -> object:
        return {"kind": kind, **value} if isinstance(value, dict) and "kind" not in value else value

    return BeforeValidator(add)


class Scenario(Block):
    """Everything one simulation needs."""

    hardware: Name | dict[str, Any]
    model: Name | dict[str, Any]
    engine: Engine = Field(default={}, validate_default=True)
    costs: Annotated[Costs, _default_kind("analytic")] = Field(default={"kind": "analytic"}, validate_default=True)
    links: Annotated[Links, _default_kind("topology")] = Field(default={"kind": "topology"}, validate_default=True)
    speculation: Speculation | None = None
    workload: Annotated[Workload, _default_kind("trace")] | None = None
    clients: Clients = Field(default={}, validate_default=True)
    slo: Slo | None = None
    run: Run = Field(default={}, validate_default=True)
    study: Study = Field(default={}, validate_default=True)
    replicas: Annotated[Count, Field(ge=1, le=10_000)] = 1
    router: Name = "round_robin"
    cost: Cost = Field(default={}, validate_default=True)
    include: list[Name] = Field(default_factory=list)
    title: Name | None = None

    @model_validator(mode="after")
    def _clients_of_a_trace(self) -> Scenario:
        """What only a recorded trace's clients have is an error for a recipe: it would have no effect."""
        if self.workload is not None and self.workload.kind != "trace":
            for key, instead in (("loop", "workload.loop of kind multi_turn"), ("think_time", "workload.think_time of kind multi_turn")):
                if getattr(self.clients, key) is not None:
                    raise ValueError(f"clients.{key} has no effect with workload.kind {self.workload.kind}: it is for traces; use {instead}")
        return self
