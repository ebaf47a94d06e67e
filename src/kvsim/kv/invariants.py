"""Laws of the cache as code: each raises InvariantError with the numbers; ``guard`` switches them on for every call.

Not for the fast path: a check walks the whole tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kvsim.content import canonical, cut, length
from kvsim.errors import InvariantError
from kvsim.kv.cache import Holding, KvCache
from kvsim.kv.tree import Node

GUARDED = (
    "match", "lock", "unlock", "load_back", "hold", "extend", "start_loads", "make_room", "evict", "evict_host",
    "checkpoint", "finish", "retract", "poll", "flush",
)


def require(law: str, left: object, right: object) -> None:
    """Raise InvariantError naming ``law`` unless both sides are equal."""
    if left != right:
        raise InvariantError(f"{law}: {left} != {right}")


def check_shape(cache: KvCache) -> None:
    """Nodes hold whole pages of canonical content, know their parent, and are indexed by their first page."""
    for node in cache.nodes():
        parent = node.parent
        if parent is None or parent.children.get(node.edge) is not node:
            raise InvariantError(f"node {node.id} is not a child of its parent")
        require(f"node {node.id} has its size", length(node.key), node.size)
        require(f"node {node.id} has one spelling", canonical(node.key), node.key)
        require(f"node {node.id} holds whole pages", node.size % cache.page, 0)
        if not node.size:
            raise InvariantError(f"node {node.id} is empty")
        edge = cache._edge(node.key, 0, 0)
        if parent is cache.root and isinstance(node.edge, tuple) and isinstance(node.edge[0], str):
            edge = (node.edge[0], edge)
        require(f"node {node.id} is indexed by its first page", node.edge, edge)


def check_residence(cache: KvCache) -> None:
    """One tree, two residences: every node is somewhere, what is on the device hangs on what is on the device."""
    for node in (cache.root, *cache.nodes()):
        if not (node.device or node.host):
            raise InvariantError(f"node {node.id} is on no tier")
        if node.device and node.parent is not None and not node.parent.device:
            raise InvariantError(f"node {node.id} is on the device, its parent is not")
        kids = sum(child.device for child in node.children.values())
        require(f"children of node {node.id} on the device", node.kids, kids)
        if node.host and not cache.hicache and node is not cache.root:
            raise InvariantError(f"node {node.id} has a host copy without a host tier")


def check_locks(cache: KvCache, extra: int | None = None) -> None:
    """A node is locked by its own locks and its locked children; own locks are those of requests and copies in flight.

    ``extra``: locks held by requests and admissions, if the caller knows them.
    """
    own = 0
    for node in (cache.root, *cache.nodes()):
        own += node.own
        below = sum(child.locked > 0 for child in node.children.values())
        require(f"locks of node {node.id}", node.locked, node.own + below)
    if extra is not None:
        require("locks taken", own - 1, extra + cache.in_flight_writes + cache.in_flight_loads)


def check_tokens(cache: KvCache, holdings: Iterable[Holding] | None = None) -> None:
    """Tokens are conserved per tier; with ``holdings`` (all requests with KV) the private slots are accounted for."""
    evictable = protected = host = 0
    for node in cache.nodes():
        if node.device and node.locked:
            protected += node.size
        elif node.device:
            evictable += node.size
        host += node.size * node.host
    require("evictable tokens", cache.evictable, evictable)
    require("protected tokens", cache.protected, protected)
    require("host tokens in the tree", cache.host_used, host)
    if min(cache.free, cache.host_free) < 0:
        raise InvariantError(f"more slots used than there are: free {cache.free}, host {cache.host_free}")
    private = cache.device_used - evictable - protected
    if private < 0:
        raise InvariantError(f"the tree has {-private} device tokens more than slots are used")
    if holdings is not None:
        held = sum(cache.pages_up(holding.committed) - holding.owned for holding in holdings)
        require("private device slots", private, held)


def check_leaves(cache: KvCache) -> None:
    """Every evictable leaf of either tier is in its heap."""
    for node in cache.nodes():
        if node.locked:
            continue
        if node.device and not node.kids and not node.queued & 1:
            raise InvariantError(f"device leaf {node.id} cannot be found by eviction")
        if not node.device and not node.children and not node.queued & 2:
            raise InvariantError(f"host leaf {node.id} cannot be found by eviction")


def check_holding(cache: KvCache, holding: Holding) -> None:
    """What a request owns is the path to its locked node, all of it on the device, with the request's content."""
    node: Node | None = holding.node
    if node is None:
        require("a request without a node owns", holding.owned, 0)
        return
    parts: list[Node] = []
    while node is not None and node is not cache.root:
        parts.append(node)
        if not (node.device and node.locked):
            raise InvariantError(f"node {node.id}, owned by a request, is unlocked or not on the device")
        node = node.parent
    require("tokens owned by a request", sum(part.size for part in parts), holding.owned)
    content = canonical(run for part in reversed(parts) for run in part.key)
    require("content owned by a request", content, cut(holding.runs, 0, holding.owned))


def check(cache: KvCache, holdings: Iterable[Holding] | None = None) -> None:
    """Check every law; ``holdings``: all requests that hold KV, if the caller knows them."""
    held = None if holdings is None else list(holdings)
    check_shape(cache)
    check_residence(cache)
    check_locks(cache)
    check_tokens(cache, held)
    check_leaves(cache)
    for holding in held or ():
        check_holding(cache, holding)


def guard(cache: KvCache) -> KvCache:
    """Check every law after every call of ``cache`` from now on; return it."""
    for name in GUARDED:
        setattr(cache, name, _checked(cache, getattr(cache, name)))
    return cache


def _checked(cache: KvCache, call: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        check_shape(cache)
        check_residence(cache)
        check_locks(cache)
        check_tokens(cache)
        return result

    return checked
