"""Heap of evictable leaves with lazy deletion: same victims as the engine, which collects all leaves at each eviction.

A node is pushed when it may have become a leaf and stays until it reaches the top; there it is thrown away if it is no
leaf, or sorted in again if its key grew meanwhile. One entry per node: touching a node a thousand times costs nothing
(except under orders whose keys can fall, mru).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

from kvsim.kv.eviction import Order
from kvsim.kv.tree import Node


class Leaves:
    """The leaves of one tier. ``bit`` marks nodes that have an entry (``Node.queued``)."""

    __slots__ = ("_bit", "_falls", "_heap", "_key", "_limit", "_on_device")

    def __init__(self, order: Order, *, on_device: bool) -> None:
        self._key, self._falls, self._on_device = order.key, order.falls, on_device
        self._bit = 1 if on_device else 2
        self._heap: list[tuple[Any, int, Node]] = []
        self._limit = 4096

    def push(self, node: Node) -> None:
        """Make sure that ``node``, which is a leaf now, is found at its place in the order.

        An old entry does if keys only grow. If they can fall it may be too far back, so another one is made; outdated
        entries are swept now and then.
        """
        if not node.queued & self._bit:
            node.queued |= self._bit
            heappush(self._heap, (self._key(node), node.id, node))
        elif self._falls:
            heappush(self._heap, (self._key(node), node.id, node))
            if len(self._heap) > self._limit:
                self._sweep()

    def _is_leaf(self, node: Node) -> bool:
        """Tell whether ``node`` can leave this tier now: a device leaf may have children on the host."""
        if node.locked or node.parent is None or node.device is not self._on_device:
            return False
        return not node.kids if self._on_device else not node.children or node.stale

    def _sweep(self) -> None:
        live = {node.id: node for _, _, node in self._heap if self._is_leaf(node)}
        for _, _, node in self._heap:
            node.queued &= ~self._bit
        self._heap = []
        for node in live.values():
            node.queued |= self._bit
            self._heap.append((self._key(node), node.id, node))
        heapify(self._heap)
        self._limit = max(4096, 4 * len(self._heap))

    def pop(self) -> Node | None:
        """Remove and return the first leaf in order, or None."""
        heap, bit, on_device = self._heap, self._bit, self._on_device
        while heap:
            key, _, node = heappop(heap)
            if not node.queued & bit:
                continue  # an outdated entry of a node that was taken
            now = self._key(node)
            if now != key:
                heappush(heap, (now, node.id, node))
                continue
            node.queued &= ~bit
            if node.locked or node.parent is None or node.device is not on_device:
                continue
            if (not node.kids) if on_device else (not node.children or node.stale):
                return node
        return None

    def clear(self) -> None:
        """Forget every entry."""
        self._heap.clear()
