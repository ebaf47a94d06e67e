"""Finds hardware, models, workloads and experiments by name: in a source checkout and in an installed package alike."""

from __future__ import annotations

from pathlib import Path

from kvsim.errors import ConfigError, UnknownName

PACKAGE = Path(__file__).resolve().parent
KINDS = {"hardware": ".yaml", "workloads": ".yaml", "experiments": "/scenario.yaml"}


def folder(kind: str) -> Path:
    """Return the folder that holds what is bundled of one kind (hardware, workloads, experiments, models)."""
    if kind == "models":
        return PACKAGE / "models"
    installed = PACKAGE / "data" / kind
    return installed if installed.is_dir() else PACKAGE.parents[1] / kind


def names(kind: str) -> list[str]:
    """Return the bundled names of one kind, sorted."""
    home = folder(kind)
    if kind == "experiments":
        return sorted(path.parent.name for path in home.glob("*/scenario.yaml"))
    pattern = "*.json" if kind == "models" else "*.yaml"
    return sorted(path.stem for path in home.glob(pattern))


def find(kind: str, name: str, noun: str) -> Path:
    """Return the file of a bundled name or of a path. Raises UnknownName or ConfigError (a folder, a missing file)."""
    home = folder(kind)
    suffix = ".json" if kind == "models" else KINDS[kind]
    bundled = home / f"{name}{suffix}" if "/" not in name and "\\" not in name and "\0" not in name else None
    if bundled is not None and len(name) < 200 and bundled.is_file():
        return bundled
    if "\0" in name or len(name) > 4096:
        raise ConfigError(f"{noun}: that is no file name")
    path = Path(name)
    if path.is_file():
        return path
    if path.is_dir():
        inner = path / ("config.json" if kind == "models" else "scenario.yaml")
        if inner.is_file() and kind in ("models", "experiments"):
            return inner
        raise ConfigError(f"{name}: is a folder, not a {noun} file")
    if "/" in name or name.endswith((".yaml", ".yml", ".json")):
        raise ConfigError(f"{name}: no such {noun} file")
    raise UnknownName(noun, name, names(kind))
