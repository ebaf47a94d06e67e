"""Load-back (host to device): in admission, all or nothing; merged per batch, acknowledged at the event check.

Engine: 0.5.9 ``hiradix_cache.py: load_back, init_load_back, loading_check``; 0.5.23 ``unified_radix_cache.py:
load_back``.
"""

from __future__ import annotations

from collections import deque

from kvsim.kv.tiers import EngineFailure, Transfers
from kvsim.kv.tree import Node
from kvsim.kv.writing import Writing
from kvsim.rules.sglang import SglangParams


class Load:
    """One request's load-back: the locked last node, the nodes that return, its tokens."""

    __slots__ = ("node", "nodes", "tokens")

    def __init__(self, node: Node, nodes: list[Node], tokens: int) -> None:
        self.node, self.nodes, self.tokens = node, nodes, tokens


class Match:
    """What of a prefix is cached: hit tokens per tier, the deepest node on the device, the deepest node at all."""

    __slots__ = ("best_node", "device", "device_node", "host")

    def __init__(self, device: int, host: int, device_node: Node, best_node: Node) -> None:
        self.device, self.host, self.device_node, self.best_node = device, host, device_node, best_node


class Loading(Writing):
    """The host-to-device side. ``in_flight_loads``: load-backs (one per request) not acknowledged, queued included."""

    def __init__(self, params: SglangParams, transfers: Transfers | None) -> None:
        super().__init__(params, transfers)
        self.load_back_threshold = params.load_back_threshold
        self.in_flight_loads = 0
        self._queued_loads: list[Load] = []
        self._loads: deque[tuple[object, list[Load]]] = deque()

    @property
    def queued_loads(self) -> int:
        """Load-backs whose copy has not been started."""
        return len(self._queued_loads)

    def _restore_path(self, match: Match, now: int) -> int:
        """Load ``match``'s host part back; return its tokens, 0 if refused (too short, or no device room)."""
        best, tokens = match.best_node, match.host
        if tokens < self.load_back_threshold or not tokens:
            return 0
        if not self._defects:
            self.lock(best)
        nodes: list[Node] = []
        step = best
        while not step.device:
            nodes.append(step)
            step = step.parent
        if not self._room_for_load(tokens, now):
            if not self._defects:
                self.unlock(best)
            return 0
        self._check_source(nodes)
        self._admit(best, nodes, tokens)
        return tokens

    def _room_for_load(self, tokens: int, now: int) -> bool:
        if self.free < tokens:
            if self.rules.failed_attempts_count:
                self.load_failures += 1
            self.evict(tokens if self.rules.load_back_evicts_full_amount else tokens - self.free, now)
            if self.free < tokens:
                self.load_failures += 1
                return False
        return True

    def _check_source(self, nodes: list[Node]) -> None:
        if self._defects and any(node.parent is None for node in nodes):
            raise EngineFailure(f"{self.rules.name} fails here: host eviction deletes a node that is being loaded back")

    def _admit(self, best: Node, nodes: list[Node], tokens: int) -> None:
        """Put ``nodes`` (deepest first) on the device and queue their copy; the path stays locked until it is there."""
        self.free -= tokens
        self.loaded += tokens
        for node in reversed(nodes):
            self._arrive(node)
            if self.on_event:
                self.on_event("restore", node.size, node.key[0][0])
        if self._defects:
            self.lock(best)
        load = Load(best, nodes, tokens)
        if self._reclaims:
            for node in nodes:
                node.load = load
        self._queued_loads.append(load)
        self.in_flight_loads += 1

    def start_loads(self, now: int) -> tuple[object | None, int]:
        """Submit all queued loads as one operation; return (ticket, tokens), (None, 0) if there are none."""
        if not self._queued_loads:
            return None, 0
        loads, self._queued_loads = self._queued_loads, []
        tokens = sum(load.tokens for load in loads)
        ticket = self._transfers.load(tokens, max(now, self.stall_until))
        self._loads.append((ticket, loads))
        return ticket, tokens

    def _acknowledge_loads(self, now: int) -> None:
        while self._loads and self._transfers.done(self._loads[0][0], now):
            _, loads = self._loads.popleft()
            for load in loads:
                self.in_flight_loads -= 1
                self.unlock(load.node)
                if self._reclaims:
                    self._loaded(load)

    def _loaded(self, load: Load) -> None:
        """The nodes of ``load`` and everything above them are duplicates now, unless another load is pending there."""
        for node in load.nodes:
            node.load = None
        step = load.node
        while step is not self.root:
            self._register(step)
            step = step.parent

    def _split(self, node: Node, size: int, now: int) -> Node:
        upper = super()._split(node, size, now)
        if self._reclaims:
            if node.load is not None:
                upper.load = node.load
                node.load.nodes.append(upper)
            self._register(upper)
        return upper

    def poll(self, now: int) -> None:
        """Check for events: submit queued copies, acknowledge completed writes, then completed loads."""
        if self._queued_writes:
            self.flush(now)
        if self._writes:
            self._acknowledge_writes(now)
        if self._loads:
            self._acknowledge_loads(now)

    @property
    def idle_transfers(self) -> bool:
        """Whether no copy and no load is in flight or queued."""
        return not self.in_flight_writes and not self.in_flight_loads

    def next_ack(self, now: int) -> int | None:
        """Return the earliest time at which ``poll`` has something to do; None if nothing is in flight."""
        if self._queued_writes:
            return now
        times = [self._transfers.finish_time(queue[0][0], now) for queue in (self._writes, self._loads) if queue]
        return min(times) if times else None
