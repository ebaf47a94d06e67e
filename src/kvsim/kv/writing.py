"""Hits, backups (device to host), acknowledgements, write_back.

Engine: 0.5.9 ``hiradix_cache.py: _inc_hit_count, write_backup, writing_check``; 0.5.23 ``unified_radix_cache.py:
_execute_and_commit_kv_backup, check_hicache_events``, ``hybrid_cache_controller.py: start_writing``.
"""

from __future__ import annotations

from collections import deque

from kvsim.errors import InputError
from kvsim.kv.tiers import EngineFailure, Tiers, Transfers
from kvsim.kv.tree import Node
from kvsim.rules.sglang import SglangParams


class Writing(Tiers):
    """The device-to-host side. ``in_flight_writes``: nodes whose copy is not acknowledged, queued ones included."""

    def __init__(self, params: SglangParams, transfers: Transfers | None) -> None:
        super().__init__(params)
        rules = params.rules
        if self.hicache and transfers is None:
            raise InputError("a cache with a host tier needs transfers")
        self._transfers: Transfers = transfers  # type: ignore[assignment]
        self.in_flight_writes = 0
        self._queued_writes: list[Node] = []
        self._writes: deque[tuple[object, list[Node]]] = deque()
        self._threshold = rules.write_through_hits if params.write_policy == "write_through" else rules.selective_hits
        self._chains, self._merges = rules.backup_chain, rules.merge_writes
        self._counts = not self.write_back and (self.hicache or rules.plain_counts_hits)

    def _back_up(self, node: Node, now: int) -> None:
        """Copy ``node`` to the host, by rule its uncopied ancestors first; given up where no room can be made."""
        if not self._chains or node.parent.host:
            self._copy(node, now)
            return
        chain = [node]
        while not chain[-1].parent.host:
            chain.append(chain[-1].parent)
        while chain and self._copy(chain.pop(), now):
            pass

    def _copy(self, node: Node, now: int) -> bool:
        """Start or queue the copy of one node and lock its path until it is acknowledged; False: no host room."""
        if not self._take_host(node):
            return False
        self.lock(node)
        self.in_flight_writes += 1
        if self._merges:
            self._queued_writes.append(node)
        else:
            self._writes.append((self._transfers.write(node.size, now), [node]))
        return True

    def _take_host(self, node: Node) -> bool:
        """Take host slots for ``node``, evicting from the host if needed; its host copy counts from now on."""
        size = node.size
        if self.host_free < size:
            if self.rules.failed_attempts_count:
                self.write_failures += 1
            self.evict_host(size if self.rules.host_evicts_full_amount else size - self.host_free)
            if self.host_free < size:
                self.write_failures += 1
                return False
        self.host_free -= size
        self.backed_up += size
        node.host = True
        if self.on_event:
            self.on_event("backup", size, node.key[0][0])
        return True

    def flush(self, now: int) -> None:
        """Submit the queued copies as one operation (versions that merge; else nothing is queued)."""
        if self._queued_writes:
            nodes, self._queued_writes = self._queued_writes, []
            self._writes.append((self._transfers.write(sum(node.size for node in nodes), now), nodes))

    def _acknowledge_writes(self, now: int) -> None:
        """Unlock the nodes of the completed prefix of the queue of operations."""
        while self._writes and self._transfers.done(self._writes[0][0], now):
            _, nodes = self._writes.popleft()
            self.in_flight_writes -= len(nodes)
            for node in nodes:
                self.unlock(node)

    # -- write_back --

    def _write_now(self, node: Node, now: int) -> bool:
        """Copy a victim to the host; the scheduler blocks until it is there (``stall_until``)."""
        if not self._take_host(node):
            return False
        at = now
        if self.rules.write_back_one_by_one and self.stall_until > at:
            at = self.stall_until
        finish = self._transfers.finish_time(self._transfers.write(node.size, at), at)
        if finish > self.stall_until:
            self.stall_until = finish
        if self._reclaims:
            self._register(node)
        return True

    def evict(self, tokens: int, now: int) -> int:
        """Release at least ``tokens`` from the device, whole leaves in eviction order; return what was released.

        write_back copies dirty victims first, each alone or all together; together, they count as gone at once and
        leave after all their copies.
        """
        if not self.write_back:
            return super().evict(tokens, now)
        released = 0
        waiting: list[Node] = []
        kept: list[Node] = []
        at = max(now, self.stall_until)
        while released < tokens and (node := self._device_leaves.pop()) is not None:
            parent = node.parent
            clean = node.host
            if not clean and not self._write_now(node, at):
                if self._no_host_room(node):
                    released += node.size
                else:
                    kept.append(node)
                continue
            released += node.size
            if clean or self.rules.write_back_one_by_one:
                self._demote(node)
            else:
                waiting.append(node)
            self._one_kid_less(parent)
        for node in waiting:
            self._demote(node)
        for node in kept:
            self._device_leaves.push(node)
        return released

    def _no_host_room(self, node: Node) -> bool:
        """Drop a dirty victim that the host cannot take (one by one); else it stays; the unrepaired engine fails."""
        if self.rules.write_back_one_by_one:
            self._drop(node)
            return True
        if self._defects:
            raise EngineFailure(f"{self.rules.name} fails here: no host room for a victim of {node.size} tokens")
        return False
