"""Turns pydantic's findings into sentences: file, line, value, what is allowed, "did you mean"."""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any

from kvsim.errors import did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

    from kvsim.config.yamlfile import Lines


def faults_of(error: ValidationError, data: dict[str, Any], lines: Lines, origin: str, schema: type[BaseModel]) -> list[str]:
    """Return one sentence per fault, in the order of the file."""
    found: dict[str, int] = {}
    for fault in error.errors(include_url=False):
        path = _path_in_data(fault["loc"], data)
        if fault["type"] == "value_error" and isinstance(_value_at(path[:-1], data), dict) and path[-1:] and path[-1] not in _value_at(path[:-1], data):
            path = path[:-1]  # the name of a union's member: the fault is the whole block's
        line = _line_of(path, lines)
        where = f"{origin}:{line}" if line else origin
        sentence = f"{where}: {'.'.join(map(str, path)) or 'scenario'}: {_words(fault, path, data, schema)}"
        found.setdefault(sentence, line or 0)
    return sorted(found, key=lambda sentence: found[sentence])


def _path_in_data(loc: tuple[int | str, ...], data: Any) -> tuple[int | str, ...]:
    """Drop union tags and validator names from pydantic's location: keep what is a key of the data (or the missing last one)."""
    path: list[int | str] = []
    at = data
    for i, step in enumerate(loc):
        found, inner = _step(at, step)
        if found:
            path.append(step)
            at = inner
        elif i == len(loc) - 1 and isinstance(at, dict) and isinstance(step, str) and step.isidentifier():
            path.append(step)
    return tuple(path)


def _step(at: Any, step: int | str) -> tuple[bool, Any]:
    """Return whether ``at`` has ``step``, and what is there."""
    if isinstance(at, dict):
        return step in at, at.get(step)
    if isinstance(at, list) and isinstance(step, int) and step < len(at):
        return True, at[step]
    return False, None


def _line_of(path: tuple[int | str, ...], lines: Lines) -> int | None:
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path)


def _value_at(path: tuple[int | str, ...], data: Any) -> Any:
    for step in path:
        if isinstance(data, dict):
            data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            return None
    return data


def _words(fault: Any, path: tuple[int | str, ...], data: dict[str, Any], schema: type[BaseModel]) -> str:
    kind, context = fault["type"], fault.get("ctx") or {}
    value = repr(_value_at(path, data))
    value = value if len(value) <= 60 else value[:57] + "..."
    if kind == "extra_forbidden":
        known = _known_keys(path[:-1], data, schema)
        if path[:-1] == ("engine",) and (words := _other_family(str(path[-1]), data)):
            return words
        hint = did_you_mean(str(path[-1]), known)
        return f"unknown key{hint}; allowed here: {', '.join(sorted(known))}" if known else "unknown key"
    if kind == "missing":
        return "is missing"
    if kind == "literal_error":
        return f"{value} is not allowed; allowed: {context.get('expected', '').replace(' or ', ', ')}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return f"unknown kind; allowed: {context.get('expected_tags', '')}"
    if kind == "value_error":
        said = context.get("error", fault["msg"])
        return str(said) if isinstance(_value_at(path, data), dict) else f"{value}: {said}"
    return f"{value}: {fault['msg'][0].lower()}{fault['msg'][1:]}"


def _other_family(key: str, data: dict[str, Any]) -> str:
    """Say that a key of the engine block belongs to another engine (the family was changed and the key stayed)."""
    from kvsim.config.schema.family import family_of, family_with_key

    family = family_of(data.get("engine"))
    other = family_with_key(key, family)
    if other is None:
        return ""
    return f"is a key of {other}'s engine block, and engine.rules chooses {family}: remove it"


def _known_keys(path: tuple[int | str, ...], data: Any, schema: type[BaseModel]) -> list[str]:
    """Return the keys allowed in the block at ``path``."""
    block: Any = schema
    at = data
    for step in path:
        at = at.get(step) if isinstance(at, dict) else None
        field = getattr(block, "model_fields", {}).get(step)
        block = _block_of(field.annotation, at) if field is not None else None
        if block is None:
            return []
    return list(block.model_fields)


def _block_of(annotation: Any, value: Any) -> Any:
    """Return the block class an annotation stands for; of several the one whose kind the value names."""
    from pydantic import BaseModel

    if isinstance(annotation, type):
        return annotation if issubclass(annotation, BaseModel) else None
    choices = [block for inner in typing.get_args(annotation) if (block := _block_of(inner, value)) is not None]
    from kvsim.config.schema.family import FAMILIES, family_of

    if len(choices) > 1 and set(choices) == set(FAMILIES.values()):
        return FAMILIES[family_of(value)]
    wanted = value.get("kind") if isinstance(value, dict) else None
    for block in choices:
        kind = block.model_fields.get("kind")
        if kind is not None and wanted in (typing.get_args(kind.annotation) or (kind.default,)):
            return block
    return choices[0] if choices else None
