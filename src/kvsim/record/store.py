"""A run directory: manifest.json, scenario.yaml, the tables as CSV (or Parquet), summary.json. Same scenario, same bytes."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import ConfigError
from kvsim.record.recording import (
    CACHE_COLUMNS,
    GAP_COLUMNS,
    REQUEST_COLUMNS,
    STEP_COLUMNS,
    TRANSFER_COLUMNS,
    Recording,
    RequestRow,
)

if TYPE_CHECKING:
    import pandas as pd

TABLES: dict[str, tuple[str, ...]] = {
    "requests": REQUEST_COLUMNS,
    "steps": STEP_COLUMNS,
    "transfers": TRANSFER_COLUMNS,
    "cache": CACHE_COLUMNS,
    "gaps": GAP_COLUMNS,
}


def write_run(recording: Recording, summary: dict[str, Any], folder: str | Path, *, table_format: str = "csv") -> Path:
    """Write a run directory and return it. Files are written beside and renamed, so a reader never sees half a file.

    ``table_format``: "csv" or "parquet" (needs the extra). The manifest holds versions, seed and digests, no wall clock.
    """
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target}: is a file, not a folder to write a run into")
    target.mkdir(parents=True, exist_ok=True)
    digests = {}
    for name in TABLES:
        path = target / f"{name}.{table_format}"
        if table_format == "csv":
            _atomic(path, lambda tmp, name=name: _write_csv(tmp, name, recording))
        else:
            _atomic(path, lambda tmp, name=name: frame(recording, name).to_parquet(tmp, compression="zstd", index=False))
        digests[path.name] = _digest(path)
    _atomic(target / "scenario.yaml", lambda tmp: _write_yaml(tmp, recording.resolved))
    _write_json(target / "summary.json", summary)
    _write_json(target / "manifest.json", {**provenance(recording), "run": recording.manifest, "tables": digests})
    return target


def provenance(recording: Recording) -> dict[str, Any]:
    """Return what is needed to make a recording again: versions, seed and the digest of the resolved scenario."""
    return {**provenance_of(recording.resolved), "events": recording.events}


def provenance_of(resolved: dict[str, Any]) -> dict[str, Any]:
    """Return versions, seed and digest of a resolved scenario."""
    return {
        "kvsim": metadata.version("kvsim"),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "simpy": metadata.version("simpy"),
        "seed": (resolved.get("run") or {}).get("seed"),
        "scenario_digest": digest_of(resolved),
    }


def digest_of(data: Any) -> str:
    """Return the SHA-256 of plain data as canonical JSON."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":"), default=str).encode()).hexdigest()


def read_run(folder: str | Path) -> tuple[Recording, dict[str, Any]]:
    """Return the recording and the summary of a run directory.

    Raises ConfigError naming the file when the folder is not one or a table is damaged.
    """
    source = Path(folder)
    manifest = _read_json(source / "manifest.json")
    import yaml

    try:
        resolved = yaml.load((source / "scenario.yaml").read_text("utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{source / 'scenario.yaml'}: cannot be read: {error}") from None
    recording = Recording(resolved, manifest=manifest.get("run", {}), events=manifest.get("events", 0))
    for name in TABLES:
        rows = _read_table(source, name)
        if name == "requests":
            recording.requests = [RequestRow(*row) for row in rows]
        else:
            getattr(recording, name).extend(rows)
    return recording, _read_json(source / "summary.json")


def frame(recording: Recording, table: str) -> pd.DataFrame:
    """Return one table (requests, steps, transfers, cache, gaps) as a pandas frame."""
    import pandas as pd

    return pd.DataFrame(list(_rows(recording, table)), columns=list(TABLES[table]))


def _rows(recording: Recording, table: str) -> Iterable[Sequence[Any]]:
    if table == "requests":
        return ([getattr(row, name) for name in REQUEST_COLUMNS] for row in recording.requests)
    rows: list[tuple[Any, ...]] = getattr(recording, table)
    return rows


def _write_csv(path: Path, table: str, recording: Recording) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(TABLES[table])
        writer.writerows(_rows(recording, table))


_TEXT = {"id", "session", "tenant", "status", "reason", "kind", "direction"}


def _read_table(folder: Path, name: str) -> list[tuple[Any, ...]]:
    path = folder / f"{name}.csv"
    if not path.exists() and (folder / f"{name}.parquet").exists():
        import pandas as pd

        table = pd.read_parquet(folder / f"{name}.parquet").astype(object)
        return [tuple(None if value is None or value != value else value for value in row) for row in table.itertuples(index=False)]
    columns = TABLES[name]
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            if tuple(next(reader, ())) != columns:
                raise ConfigError(f"{path}:1: the columns must be {', '.join(columns)}")
            return [
                tuple(
                    (value if key in _TEXT else int(value)) if value or key == "id" or (key in _TEXT and key != "session") else None
                    for key, value in zip(columns, row, strict=True)
                )
                for row in reader
            ]
    except (OSError, ValueError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: damaged table: {error}") from None


def _write_yaml(path: Path, data: Any) -> None:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    path.write_text(yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=True, width=100), "utf-8")


def _write_json(path: Path, data: Any) -> None:
    _atomic(path, lambda tmp: tmp.write_text(json.dumps(data, indent=2, allow_nan=False, default=str) + "\n", "utf-8"))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must hold an object")
    return data


def _atomic(path: Path, write: Any) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
