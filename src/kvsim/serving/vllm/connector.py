"""What the scheduler asks of a KV connector, and the connector that does nothing (KVConnectorBase_V1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.content import Runs
    from kvsim.kv.blocks import Block
    from kvsim.serving.vllm.state import VllmRequest, VllmStep


class Connector:
    """No CPU tier. Subclasses override what they need; each method is called where the engine calls its counterpart.

    ``keeps_engine_stepping``: transfers in flight count as work of the engine loop.
    """

    present = False
    keeps_engine_stepping = False
    stored_tokens = 0
    loaded_tokens = 0

    def submitted(self, request: VllmRequest, content: Runs) -> None:
        """Learn that a request with this content (outputs included) arrived."""

    def lookup(self, request: VllmRequest, local: int) -> int | None:
        """Return the tokens beyond ``local`` hit tokens that can be loaded, or None: ask later."""
        return 0

    def load(self, request: VllmRequest, local: int, tokens: int) -> None:
        """Learn that a waiting request's load was allocated (update_state_after_alloc)."""

    def admitted(self, request: VllmRequest) -> None:
        """Learn that a request was admitted or started a load: its blocks were touched and allocated."""

    def preempted(self, request: VllmRequest) -> None:
        """Learn that a request lost its blocks."""

    def ended(self, request: VllmRequest) -> None:
        """Learn that a request ended (request_finished), before its blocks are released."""

    def build(self, step: VllmStep, now: int) -> None:
        """Decide this step's stores and submit what precedes the forward (build_connector_meta, start_load_kv)."""

    def forwarded(self, step: VllmStep, now: int) -> None:
        """Do what the worker does after the forward; what it reports goes to ``step.report`` (get_finished)."""

    def process(self, step: VllmStep, now: int) -> list[VllmRequest]:
        """Act on the report of ``step`` (update_connector_output); return the requests whose load completed."""
        return []

    def busy(self) -> bool:
        """Tell whether transfers are in flight."""
        return False

    def state(self) -> tuple[int, ...]:
        """Return the connector part of a recording's state."""
        return ()

    def indifferent(self, request: VllmRequest) -> bool:
        """Tell whether the connector does nothing about a request as long as it only decodes."""
        return True

    def quiet(self, waiting: bool) -> bool:
        """Tell whether passes that only decode leave the connector as it is. ``waiting``: somebody is in a queue."""
        return True

    def reset(self) -> None:
        """Forget what the CPU tier could evict now."""

    def poll_idle(self, now: int) -> None:
        """Catch up with what an idle engine loop would have processed by ``now``."""

    def held_blocks(self) -> list[Block]:
        """Return the device blocks that copies hold a reference of (for the invariants)."""
        return []

    # --- counters, in tokens
    def host_tokens(self) -> int:
        """Return the tokens resident on the CPU."""
        return 0

    def host_evicted_tokens(self) -> int:
        """Return the tokens that left the CPU tier so far."""
        return 0

    def resident_among(self, first: int, count: int) -> int:
        """Return how many of the blocks named first .. first + count - 1 the CPU tier holds."""
        return 0
