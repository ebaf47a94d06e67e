"""Keeps results by the digest of what made them, so that an interrupted study resumes and a changed one never reuses a stale result."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from kvsim import __version__
from kvsim.study.point import Task, resolve_task


class Store:
    """A folder of results. A result's name is the digest of the resolved scenario (profiles and seed inside), the content of every file
    it names (trace, step-time table), the replication and kvsim's version.

    Files are written beside and renamed: a killed study leaves whole results or none.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, str] = {}
        self._names: dict[str, Path] = {}

    def path(self, task: Task) -> Path:
        """Return where a task's result is kept."""
        plain = json.dumps(task, sort_keys=True, default=str)
        if plain not in self._names:
            resolved = resolve_task(task)
            files = [
                self._file_digest((resolved.data.get(block) or {}).get(key))
                for block, key in (("workload", "trace"), ("costs", "file"), ("run", "warm_start"))
            ]
            key = json.dumps([__version__, resolved.digest, task[2], files])
            self._names[plain] = self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
        return self._names[plain]

    def _file_digest(self, name: Any) -> str:
        if not name:
            return ""
        if name not in self._files:
            digest = hashlib.sha256()
            try:
                with Path(name).open("rb") as file:
                    while block := file.read(1 << 20):
                        digest.update(block)
            except OSError:
                return "no file"
            self._files[name] = digest.hexdigest()
        return self._files[name]

    def find(self, task: Task) -> Any | None:
        """Return a kept outcome, or None."""
        try:
            return tuple(json.loads(self.path(task).read_text("utf-8")))
        except (OSError, ValueError):
            return None

    def keep(self, task: Task, outcome: Any) -> None:
        """Keep an outcome."""
        path = self.path(task)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(outcome, allow_nan=False), "utf-8")
        partial.replace(path)
