"""Shared fixtures: where the recordings, cases and traces are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from folders import ROOT, shared_folder
from module_state import kept


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
