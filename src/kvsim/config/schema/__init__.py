"""The scenario as a person writes it: one schema, one file per block."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

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
