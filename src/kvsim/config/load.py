"""From a file, a name, a launch command or plain data to a validated ``Scenario``; every fault at once, with file and line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvsim import bundled
from kvsim.config.faults import faults_of
from kvsim.config.schema import Scenario
from kvsim.config.yamlfile import Lines, parse_scalar, parse_yaml, read_text
from kvsim.errors import ConfigError


def load(source: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """Return the scenario in a file or under a bundled name, with ``path=value`` overrides.

    Relative paths inside (trace, model, include) are relative to the file. Raises ConfigError with all faults at once.
    """
    path = bundled.find("experiments", str(source), "scenario")
    data, lines = parse_yaml(read_text(path, "scenario"), str(path))
    return load_data(data, overrides, str(path), lines)


def load_data(data: dict[str, Any], overrides: Sequence[str] = (), origin: str = "scenario", lines: Lines | None = None) -> Scenario:
    """Return the scenario that plain data describes."""
    base = Path(origin).parent if lines is not None else Path()
    data = _included(data, base, origin)
    data = apply_overrides(data, overrides)
    data = _with_command(data)
    _anchor_paths(data, base, overrides)
    return _validated(data, lines or {}, origin)


def load_parts(hardware: str, model: str, command: str | None = None, overrides: Sequence[str] = ()) -> Scenario:
    """Return the scenario of a machine and a model, with the memory figures of the bundled scenario of that pair if there is one."""
    engine: dict[str, Any] = {"command": command} if command else {}
    if _family_of_parts(command, overrides) == "sglang":
        from kvsim.config.command import engine_of_command

        said = engine_of_command(command) if command else {}  # what the command says wins over the figures of the pair
        engine = _merged({"hicache": {"ratio": 0}, **_memory_of_pair(hardware, model)}, {**said, **engine})
    return load_data({"hardware": hardware, "model": model, "engine": engine}, overrides, "--hardware/--model")


def _family_of_parts(command: str | None, overrides: Sequence[str]) -> str:
    """Return the engine family that overrides or a command choose: another engine's defaults must not be mixed in."""
    from kvsim.config.schema.family import family_of

    data = apply_overrides(
        {"engine": {"command": command} if command else {}}, [text for text in overrides if text.startswith("engine.rules=")]
    )
    return family_of(_with_command(data)["engine"])


def _memory_of_pair(hardware: str, model: str) -> dict[str, Any]:
    """Return engine figures (T, W, mem fraction, graph size) of a bundled scenario of the same machine and model."""
    for name in bundled.names("experiments"):
        path = bundled.find("experiments", name, "scenario")
        data, _ = parse_yaml(read_text(path), str(path))
        if data.get("hardware") == hardware and data.get("model") == model:
            engine = data.get("engine") or {}
            kept = (
                "tp",
                "mem_fraction_static",
                "cuda_graph_max_bs",
                "free_before_weights",
                "weights_resident",
                "memory_source",
                "attention_backend",
            )
            return {key: engine[key] for key in kept if key in engine}
    return {}


def apply_overrides(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy of ``data`` with ``path=value`` settings; values are read as YAML. Raises ConfigError."""
    faults = []
    out: dict[str, Any] = _copied(data)
    for text in overrides:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            faults.append(f"--set {text!r:.100}: must be path=value, for example engine.hicache.ratio=4")
            continue
        steps = key.strip().split(".")
        at = out
        for depth, step in enumerate(steps[:-1]):
            inner = at.get(step)
            if isinstance(inner, str) and step in ("hardware", "model"):
                inner = at[step] = {"base": inner}
            if inner is None:
                inner = at[step] = {}
            if not isinstance(inner, dict):
                faults.append(f"--set {text!r:.100}: {'.'.join(steps[: depth + 1])} is a value, not a block")
                break
            at = inner
        else:
            at[steps[-1]] = parse_scalar(value)
    if faults:
        raise ConfigError(faults)
    return out


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def _included(data: dict[str, Any], base: Path, origin: str, depth: int = 0) -> dict[str, Any]:
    """Merge the files under ``include`` beneath ``data`` (what stands in the file wins)."""
    names = data.get("include") or []
    if not isinstance(names, list):
        return data
    if depth > 8:
        raise ConfigError(f"{origin}: includes go more than 8 deep (a circle?)")
    merged: dict[str, Any] = {}
    for name in names:
        path = base / str(name)
        inner, _ = parse_yaml(read_text(path, "scenario overlay"), str(path))
        merged = _merged(merged, _included(inner, path.parent, str(path), depth + 1))
    return _merged(merged, {key: value for key, value in data.items() if key != "include"}) if names else data


def _merged(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    out = dict(low)
    for key, value in high.items():
        below = out.get(key)
        out[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return out


def _with_command(data: dict[str, Any]) -> dict[str, Any]:
    """Merge what a launch command says beneath the engine block's own keys."""
    engine = data.get("engine")
    if not isinstance(engine, dict) or not isinstance(engine.get("command"), str):
        return data
    from kvsim.config.command import engine_of_command

    return {**data, "engine": _merged(engine_of_command(engine["command"]), engine)}


def _anchor_paths(data: dict[str, Any], base: Path, overrides: Sequence[str]) -> None:
    """Make relative file names of the file relative to it (those given by --set stay relative to where the user stands)."""
    given = {text.partition("=")[0].strip() for text in overrides}
    for block, key in (("workload", "trace"), ("costs", "file")):
        inner = data.get(block)
        if isinstance(inner, dict) and isinstance(inner.get(key), str) and f"{block}.{key}" not in given:
            candidate = base / inner[key]
            if inner[key] != "-" and candidate.exists():
                data[block] = {**inner, key: str(candidate)}


def _validated(data: dict[str, Any], lines: Lines, origin: str) -> Scenario:
    from pydantic import ValidationError

    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        raise ConfigError(faults_of(error, data, lines, origin, Scenario)) from None
    except RecursionError:
        raise ConfigError(f"{origin}: nested too deep") from None
