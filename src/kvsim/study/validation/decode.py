"""S03, S04: the decode matrix and its repeats."""

from __future__ import annotations

from kvsim.study.validation.core import Scenario
from kvsim.study.validation.kimi import scenarios_of


def scenarios() -> list[Scenario]:
    """Return S03 and S04."""
    return list(scenarios_of(("S03", "S04")))
