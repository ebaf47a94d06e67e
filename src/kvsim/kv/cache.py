"""The facade of SGLang's cache: what a scheduler, a replay of recordings and the invariants call.

One ``KvCache`` is one radix tree with two residences (device, host), the two pools, the write and load queues and the
locks of one engine (one TP group). It decides, it never waits: time is an argument, copies go to ``transfers``.
A version of the engine is a ``SglangRules``; there is one cache.
"""

from __future__ import annotations

from kvsim.content import Runs, join
from kvsim.errors import InvariantError
from kvsim.kv.loading import Loading, Match
from kvsim.kv.tiers import Transfers
from kvsim.kv.tree import NOWHERE, Cursor, Node, forward, piece
from kvsim.rules.sglang import SglangParams, SglangRules

__all__ = ["ENDLESS", "Holding", "KvCache", "Match"]

ENDLESS = 1 << 50


class Holding(Cursor):
    """The KV state of one request: its content, how far it is computed, what of it the tree owns, its lock.

    ``runs``: prompt followed by as many generated tokens as anybody may ask for (matching is limited by a count, so
    nothing is rebuilt when a token is generated). ``committed``: tokens whose KV slots are taken (kv_committed_len);
    the slots are ``committed`` rounded up to pages. ``owned``: leading tokens owned by the tree (cache_protected_len).
    ``inserted``: leading tokens this request inserted and counted already (0.5.23). ``node``: the last node, locked.
    """

    __slots__ = ("committed", "inserted", "node", "output_first", "outputs", "owned", "priority", "prompt_tokens")

    def __init__(
        self, prompt: Runs, prompt_tokens: int, output_first: int, *, namespace: str = "", priority: int = 0
    ) -> None:
        super().__init__(join(prompt, ((output_first, ENDLESS),)), namespace)
        self.priority = priority
        self.prompt_tokens, self.output_first = prompt_tokens, output_first
        self.outputs = 0
        self.committed = self.owned = self.inserted = 0
        self.node: Node | None = None

    @property
    def total(self) -> int:
        """Prompt and generated tokens so far."""
        return self.prompt_tokens + self.outputs


class KvCache(Loading):
    """SGLang's radix cache with a device and a host tier; ``radix=False``: ChunkCache, nothing shared or evictable.

    Ints kept (tokens): ``page``, ``device_tokens``, ``host_tokens``, ``free``, ``evictable``, ``protected``,
    ``host_free``; cumulative: ``demoted``, ``dropped`` (device tokens evicted with and without host copy),
    ``host_evicted``, ``host_duplicates``, ``backed_up``, ``loaded``, ``write_failures``, ``load_failures``. In flight:
    ``in_flight_writes`` (nodes), ``in_flight_loads`` (requests), ``queued_loads``. ``stall_until``: latest time for
    which the scheduler blocks because of write_back; the caller resets it to 0. Frees made while one result is
    processed need no grouping: nothing allocates device slots in between.

    One request, as a scheduler drives it::

        m = cache.match(h, limit)            # limit: h.total - 1 (admission) or h.total (ordering passes)
        cache.lock(m.device_node)            # the admission's own lock
        loaded = cache.load_back(m, h, now)  # only if m.host; 0: refused
        prefix = cache.hold(h, m, loaded)    # the request's lock; h.committed = h.owned = prefix
        cache.unlock(m.device_node)
        ticket, tokens = cache.start_loads(now)      # once per batch
        cache.make_room(tokens, now); cache.extend(h, end)
        cache.checkpoint(h, upto, now, chunked=...)  # chunk stash, prefill result
        cache.finish(h, upto, now) or cache.retract(h, now)
        cache.flush(now)                     # after each processed result
        cache.poll(now)                      # where the version polls
    """

    def __init__(
        self, rules: SglangRules, *, page_size: int, device_tokens: int, host_tokens: int = 0,
        write_policy: str = "write_through", eviction: str = "lru", load_back_threshold: int = 10,
        transfers: Transfers | None = None, radix: bool = True,
    ) -> None:
        params = SglangParams(
            rules=rules, page_size=page_size, device_tokens=device_tokens, host_tokens=host_tokens if radix else 0,
            write_policy=write_policy, eviction=eviction, load_back_threshold=load_back_threshold, radix_cache=radix,
        )
        super().__init__(params, transfers)
        self.radix = radix
        self._counts_once, self._restored_count = rules.request_counts_once, rules.restored_nodes_count
        self._raises_lower_part = rules.raise_priority_before_split and self.hicache

    @classmethod
    def from_params(cls, params: SglangParams, transfers: Transfers | None) -> KvCache:
        """Return the cache of one server; ``transfers`` may be None without a host tier."""
        return cls(
            params.rules, page_size=params.page_size, device_tokens=params.device_tokens,
            host_tokens=params.host_tokens, write_policy=params.write_policy, eviction=params.eviction,
            load_back_threshold=params.load_back_threshold, transfers=transfers, radix=params.radix_cache,
        )

    # -- admission --

    def match(self, holding: Holding, limit: int) -> Match:
        """Find the longest cached prefix of the first ``limit`` tokens (floored to pages); touches and splits nodes."""
        limit -= limit % self.page
        if limit <= 0 or not self.radix:
            return Match(0, 0, self.root, self.root)
        lower = self._descend(holding, limit)
        now, root, best = self.clock, self.root, holding.node_seen
        host, node = 0, best
        while not node.device:
            node.last = now
            host += node.size
            node = node.parent
        match = Match(holding.seen - host, host, node, best)
        while node is not root:
            node.last = now
            node = node.parent
        if self._renewing:
            self._renew(lower or best)
        return match

    def _renew(self, node: Node) -> None:
        """Enter the leaves among ``node`` and what is above it again: a touch made their keys fall."""
        while node is not self.root:
            if node.device and not node.locked and not node.kids:
                self._device_leaves.push(node)
            elif not node.device and not node.locked and not node.children:
                self._host_leaves.push(node)
            node = node.parent

    def load_back(self, match: Match, holding: Holding, now: int) -> int:
        """Load the host part of ``match`` back, all or nothing: its tokens, 0 if refused. The copy is only queued."""
        return self._restore_path(match, now)

    def hold(self, holding: Holding, match: Match, loaded: int) -> int:
        """Lock the prefix for ``holding`` (the host part too if it was ``loaded``); return the prefix in tokens."""
        node = match.best_node if loaded else match.device_node
        self.lock(node)
        holding.node = node
        holding.committed = holding.owned = prefix = match.device + loaded
        holding.inserted = 0
        return prefix

    def extend(self, holding: Holding, end: int) -> int:
        """Take the slots for tokens up to ``end``; return the slots taken (whole pages). Room was made before."""
        page = self.page
        slots = end - holding.committed if page == 1 else self.pages_up(end) - self.pages_up(holding.committed)
        if slots > self.free:
            raise InvariantError(f"{slots} device slots wanted, {self.free} free")
        self.free -= slots
        holding.committed = end
        return slots

    # -- inserting --

    def _insert(self, holding: Holding, size: int, counts: bool, now: int) -> tuple[Node, int]:
        """Insert the first ``size`` tokens (whole pages); return the last node and the slots that went into the tree.

        Each node passed can count a hit and be backed up before the walk goes on, which may evict host nodes further
        down.
        """
        if not size:
            return self.root, 0
        priority = holding.priority
        lower = self._descend(holding, size)
        last, matched = holding.node_seen, holding.seen
        path, plain = self._touch(last, priority, copies=counts and self.hicache)
        if self._renewing:
            self._renew(lower or last)
        if lower is not None and self._raises_lower_part and priority > lower.priority:
            lower.priority = priority
        once = holding.inserted if self._counts_once else 0
        adopted = 0
        if plain and not once:
            if counts:
                for node in path:
                    node.hits += 1
        else:
            end = 0
            for node in reversed(path):
                if node.parent is None:
                    return self._regrow(holding, end, size, counts, now, adopted)
                end += node.size
                if priority > node.priority:
                    node.priority = priority
                if not node.device:
                    self._arrive(node)
                    adopted += node.size
                    if self._reclaims:
                        self._register(node)
                    if not self._restored_count:
                        continue
                if counts and end > once:
                    node.hits += 1
                    if not node.host and node.hits >= self._threshold and self.hicache:
                        self._back_up(node, now)
        if matched == size:
            return last, adopted
        return self._append(holding, size, counts, now), adopted + size - matched

    def _touch(self, node: Node, priority: int, *, copies: bool) -> tuple[list[Node], bool]:
        """Touch ``node`` and all above it; return them, lowest first, and whether an insert changes nothing but their hits."""
        path: list[Node] = []
        plain, now, root = True, self.clock, self.root
        while node is not root:
            node.last = now
            path.append(node)
            if not node.device or (copies and not node.host) or node.priority < priority:
                plain = False
            node = node.parent
        return path, plain

    def _regrow(
        self, holding: Holding, end: int, size: int, counts: bool, now: int, adopted: int
    ) -> tuple[Node, int]:
        """Go on with an insert whose own backups evicted the host nodes behind ``end`` tokens: a new leaf."""
        holding.node_seen = NOWHERE
        self._descend(holding, end)
        self._touch(holding.node_seen, 0, copies=False)
        return self._append(holding, size, counts, now), adopted + size - end

    def _append(self, holding: Holding, end: int, counts: bool, now: int) -> Node:
        """Attach the tokens from where the walk ended up to ``end`` as a new leaf; it counts its first hit."""
        parent, at, offset, size = holding.node_seen, holding.at, holding.offset, end - holding.seen
        leaf = self._new_leaf(piece(holding.runs, at, offset, size), size, parent, holding.namespace)
        leaf.priority = holding.priority
        leaf.device = True
        parent.kids += 1
        self.evictable += size
        holding.node_seen, holding.seen = leaf, end
        holding.at, holding.offset = forward(holding.runs, at, offset, size)
        if counts:
            leaf.hits = 1
            if self.hicache and self._threshold <= 1:
                self._back_up(leaf, now)
        return leaf

    def _mark_prompt(self, holding: Holding, node: Node, size: int) -> None:
        """Split the inserted path (``size`` tokens, up to ``node``) at the prompt's end; raise its priority there.

        The engine inserts the prompt a second time; on a path that is there already only this can be seen of it.
        """
        prompt = holding.prompt_tokens - holding.prompt_tokens % self.page
        if not 0 < prompt < size:
            return
        start = size - node.size
        while start >= prompt:
            node = node.parent
            start -= node.size
        if start + node.size > prompt:
            node = self._split(node, prompt - start, self.clock)
        priority = holding.priority + self.rules.prompt_priority_bonus
        while node is not self.root and node.priority < priority:
            node.priority = priority
            node = node.parent

    def _store(self, holding: Holding, upto: int, now: int, counts: bool) -> Node:
        """Insert the first ``upto`` tokens, floored to pages; duplicates of what was there already are freed."""
        size = upto - upto % self.page
        node, adopted = self._insert(holding, size, counts and self._counts, now)
        self.free += size - holding.owned - adopted
        if size > holding.inserted:
            holding.inserted = size
        if self.rules.split_at_prompt_end:
            self._mark_prompt(holding, node, size)
        holding.owned = size
        return node

    def checkpoint(self, holding: Holding, upto: int, now: int, *, chunked: bool) -> None:
        """Put the first ``upto`` computed tokens into the tree and move the lock there; the rest stays private.

        ``chunked``: the stash of a partly prefilled request, else the result of its last prefill. 0.5.9 matches the key
        again afterwards; on a path that was just inserted this changes nothing that can be seen.
        """
        if not self.radix:
            return
        node = self._store(holding, upto, now, counts=not chunked or self.rules.chunked_inserts_count)
        old = holding.node
        if node is not old:
            self.lock(node)
            holding.node = node
            if old is not None:
                self.unlock(old)

    def finish(self, holding: Holding, upto: int, now: int) -> None:
        """Insert the first ``upto`` tokens, free duplicates and everything behind them, unlock."""
        if self.radix:
            node = self._store(holding, upto, now, counts=True)
            self._let_go(holding)
            if not node.locked and not node.kids:
                self._device_leaves.push(node)
        else:
            self._let_go(holding)

    def retract(self, holding: Holding, now: int) -> None:
        """Free what is private, unlock; nothing is inserted, and the request forgets what it had inserted."""
        self._let_go(holding)

    def _let_go(self, holding: Holding) -> None:
        self.give(self.pages_up(holding.committed) - holding.owned)
        if holding.node is not None:
            self.unlock(holding.node)
        holding.node = None
        holding.committed = holding.owned = holding.inserted = 0

    # -- whole cache --

    def reset(self) -> None:
        """Flush both tiers. Raises InvariantError while anything is held or in flight."""
        if self.protected or not self.idle_transfers or self.device_used != self.evictable:
            raise InvariantError("the cache is flushed while requests or copies hold parts of it")
        self.root = self._new_root()
        self.free, self.host_free, self.evictable = self.device_tokens, self.host_tokens, 0
        self._device_leaves.clear()
        self._host_leaves.clear()
        self._duplicates.clear()
