"""Heap of evictable leaves with lazy deletion: same victims as the engine, which collects all leaves at each eviction.

A node is pushed when it may have become a leaf and stays until it reaches the top; there it is thrown away if it is no
leaf, or sorted in again if its key grew meanwhile. One entry per node: touching a node a thousand times costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

from kvsim.kv.eviction import Order
from kvsim.kv.tree import Node


class Leaves:
    """The leaves of one tier. ``bit`` marks nodes that have an entry (``Node.queued``)."""

    __slots__ = ("_bit", "_heap", "_is_leaf", "_key", "_limit")

    def __init__(self, order: Order, bit: int, is_leaf: Callable[[Node], bool]) -> None:
        self._key, self._bit, self._is_leaf = order.key, bit, is_leaf
        self._heap: list[tuple[Any, int, Node]] = []
        self._limit = 4096

    def push(self, node: Node) -> None:
        """Make sure that ``node``, which is a leaf now, is found."""
        if not node.queued & self._bit:
            node.queued |= self._bit
            heappush(self._heap, (self._key(node), node.id, node))

    def renew(self, node: Node) -> None:
        """Enter ``node`` again because its key fell; outdated entries are swept now and then."""
        node.queued |= self._bit
        heappush(self._heap, (self._key(node), node.id, node))
        if len(self._heap) > self._limit:
            self._sweep()

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
        heap, bit = self._heap, self._bit
        while heap:
            key, _, node = heappop(heap)
            if not node.queued & bit:
                continue  # an outdated entry of a node that was taken
            now = self._key(node)
            if now != key:
                heappush(heap, (now, node.id, node))
                continue
            node.queued &= ~bit
            if self._is_leaf(node):
                return node
        return None

    def clear(self) -> None:
        """Forget every entry."""
        self._heap.clear()
