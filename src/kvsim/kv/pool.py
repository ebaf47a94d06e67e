"""The two pools and the counters of one cache, as plain integers (tokens).

Engine: 0.5.9 ``mem_cache/allocator.py``, ``memory_pool_host.py``; 0.5.23 ``allocator/``, ``pool_host/``. Which slot a
token gets decides nothing here, so a pool is a number. Conservation: free + evictable + protected + private slots of
requests = ``device_tokens``; ``host_free`` + host copies in the tree = ``host_tokens``.
"""

from __future__ import annotations

from kvsim.errors import InvariantError


class Pools:
    """Device and host slots, and what happened to them so far (cumulative counters)."""

    def __init__(self, page: int, device_tokens: int, host_tokens: int) -> None:
        self.page = page
        self.device_tokens = self.free = device_tokens - device_tokens % page
        self.host_tokens = self.host_free = host_tokens - host_tokens % page
        self.evictable = self.protected = 0
        self.demoted = self.dropped = self.host_evicted = self.host_duplicates = 0
        self.backed_up = self.loaded = self.write_failures = self.load_failures = 0

    @property
    def device_used(self) -> int:
        """Device slots taken, private ones of requests included."""
        return self.device_tokens - self.free

    @property
    def device_evictable(self) -> int:
        """Cached device tokens that nobody holds (``evictable``)."""
        return self.evictable

    @property
    def host_used(self) -> int:
        """Host slots taken."""
        return self.host_tokens - self.host_free

    def pages_up(self, tokens: int) -> int:
        """Return ``tokens`` rounded up to whole pages."""
        return tokens + -tokens % self.page

    def take(self, slots: int) -> bool:
        """Take ``slots`` device slots (whole pages); False, and nothing taken, if they are not free."""
        if slots > self.free:
            return False
        self.free -= slots
        return True

    def give(self, slots: int) -> None:
        """Return device slots."""
        self.free += slots
        if self.free > self.device_tokens:
            raise InvariantError(f"{self.free} free device slots of {self.device_tokens}")
