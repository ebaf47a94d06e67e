"""The machine-readable block of a report: the complete scenario and manifest, so that the file alone makes its numbers
again.
"""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from kvsim.record.recording import Recording

BLOCK = "kvsim-scenario"


def script_safe(data: Any) -> str:
    """Return data as JSON that may stand inside a ``<script>`` element: no character of it can end the element."""
    text = json.dumps(data, allow_nan=False, default=str, separators=(",", ":"))
    return (
        text.replace("&", "\\u0026")
        .replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def block(recording: Recording, summary: dict[str, Any]) -> str:
    """Return the content of the block: the resolved scenario, the manifest with versions and seed, the summary."""
    from kvsim.record.store import provenance

    return script_safe(
        {
            "resolved": recording.resolved,
            "manifest": {**provenance(recording), "run": recording.manifest},
            "summary": summary,
        }
    )


class _Finder(HTMLParser):
    """Collects the text of the script element whose id is BLOCK."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.found: list[str] | None = None
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notice the start of the block."""
        if tag == "script" and dict(attrs).get("id") == BLOCK and self.found is None:
            self._inside, self.found = True, []

    def handle_endtag(self, tag: str) -> None:
        """Notice its end."""
        if tag == "script":
            self._inside = False

    def handle_data(self, data: str) -> None:
        """Keep its text."""
        if self._inside and self.found is not None:
            self.found.append(data)


def read_block(path: str | Path) -> dict[str, Any]:
    """Return the whole block of a report: ``resolved``, ``manifest``, ``summary``.

    Raises ConfigError if the file is not a report of kvsim or its block is damaged.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    finder = _Finder()
    finder.feed(text)
    if finder.found is None:
        raise ConfigError(f"{path}: is not a report made by kvsim (no block '{BLOCK}' in it)")
    try:
        data = json.loads("".join(finder.found))
    except ValueError as error:
        raise ConfigError(f"{path}: the block '{BLOCK}' is damaged: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("resolved"), dict):
        raise ConfigError(f"{path}: the block '{BLOCK}' holds no scenario")
    return data


def read_back(path: str | Path) -> dict[str, Any]:
    """Return the resolved scenario that a report was made from, as plain data."""
    resolved: dict[str, Any] = read_block(path)["resolved"]
    return resolved
