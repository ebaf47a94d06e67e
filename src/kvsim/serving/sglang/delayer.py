"""The prefill delayer of DP attention: prefills wait while only some ranks could prefill (``--enable-prefill-delayer``).

Engine: srt/managers/prefill_delayer.py. All ranks step together, so one rank's prefill holds up every other rank's
decode step; waiting a few passes lets prefills coincide. The engine asks each rank inside its admission test; here a
rank could prefill if it has a queue or a chunk and its batch is not full.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.serving.sglang.scheduler import SglangScheduler

MOST_DELAY_PASSES = 30


class PrefillDelayer:
    """Decides before each common iteration whether new prefills wait; at most ``most_passes`` times in a row."""

    def __init__(self, ranks: Sequence[SglangScheduler], most_passes: int = MOST_DELAY_PASSES) -> None:
        self.ranks, self.most_passes = ranks, most_passes
        self.passes = 0

    def before_plan(self) -> None:
        """Hold the ranks' new prefills, or let them go; call it before the ranks plan."""
        ready = sum(rank.could_prefill() for rank in self.ranks)
        held = 0 < ready < len(self.ranks) and self.passes < self.most_passes
        self.passes = self.passes + 1 if held else 0
        for rank in self.ranks:
            rank.prefill_held = held
