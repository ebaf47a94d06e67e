"""Keeps results by the digest of what made them, so that an interrupted study resumes and a changed one never reuses a stale result."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from kvsim import __version__


class Store:
    """A folder of results. A result's name is the digest of scenario data, settings, replication, trace content and version.

    Files are written beside and renamed: a killed study leaves whole results or none.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._traces: dict[str, str] = {}

    def _path(self, task: Any) -> Path:
        base, sets, replication = task
        trace = next(
            (text.partition("=")[2] for text in sets if text.startswith("workload.trace=")), (base.get("workload") or {}).get("trace")
        )
        key = json.dumps([__version__, base, sets, replication, self._trace_digest(trace)], sort_keys=True, default=str)
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"

    def _trace_digest(self, trace: str | None) -> str:
        if not trace:
            return ""
        if trace not in self._traces:
            digest = hashlib.sha256()
            try:
                with Path(trace).open("rb") as file:
                    while block := file.read(1 << 20):
                        digest.update(block)
            except OSError:
                return "unreadable"
            self._traces[trace] = digest.hexdigest()
        return self._traces[trace]

    def find(self, task: Any) -> Any | None:
        """Return a kept outcome, or None."""
        try:
            return tuple(json.loads(self._path(task).read_text("utf-8")))
        except (OSError, ValueError):
            return None

    def keep(self, task: Any, outcome: Any) -> None:
        """Keep an outcome."""
        path = self._path(task)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(outcome, allow_nan=False), "utf-8")
        partial.replace(path)
