"""The facade of SGLang's cache: what a scheduler, a replay of recordings and the invariants call.

One ``KvCache`` is one radix tree with two residences (device, host), the two pools, the write and load queues and the
locks of one engine (one TP group). It decides, it never waits: time is an argument, copies go to ``transfers``.
A version of the engine is a ``SglangRules``; there is one cache.
"""

from __future__ import annotations

from kvsim.content import Runs, join
from kvsim.kv.tree import Node

ENDLESS = 1 << 50


class Holding:
    """The KV state of one request: its content, how far it is computed, what of it the tree owns, its lock.

    ``runs``: prompt followed by as many generated tokens as anybody may ask for (matching is limited by a count, so
    nothing is rebuilt when a token is generated). ``committed``: tokens whose KV slots are taken (kv_committed_len);
    the slots are ``committed`` rounded up to pages. ``owned``: leading tokens owned by the tree (cache_protected_len).
    ``inserted``: leading tokens this request inserted and counted already (0.5.23). ``node``: the last node, locked.
    """

    __slots__ = (
        "namespace", "priority", "runs", "prompt_tokens", "output_first", "outputs",
        "committed", "owned", "inserted", "node",
    )

    def __init__(
        self, prompt: Runs, prompt_tokens: int, output_first: int, *, namespace: str = "", priority: int = 0
    ) -> None:
        self.namespace, self.priority = namespace, priority
        self.runs = join(prompt, ((output_first, ENDLESS),))
        self.prompt_tokens, self.output_first = prompt_tokens, output_first
        self.outputs = 0
        self.committed = self.owned = self.inserted = 0
        self.node: Node | None = None

    @property
    def total(self) -> int:
        """Prompt and generated tokens so far."""
        return self.prompt_tokens + self.outputs


class Match:
    """What of a prefix is cached: ``device`` and ``host`` hit tokens, the deepest node on the device, the deepest node."""

    __slots__ = ("best_node", "device", "device_node", "host")

    def __init__(self, device: int, host: int, device_node: Node, best_node: Node) -> None:
        self.device, self.host, self.device_node, self.best_node = device, host, device_node, best_node


class KvCache:
    """FACADE, signatures final; bodies land next (bases: tree, tiers, writing, loading).

    Ints kept, tokens: ``page``, ``free``, ``evictable``, ``protected``, ``host_free``; cumulative counters: ``demoted``,
    ``dropped``, ``host_evicted``, ``host_duplicates``, ``backed_up``, ``loaded``, ``write_failures``, ``load_failures``.
    ``stall_until``: latest time the scheduler blocks for write_back copies; the caller resets it to 0.
    ``on_event``: None, or called as on_event(kind, tokens, first_token).

    __init__(rules, *, page_size, device_tokens, host_tokens=0, write_policy="write_through", eviction="lru",
             load_back_threshold=10, transfers=None, radix=True)      also KvCache.from_params(params, transfers)

    One request's life, as the scheduler drives it:

        m = cache.match(h, limit)            # limit: h.total - 1 (admission) or h.total (lpm ordering, refresh); floored here
        cache.lock(m.device_node)            # the admission's lock
        loaded = cache.load_back(m, h, now)  # only if m.host; 0: refused. Evicts to make room as the version does
        prefix = cache.hold(h, m, loaded)    # locks the final node for the request; sets h.node, h.owned, h.committed = prefix
        cache.unlock(m.device_node)
        ticket, tokens = cache.start_loads(now)   # all queued loads as one operation; (None, 0) if none
        cache.make_room(tokens, now)         # evict_from_tree_cache: nothing if free >= tokens, else full / shortfall
        cache.extend(h, end) -> slots taken  # ceil(end) - ceil(h.committed); h.committed = end; raises InvariantError if not free
        cache.take(slots) -> bool            # decode steps in bulk: the scheduler keeps h.committed itself
        cache.checkpoint(h, upto, now, chunked=True|False)   # chunk stash / prefill result
        cache.finish(h, upto, now)           # insert upto tokens, free duplicates and tail up to ceil(h.committed), unlock
        cache.retract(h, now)                # free private, unlock, nothing inserted; h.node None, committed = owned = inserted = 0
        cache.poll(now)                      # event check (0.5.23: flush first)
        cache.flush(now)                     # 0.5.23: submit queued copies as one operation (after each result); 0.5.9 no-op
        cache.idle_transfers -> bool         # no copy and no load in flight or queued (0.5.23 is_fully_idle)
        cache.next_ack(now) -> int | None    # earliest time at which poll(now) would acknowledge something; None: nothing
        cache.queued_loads, in_flight_writes, in_flight_loads  # ints: loads not started; s[4], s[5] of the recordings
        cache.reset()                        # flush both tiers (nothing may be held)

    With ``radix=False`` (ChunkCache) match gives 0, checkpoint and finish insert nothing, evictable stays 0; the root is
    the node of every holding. Frees within one result need no grouping: nothing allocates device slots in between.
    """
