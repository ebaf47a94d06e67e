"""Two residences of one tree: locks, leaves, demotion, dropping, eviction on the device and on the host.

Engine: 0.5.9 ``hiradix_cache.py: evict, evict_host, inc_lock_ref``; 0.5.23 ``unified_radix_cache.py: _evict_components,
drive_host_eviction, _reclaim_full_host_duplicates, drop_subtree_no_host``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kvsim.errors import Infeasible, InputError, InvariantError, UnknownName
from kvsim.kv.eviction import order
from kvsim.kv.leaves import Leaves
from kvsim.kv.pool import Pools
from kvsim.kv.tree import Node, Tree
from kvsim.rules.sglang import SglangParams

POLICIES = ("write_through", "write_through_selective", "write_back")
OnEvent = Callable[[str, int, int], None]


class EngineFailure(Infeasible):
    """The unrepaired engine (rule ``defects: keep``) fails at this point: a finding."""


class Transfers(Protocol):
    """Copies between the tiers as the cache sees them (``serving.port.Transfers``)."""

    def write(self, tokens: int, now: int) -> object:
        """Submit a device-to-host copy; return its ticket."""

    def load(self, tokens: int, now: int) -> object:
        """Submit a host-to-device copy; return its ticket."""

    def done(self, ticket: object, now: int) -> bool:
        """Tell whether the copy is complete at ``now``."""

    def finish_time(self, ticket: object, now: int) -> int:
        """Return when the copy will be complete, as known at ``now``."""


class Tiers(Tree, Pools):
    """Tree and pools together. Events go to ``on_event(kind, tokens, first_token)`` if it is set.

    Kinds: ``demote``, ``drop`` (device), ``host_drop`` (a node's only copy lost), ``host_duplicate`` (host copy of a
    device-resident node given up), ``host_evicted`` (one host eviction as a whole; first token -1), ``restore`` (a
    load-back's node), ``backup``.
    """

    on_event: OnEvent | None = None
    #: Called with a node whose last copy goes, while it still hangs in the tree with all below it, and "drop" or "host_drop".
    on_lost: Callable[[Node, str], None] | None = None

    def __init__(self, params: SglangParams) -> None:
        rules, page = params.rules, params.page_size
        if params.write_policy not in POLICIES:
            raise UnknownName("write policy", params.write_policy, POLICIES)
        if rules.defects not in ("repaired", "keep"):
            raise InputError(f"defects is '{rules.defects}'; allowed: repaired, keep")
        Tree.__init__(self, page, split_keeps_creation_time=rules.split_keeps_creation_time)
        Pools.__init__(self, page, params.device_tokens, params.host_tokens)
        self.rules = rules
        self.hicache = params.host_tokens > 0
        self.write_back = self.hicache and params.write_policy == "write_back"
        self.stall_until = 0
        self._defects = rules.defects == "keep"
        by = order(params.eviction, rules)
        self._renewing = by.falls
        self._device_leaves = Leaves(by, on_device=True)
        self._host_leaves = Leaves(by, on_device=False)
        self._reclaims = self.write_back and rules.reclaim_host_duplicates
        self._duplicates: dict[Node, None] = {}

    # -- locks --

    def lock(self, node: Node) -> None:
        """Lock the path from ``node`` to the root against eviction from either tier. Cost: nodes that were unlocked."""
        node.own += 1
        node.locked = locks = node.locked + 1
        while locks == 1:
            if node.device:
                self.evictable -= node.size
                self.protected += node.size
            node = node.parent
            node.locked = locks = node.locked + 1

    def unlock(self, node: Node) -> None:
        """Release one lock taken on ``node``."""
        if not node.own:
            raise InvariantError(f"node {node.id} is unlocked more often than locked")
        node.own -= 1
        node.locked = locks = node.locked - 1
        while not locks:
            if node.device:
                self.protected -= node.size
                self.evictable += node.size
                if not node.kids:
                    self._device_leaves.push(node)
            elif not node.children:
                self._host_leaves.push(node)
            node = node.parent
            node.locked = locks = node.locked - 1

    # -- residence --

    def _arrive(self, node: Node) -> None:
        """``node`` gets device slots, taken elsewhere."""
        node.device = True
        node.stale = False
        node.parent.kids += 1
        if node.locked:
            self.protected += node.size
        else:
            self.evictable += node.size

    def _release(self, node: Node) -> None:
        """``node``, unlocked, returns its device slots."""
        node.device = False
        self.free += node.size
        self.evictable -= node.size

    def _one_kid_less(self, parent: Node) -> None:
        parent.kids -= 1
        if not parent.kids and parent.device and not parent.locked:
            self._device_leaves.push(parent)

    def _demote(self, node: Node) -> None:
        """``node``, unlocked, leaves the device; its host copy stays."""
        self._release(node)
        self.demoted += node.size
        if node.children:
            node.stale = self._defects and any(child.device for child in node.children.values())
        if node.stale or not node.children:
            self._host_leaves.push(node)
        if self.on_event:
            self.on_event("demote", node.size, node.key[0][0])

    def _drop(self, node: Node) -> None:
        """``node``, an unlocked device leaf without host copy, leaves the tree with all below it (host only)."""
        parent = node.parent
        if self.on_lost:
            self.on_lost(node, "drop")
        self._release(node)
        self.dropped += node.size
        if self.on_event:
            self.on_event("drop", node.size, node.key[0][0])
        if node.children:
            self._drop_host_below(node)
        self._detach(node)
        self._one_kid_less(parent)

    def _drop_host_below(self, top: Node) -> None:
        stack = list(top.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            self._lose_host_copy(node)
            node.parent = None  # type: ignore[assignment]
            node.children.clear()
        top.children.clear()

    def _detach(self, node: Node) -> None:
        parent = node.parent
        del parent.children[node.edge]
        node.parent = None  # type: ignore[assignment]
        if not parent.device:
            parent.stale = False
            if not parent.children and not parent.locked:
                self._host_leaves.push(parent)

    def _lose_host_copy(self, node: Node) -> None:
        if self.on_lost:
            self.on_lost(node, "host_drop")
        node.host = False
        self.host_free += node.size
        self.host_evicted += node.size
        if self.on_event:
            self.on_event("host_drop", node.size, node.key[0][0])

    # -- eviction --

    def make_room(self, tokens: int, now: int) -> None:
        """Evict if fewer than ``tokens`` slots are free: ``tokens``, or only what is missing, as the version does."""
        if self.free < tokens:
            self.evict(tokens if self.rules.evict_full_amount else tokens - self.free, now)

    def evict(self, tokens: int, now: int) -> int:
        """Release at least ``tokens`` from the device, whole leaves in eviction order; return what was released."""
        released = 0
        pop = self._device_leaves.pop
        while released < tokens and (node := pop()) is not None:
            released += node.size
            if node.host:
                self._demote(node)
                self._one_kid_less(node.parent)
            else:
                self._drop(node)
        return released

    def evict_host(self, tokens: int) -> int:
        """Free at least ``tokens`` host slots: duplicates first (0.5.23 write_back), then host leaves in order."""
        freed = self._reclaim(tokens) if self._reclaims else 0
        while freed < tokens and (node := self._host_leaves.pop()) is not None:
            if node.children:
                raise EngineFailure(
                    f"{self.rules.name} fails here: host eviction picks a node of {node.size} tokens, first "
                    f"{node.key[0][0]}, that still has children (stale host leaf under write_back)"
                )
            self._lose_host_copy(node)
            self._detach(node)
            freed += node.size
        if freed and self.on_event:
            self.on_event("host_evicted", freed, -1)
        return freed

    def _reclaim(self, tokens: int) -> int:
        """Give up host copies of device-resident nodes in order of registration, device leaves only if nothing else."""
        freed = 0
        for leaves_too in (False, True):
            gone: list[Node] = []
            for node in self._duplicates:
                if freed >= tokens:
                    break
                if node.parent is None or not node.device or not node.host:
                    gone.append(node)
                elif node.load is None and (leaves_too or node.locked or node.kids):
                    freed += self._give_up_duplicate(node)
                    gone.append(node)
            for node in gone:
                del self._duplicates[node]
        return freed

    def _give_up_duplicate(self, node: Node) -> int:
        node.host = False
        self.host_free += node.size
        self.host_duplicates += node.size
        if self.on_event:
            self.on_event("host_duplicate", node.size, node.key[0][0])
        return node.size

    def _register(self, node: Node) -> None:
        """Enter ``node`` in the list of duplicates, at its old place if it has one, or remove it if it is none."""
        if node.device and node.host and node.load is None:
            self._duplicates.setdefault(node)
        else:
            self._duplicates.pop(node, None)
