"""What one pass decided, for comparison with a recording; only a replay asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.serving.vllm.state import VllmRequest


class Log:
    """The decisions of one pass, in order; ``clear`` starts the next one.

    ``finished``: (request, how); ``admitted``: (request, resumed, computed, tokens); ``loads``: (request, local,
    tokens); ``stored``: (request, offloaded blocks); ``refused``: requests whose store found no room;
    ``stored_blocks``: blocks of SimpleCPUOffload's store event; ``cpu_evicted``: CPU blocks; ``flushed``: jobs waited
    for (Simple: 1 = all).
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.finished: list[tuple[VllmRequest, str]] = []
        self.admitted: list[tuple[VllmRequest, bool, int, int]] = []
        self.loads: list[tuple[VllmRequest, int, int]] = []
        self.deferred: list[VllmRequest] = []
        self.stored: list[tuple[VllmRequest, int]] = []
        self.refused: list[VllmRequest] = []
        self.stored_blocks = 0
        self.cpu_evicted = 0
        self.flushed = 0
