"""Names of the parts of a resolved scenario, which holds its profiles inline."""

from __future__ import annotations

from typing import Any


def model_name(data: dict[str, Any]) -> str:
    """Return the model's name of a scenario in plain data, or an empty string."""
    return _name(data.get("model"))


def hardware_name(data: dict[str, Any]) -> str:
    """Return the machine's name of a scenario in plain data, or an empty string."""
    return _name(data.get("hardware"))


def title_of(data: dict[str, Any]) -> str:
    """Return a page title: the scenario's own, with model and machine."""
    machine = " on ".join(part for part in (model_name(data), hardware_name(data)) if part)
    own = str(data.get("title") or "")
    return f"{own} ({machine})" if own and machine else own or machine or "kvsim run"


def _name(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value or "")
    facts = value.get("kvsim")
    return str(value.get("name") or (facts.get("name") if isinstance(facts, dict) else "") or value.get("base") or "")
