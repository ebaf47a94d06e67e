"""Shared fixtures: where the recordings, cases and traces are."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).parent))

from module_state import kept  # noqa: E402


def shared_folder() -> Path | None:
    """Return the folder with recordings and measurements (KVSIM_SHARED, else ../shared), or None."""
    given = os.environ.get("KVSIM_SHARED")
    folder = Path(given) if given else ROOT.parent / "shared"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def shared() -> Path:
    """The shared folder; the test is skipped, visibly, where it is missing."""
    folder = shared_folder()
    if folder is None:
        pytest.skip("needs the shared folder (../shared or KVSIM_SHARED)")
    return folder


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope="module", autouse=True)
def modules_as_before() -> Iterator[None]:
    """Registries and module-level names of kvsim are the same after a test file as before it."""
    with kept():
        yield
