"""Fixtures for views: one fabricated run, its summary and its resolved scenario."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import report_world

from kvsim.config.resolved import Resolved
from kvsim.measure.summary import summarise
from kvsim.record.recording import Recording


@pytest.fixture(scope="session")
def fabricated() -> Recording:
    return report_world.fabricate(60)


@pytest.fixture(scope="session")
def fabricated_summary(fabricated: Recording) -> dict[str, Any]:
    return summarise(fabricated)


@pytest.fixture(scope="session")
def fabricated_resolved() -> Resolved:
    return report_world.resolved()
