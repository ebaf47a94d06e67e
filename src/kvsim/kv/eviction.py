"""Eviction orders: what a leaf is compared by, smallest first.

Engine: 0.5.9 and 0.5.23 ``mem_cache/evict_policy.py``. An order is registered under its name; a new one is a function
and one line. Keys of the registered orders only grow while a node lives, except where ``falls`` says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from kvsim.errors import UnknownName
from kvsim.kv.tree import Node
from kvsim.rules.sglang import SglangRules

OrderKey = Callable[[Node], Any]


class Order(NamedTuple):
    """A named order: ``key`` of a node; ``falls``: the key of a node can get smaller when the node is touched."""

    key: OrderKey
    falls: bool = False


def _protected_from(hits: int) -> OrderKey:
    """Return slru's key: nodes with at least ``hits`` hits last, then the least recently used."""
    return lambda node: (node.hits >= hits, node.last)


ORDERS: dict[str, Callable[[SglangRules], Order]] = {
    "lru": lambda rules: Order(attrgetter("last")),
    "lfu": lambda rules: Order(attrgetter("hits", "last")),
    "fifo": lambda rules: Order(attrgetter("created")),
    "mru": lambda rules: Order(lambda node: -node.last, falls=True),
    "filo": lambda rules: Order(lambda node: -node.created),
    "priority": lambda rules: Order(attrgetter("priority", "last")),
    "slru": lambda rules: Order(_protected_from(rules.slru_protected_hits)),
}


def order(name: str, rules: SglangRules) -> Order:
    """Return the order registered as ``name``; UnknownName if there is none."""
    if name not in ORDERS:
        raise UnknownName("eviction order", name, ORDERS)
    return ORDERS[name](rules)
