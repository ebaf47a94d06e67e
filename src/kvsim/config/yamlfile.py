"""Reads a YAML or JSON file into plain data, keeping the line of every value; every YAML trap is a clear error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from kvsim.errors import ConfigError

MAX_BYTES = 16 << 20
MAX_NODES = 200_000
MAX_DEPTH = 60

Path_ = tuple[str | int, ...]
Lines = dict[Path_, int]

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_text(path: Path, what: str = "file") -> str:
    """Return a small text file's content. Raises ConfigError for folders, binaries, other encodings and huge files."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES >> 20} MiB: that is no {what}")
    if b"\0" in raw:
        raise ConfigError(f"{path}: a binary file, not a {what}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text (byte 0x{raw[error.start]:02x})") from None


def parse_yaml(text: str, origin: str) -> tuple[dict[str, Any], Lines]:
    """Return the mapping in ``text`` and the line of every path in it. Raises ConfigError with file and line."""
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{origin}:{line}: not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{origin}: not valid YAML: {error}") from None
    if node is None:
        raise ConfigError(f"{origin}: empty")
    reader = _Reader(origin)
    data = reader.build(node, (), 0)
    if not isinstance(data, dict):
        raise ConfigError(f"{origin}:1: must be a mapping of keys to values, not a {type(data).__name__}")
    if reader.faults:
        raise ConfigError(reader.faults)
    return data, reader.lines


def parse_scalar(text: str) -> Any:
    """Return the value YAML gives to one scalar or flow collection (``--set key=value``); text as it is if it is none."""
    try:
        node = yaml.compose(text, Loader=_Loader)
        return None if node is None else _Reader("--set").build(node, (), 0)
    except (yaml.YAMLError, ConfigError, RecursionError, ValueError):
        return text


class _Reader:
    """Builds plain data from a YAML node graph, counting what aliases expand to."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.lines: Lines = {}
        self.faults: list[str] = []
        self.nodes = 0
        self._construct = yaml.SafeLoader("")

    def build(self, node: yaml.Node, path: Path_, depth: int) -> Any:
        line = node.start_mark.line + 1
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise ConfigError(f"{self.origin}:{line}: too large once its aliases are expanded")
        if depth > MAX_DEPTH:
            raise ConfigError(f"{self.origin}:{line}: nested more than {MAX_DEPTH} deep")
        self.lines.setdefault(path, line)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(child, (*path, i), depth + 1) for i, child in enumerate(node.value)]
        return self._scalar(node, line)

    def _mapping(self, node: yaml.MappingNode, path: Path_, depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.faults.append(f"{self.origin}:{line}: a key must be text")
                continue
            key = str(key_node.value)
            if key in out:
                self.faults.append(
                    f"{self.origin}:{line}: {'.'.join(map(str, (*path, key)))} is given twice (first on line {self.lines[(*path, key)]})"
                )
                continue
            self.lines[(*path, key)] = line
            out[key] = self.build(value_node, (*path, key), depth + 1)
        return out

    def _scalar(self, node: yaml.Node, line: int) -> Any:
        tag = node.tag
        if tag == "tag:yaml.org,2002:timestamp":
            return node.value
        if not tag.startswith("tag:yaml.org,2002:"):
            raise ConfigError(f"{self.origin}:{line}: the tag {tag} is not allowed")
        try:
            return self._construct.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            raise ConfigError(f"{self.origin}:{line}: {node.value!r:.80} cannot be read: {error}") from None
