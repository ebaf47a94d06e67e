"""Queue orders: one function per policy, registered under SGLang's name for it.

Engine: srt/managers/schedule_policy.py: SchedulePolicy.calc_priority. Each sorts the queue in place; sorts are stable,
so an order persists.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvsim.content import common, cut
from kvsim.errors import UnknownName

if TYPE_CHECKING:
    from kvsim.content import Runs
    from kvsim.kv.cache import KvCache, Match
    from kvsim.kv.tree import Node
    from kvsim.rules.sglang import SglangParams
    from kvsim.serving.sglang.request import SglangRequest

IN_BATCH_CHECK = 32  # IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD, inclusive
IN_BATCH_FLAG = 32  # IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD, inclusive
REFRESH_DEPTH = 128
CACHE_AWARE = ("lpm", "dfs-weight", "hrrn")


class Ordering:
    """Orders the queue before each prefill pass; keeps the refresh's count of passes and the seeded shuffle."""

    def __init__(self, params: SglangParams, cache: KvCache) -> None:
        name = params.schedule_policy
        if name not in ORDERS:
            raise UnknownName("schedule policy", name, ORDERS)
        if not params.radix_cache and name in CACHE_AWARE:
            name = "fcfs"
        self.params, self.cache, self.name = params, cache, name
        self.random = random.Random(params.seed)
        self.now = 0
        self._order = ORDERS[name]
        self._passes = 0
        period = params.rules.refresh_waiting_passes
        self._refresh_every = period if params.eviction == "lru" and name not in CACHE_AWARE and params.radix_cache else 0

    def __call__(self, waiting: list[SglangRequest], running: list[SglangRequest], now: int) -> None:
        """Sort ``waiting`` in place (and touch prefixes, where the engine does)."""
        self.now = now
        if self._refresh_every and waiting:
            if self._passes % self._refresh_every == 0:
                for request in reversed(waiting[:REFRESH_DEPTH]):
                    self.cache.match(request.kv, request.kv.total)
            self._passes += 1
        self._order(self, waiting, running)

    def urgency(self, request: SglangRequest) -> int:
        """Return a key that sorts the most urgent first; a missing priority is the worst."""
        priority = request.spec.priority
        low_first = self.params.low_priority_values_first
        if priority is None:
            return 1 << 62
        return priority if low_first else -priority


Order = Callable[[Ordering, "list[SglangRequest]", "list[SglangRequest]"], None]
ORDERS: dict[str, Order] = {}


def register(name: str) -> Callable[[Order], Order]:
    """Register a queue order under the name a scenario uses."""

    def keep(order: Order) -> Order:
        ORDERS[name] = order
        return order

    return keep


@register("fcfs")
def fcfs(ordering: Ordering, waiting: list[SglangRequest], running: list[SglangRequest]) -> None:
    """Order of arrival; with priority scheduling by priority, then queue entry."""
    if ordering.params.priority_scheduling:
        waiting.sort(key=lambda request: (ordering.urgency(request), request.seq))


@register("lof")
def lof(ordering: Ordering, waiting: list[SglangRequest], running: list[SglangRequest]) -> None:
    """Longest output limit first (unclipped, not reduced by what is done), after the priority."""
    if ordering.params.priority_scheduling:
        waiting.sort(key=lambda request: (ordering.urgency(request), -request.mnt))
    else:
        waiting.sort(key=lambda request: -request.mnt)


@register("random")
def shuffled(ordering: Ordering, waiting: list[SglangRequest], running: list[SglangRequest]) -> None:
    """A fresh seeded shuffle in every pass."""
    ordering.random.shuffle(waiting)


@register("routing-key")
def routing_key(ordering: Ordering, waiting: list[SglangRequest], running: list[SglangRequest]) -> None:
    """Keys that occur in the running batch first (more frequent, then by key), the others by key."""
    counts: dict[str, int] = {}
    for request in running:
        key = request.spec.routing_key
        if key is not None:
            counts[key] = counts.get(key, 0) + 1
    if counts:
        waiting.sort(
            key=lambda r: (
                (0, -counts[r.spec.routing_key], r.spec.routing_key) if r.spec.routing_key in counts else (1, 0, r.spec.routing_key or "")
            )
        )


@register("lpm")
def lpm(ordering: Ordering, waiting: list[SglangRequest], running: list[SglangRequest]) -> None:
    """Longest cached prefix first; requests flagged by the in-batch rule go last; a long queue is left as it is."""
    limit = ordering.params.lpm_fallback_length
    if limit is not None and len(waiting) > limit:
        return
    matches, flagged = match_all(ordering.cache, waiting)
    counts_host = ordering.params.rules.lpm_counts_host

    def key(request: SglangRequest) -> float:
        if request.seq in flagged:
            return float("inf")
        match = matches[request.seq]
        return -min(match.device + match.host, request.kv.total - 1) if counts_host else -match.device

    waiting.sort(key=key)


@register("hrrn")
def hrrn(ordering: Ordering, waiting: list[SglangRequest], running: list[SglangRequest]) -> None:
    """Highest response ratio next: time waited over uncached tokens; a long queue is left as it is.

    0.5.23 has it (srt/managers/schedule_policy.py; pull request 32911 describes it); no recording decides it.
    """
    limit = ordering.params.lpm_fallback_length
    if limit is not None and len(waiting) > limit:
        return
    now, cache = ordering.now, ordering.cache
    ratio: dict[int, float] = {}
    for request in waiting:
        match = cache.match(request.kv, request.kv.total)
        uncached = request.kv.total - min(match.device + match.host, request.kv.total - 1)
        ratio[request.seq] = (now - request.queued_at) / uncached
    waiting.sort(key=lambda request: -ratio[request.seq])


@register("dfs-weight")
def dfs_weight(ordering: Ordering, waiting: list[SglangRequest], running: list[SglangRequest]) -> None:
    """Depth first over the tree: subtrees with more waiting requests first, children before a node's own requests."""
    matches, _ = match_all(ordering.cache, waiting)
    at: dict[Node, list[SglangRequest]] = {}
    weight: dict[Node, int] = {}
    for request in waiting:
        node = matches[request.seq].device_node
        at.setdefault(node, []).append(request)
        step: Node | None = node
        while step is not None:
            weight[step] = weight.get(step, 0) + 1
            step = step.parent
    out: list[SglangRequest] = []
    stack: list[tuple[Node, bool]] = [(ordering.cache.root, False)]
    while stack:
        node, opened = stack.pop()
        if opened:
            out.extend(at.get(node, ()))
            continue
        stack.append((node, True))
        children = [child for child in node.children.values() if child in weight]
        children.sort(key=lambda child: -weight[child])
        stack.extend((child, False) for child in reversed(children))
    waiting[:] = out


def match_all(cache: KvCache, waiting: list[SglangRequest]) -> tuple[dict[int, Match], set[int]]:
    """Match every waiting request with its full token list; return the matches and whom the in-batch rule flags.

    Matching touches and splits nodes. The scratch tree of the rule has page size 1; a request whose device match is
    short and whose scratch match is long is flagged, other short ones are inserted.
    """
    scratch: dict[tuple[str, int], list[Runs]] = {}
    matches: dict[int, Match] = {}
    flagged: set[int] = set()
    for request in waiting:
        match = matches[request.seq] = cache.match(request.kv, request.kv.total)
        if match.device > IN_BATCH_CHECK:
            continue
        tokens = cut(request.kv.runs, 0, request.kv.total)
        if not tokens:
            continue
        seen = scratch.setdefault((request.kv.namespace, tokens[0][0]), [])
        if max((common(tokens, other) for other in seen), default=0) >= IN_BATCH_FLAG:
            flagged.add(request.seq)
        else:
            seen.append(tokens)
    return matches, flagged
