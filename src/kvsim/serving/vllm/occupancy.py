"""Memory counters of a vLLM engine, in tokens, read off its pools."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.serving.vllm.core import VllmCore


class DeviceOccupancy:
    """Counters of an engine without a CPU tier: what is re-used is dropped."""

    demoted = host_used = host_evicted = backed_up = loaded = 0

    def __init__(self, core: VllmCore) -> None:
        self._pool = core.pool
        self._size = core.params.block_size

    @property
    def device_used(self) -> int:
        """Tokens of blocks in use or cached."""
        pool = self._pool
        return (pool.usable - pool.free + pool.idle_hashed) * self._size

    @property
    def device_evictable(self) -> int:
        """Tokens of cached blocks without a user."""
        return self._pool.idle_hashed * self._size

    @property
    def dropped(self) -> int:
        """Tokens that left the device and are lost."""
        return self._pool.evicted * self._size


class VllmOccupancy:
    """Implements ``serving.port.Occupancy``.

    Blocks count whole. ``device_used``: blocks in use or with a hash; ``device_evictable``: those with a hash and no user.
    A block re-used for something else is ``demoted`` if the CPU tier holds its content when it is counted, else
    ``dropped``; offloaded blocks of several GPU blocks are not told apart: there all of it counts as dropped.
    """

    def __init__(self, core: VllmCore) -> None:
        self._core = core
        self._size = core.params.block_size
        self._demoted = 0
        core.pool.lost = []

    @property
    def device_used(self) -> int:
        """Tokens of blocks in use or cached."""
        pool = self._core.pool
        return (pool.usable - pool.free + pool.idle_hashed) * self._size

    @property
    def device_evictable(self) -> int:
        """Tokens of cached blocks without a user."""
        return self._core.pool.idle_hashed * self._size

    @property
    def host_used(self) -> int:
        """Tokens resident on the CPU, unfinished stores included."""
        return self._core.connector.host_tokens()

    @property
    def demoted(self) -> int:
        """Tokens that left the device while the CPU held them."""
        self._sort_lost()
        return self._demoted * self._size

    @property
    def dropped(self) -> int:
        """Tokens that left the device and are lost."""
        self._sort_lost()
        return (self._core.pool.evicted - self._demoted) * self._size

    def _sort_lost(self) -> None:
        lost = self._core.pool.lost
        if lost:
            for first, count in lost:
                self._demoted += self._core.connector.resident_among(first, count)
            lost.clear()

    @property
    def host_evicted(self) -> int:
        """Tokens that left the CPU tier."""
        return self._core.connector.host_evicted_tokens()

    @property
    def backed_up(self) -> int:
        """Tokens whose copy to the CPU was decided."""
        return self._core.connector.stored_tokens

    @property
    def loaded(self) -> int:
        """Tokens whose copy from the CPU was decided."""
        return self._core.connector.loaded_tokens
