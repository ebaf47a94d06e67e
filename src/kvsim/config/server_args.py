"""A server's arguments as data: the YAML or JSON of ``--config``, or what a running server returns about itself (/get_server_info)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.config.command import ParsedCommand
from kvsim.config.flags_sglang import LISTS, NOT_MODELLED, NOTED_SWITCHES, NOTED_VALUES, SPELLINGS, SWITCHES, VALUES
from kvsim.config.yamlfile import parse_yaml, read_text
from kvsim.errors import ConfigError

#: Facts a running server adds to its arguments.
PRINTED = {"max_total_num_tokens": "max_total_num_tokens"}


def is_server_args(text: str) -> bool:
    """Tell whether a text is arguments as data (an object, or the name of a YAML or JSON file) rather than a command."""
    stripped = text.strip()
    return stripped.startswith("{") or ("\n" not in stripped and " " not in stripped and stripped.endswith((".yaml", ".yml", ".json")))


def parse_server_args(text: str) -> ParsedCommand:
    """Return what server arguments say. Raises ConfigError for a bad file; arguments without effect are listed."""
    stripped = text.strip()
    if stripped.startswith("{"):
        data, _ = parse_yaml(stripped, "engine.command")
    else:
        data, _ = parse_yaml(read_text(Path(stripped), "server arguments"), stripped)
    inner = data.get("server_args")
    return _read({**data, **inner} if isinstance(inner, Mapping) else data)


def _read(data: Mapping[str, Any]) -> ParsedCommand:
    out = ParsedCommand()
    enabled = False
    faults: list[str] = []
    flat: dict[str, Any] = {}
    for key, value in data.items():
        flag = "--" + str(key).replace("_", "-")
        if value is None or key == "server_args":
            continue
        if flag == "--enable-hierarchical-cache":
            enabled = bool(value)
        elif flag in VALUES or flag in LISTS:
            spelled = SPELLINGS.get(flag, {}).get(str(value), value)
            if spelled is not None:
                flat[VALUES.get(flag) or LISTS[flag]] = spelled
        elif flag in SWITCHES:
            if value is True:
                flat[SWITCHES[flag]] = True
        elif key in PRINTED:
            flat[PRINTED[key]] = value
        elif flag in ("--model-path", "--model"):
            out.model = str(value)
        elif value is not False and (flag in NOTED_VALUES or flag in NOTED_SWITCHES):
            out.notes.append(f"{key}: {value}: {NOTED_VALUES.get(flag) or NOTED_SWITCHES[flag]}")
        elif value is not False and flag in NOT_MODELLED and str(value) != NOT_MODELLED[flag][1]:
            faults.append(f"engine.command: {key}: {value}: {NOT_MODELLED[flag][0]}")
        else:
            out.without_effect.append(flag)
    if faults:
        raise ConfigError(faults)
    if not flat and not enabled:
        raise ConfigError(
            "engine.command: no argument of a server that is known here; expected keys like tp_size, mem_fraction_static, hicache_ratio"
        )
    for path, value in flat.items():
        block, _, name = path.rpartition(".")
        (out.engine.setdefault(block, {}) if block else out.engine)[name] = value
    hicache = out.engine.setdefault("hicache", {})
    if enabled:
        hicache.setdefault("ratio", 2.0)
    else:
        hicache["ratio"] = 0
        hicache.pop("size", None)
    return out
