"""Where the recordings, cases and traces are."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def shared_folder() -> Path | None:
    """Return the folder with recordings and measurements (KVSIM_SHARED, else ../shared), or None."""
    given = os.environ.get("KVSIM_SHARED")
    folder = Path(given) if given else ROOT.parent / "shared"
    return folder if folder.is_dir() else None
