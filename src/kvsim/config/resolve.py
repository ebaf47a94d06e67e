"""From a scenario to a machine: every default filled, every capacity derived once, the arithmetic kept as text."""

from __future__ import annotations

import hashlib
import importlib
import json
from typing import TYPE_CHECKING, Any

from kvsim.config.hardware import HardwareProfile, load_hardware
from kvsim.config.model import ModelProfile, load_model
from kvsim.config.resolved import Capacity, Resolved
from kvsim.config.schema.family import family_of

if TYPE_CHECKING:
    from kvsim.config.schema import Scenario


#: Engine family -> module:function(scenario, hardware, model) that returns (parameters, capacity, warnings).
RESOLVERS: dict[str, str] = {
    "sglang": "kvsim.config.sglang_resolve:resolve_sglang",
    "vllm": "kvsim.config.vllm_resolve:resolve_vllm",
}


def resolve(scenario: Scenario) -> Resolved:
    """Return the scenario with nothing left to derive. Raises ConfigError, UnknownName; what does not fit is in ``capacity.infeasible``."""
    hardware, model = load_hardware(scenario.hardware), load_model(scenario.model)
    family = family_of(scenario.engine)
    engine, capacity, warnings = _engine_of(family, scenario, hardware, model)
    command = getattr(scenario.engine, "command", None)
    if command is not None:
        from kvsim.config.command import remarks_of_command

        warnings = [*warnings, *remarks_of_command(command)]
    data = plain_data(scenario, hardware, model, capacity)
    return Resolved(scenario, data, digest_of(data), family, engine, hardware, model, capacity, tuple(warnings))


def _engine_of(
    family: str, scenario: Scenario, hardware: HardwareProfile, model: ModelProfile
) -> tuple[Any, Capacity, list[str]]:
    module, function = RESOLVERS[family].split(":")
    found: tuple[Any, Capacity, list[str]] = getattr(importlib.import_module(module), function)(scenario, hardware, model)
    return found


def plain_data(scenario: Scenario, hardware: HardwareProfile, model: ModelProfile, capacity: Capacity) -> dict[str, Any]:
    """Return the complete scenario as plain data: profiles inline, so that it needs no other file."""
    data = scenario.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    data["hardware"] = hardware.model_dump(mode="json", exclude_none=True)
    if hardware.host_ram is None:
        data["hardware"]["host_ram"] = "unlimited"
    data["model"] = {**model.config, "kvsim": {**model.facts, "name": model.name}}
    for block in ("run", "engine", "workload", "costs", "links", "slo", "clients"):
        value = getattr(scenario, block)
        if value is not None:
            data[block] = value.model_dump(mode="json", exclude_none=True)
    return {key: data[key] for key in sorted(data)}


def digest_of(data: Any) -> str:
    """Return the SHA-256 of plain data as canonical JSON."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":"), default=str).encode()).hexdigest()
