"""Rule sets: every choice an engine version makes, as data, each with the engine's file and function as its source.

``get`` finds a set by name and overrides single rules; ``describe_difference`` says in words where two sets differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from kvsim.errors import ConfigError, UnknownName, did_you_mean
from kvsim.rules import sglang, vllm
from kvsim.rules.sglang import SglangRules
from kvsim.rules.vllm import VllmRules

__all__ = ["Rule", "RuleDifference", "Rules", "describe", "describe_difference", "family", "get", "names"]

Rules = SglangRules | VllmRules
Value = bool | int | float | str

_SETS: dict[str, Rules] = {**sglang.RULES, **vllm.RULES}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a set: its name, value, what it says in words and the engine's file and function."""

    name: str
    value: Value
    words: str
    source: str


@dataclass(frozen=True, slots=True)
class RuleDifference:
    """One rule in which two sets differ: what it says, the two values (yes, no or a word) and its source."""

    name: str
    words: str
    left: str
    right: str
    source: str

    def __str__(self) -> str:
        return f"{self.name}: {self.words}: {self.left} | {self.right}"


def names() -> tuple[str, ...]:
    """Return the names of all rule sets."""
    return tuple(_SETS)


def family(name: str) -> str:
    """Return the engine family of a rule set's name: "sglang" or "vllm"; UnknownName for another one."""
    return "sglang" if isinstance(get(name), SglangRules) else "vllm"


def get(name: str, overrides: Mapping[str, object] | None = None) -> Rules:
    """Return the rule set called ``name`` with single rules overridden.

    Raises UnknownName for an unknown set and ConfigError (all faults at once) for unknown rules or values of a wrong
    kind. The result of an override is named ``name (rule: value, ...)``.
    """
    if name not in _SETS:
        raise UnknownName("rule set", name, _SETS)
    base = _SETS[name]
    if not overrides:
        return base
    faults = [fault for rule, value in overrides.items() if (fault := _fault(base, rule, value))]
    if faults:
        raise ConfigError(faults)
    changed = {rule: value for rule, value in overrides.items() if value != getattr(base, rule)}
    if not changed:
        return base
    label = ", ".join(f"{rule}: {_word(value)}" for rule, value in changed.items())
    return dataclasses.replace(base, name=f"{name} ({label})", **changed)  # type: ignore[arg-type]


def describe(name: str) -> list[Rule]:
    """Return every rule of a set in the order of its definition."""
    rules = get(name)
    return [
        Rule(field.name, getattr(rules, field.name), *_text(field))
        for field in dataclasses.fields(rules)
        if field.name != "name"
    ]


def describe_difference(left: str | Rules, right: str | Rules) -> list[RuleDifference]:
    """Return where two rule sets of one engine differ, in words; ConfigError if they belong to different engines."""
    a, b = (get(side) if isinstance(side, str) else side for side in (left, right))
    if type(a) is not type(b):
        raise ConfigError(f"rule sets of different engines have no rules in common: {a.name}, {b.name}")
    return [
        RuleDifference(field.name, words, _word(getattr(a, field.name)), _word(getattr(b, field.name)), source)
        for field in dataclasses.fields(a)
        for words, source in [_text(field)]
        if field.name != "name" and getattr(a, field.name) != getattr(b, field.name)
    ]


def _text(field: dataclasses.Field[object]) -> tuple[str, str]:
    return field.metadata.get("words", field.name.replace("_", " ")), field.metadata.get("source", "")


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _fault(base: Rules, rule: str, value: object) -> str:
    """Return what is wrong with an override, or an empty string."""
    known = {field.name: field for field in dataclasses.fields(base) if field.name != "name"}
    if rule not in known:
        return f"unknown rule '{rule}' of {base.name}{did_you_mean(rule, known)}; known: {', '.join(known)}"
    kind = type(getattr(base, rule))
    fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        fits = True
    if not fits:
        wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}[kind]
        return f"rule '{rule}' of {base.name} takes {wanted}, not {value!r}"
    choices = known[rule].metadata.get("choices", ())
    if choices and value not in choices:
        return f"rule '{rule}' of {base.name} is one of {', '.join(choices)}, not {value!r}"
    return f"rule '{rule}' of {base.name} cannot be negative: {value}" if kind is int and value < 0 else ""  # type: ignore[operator]
