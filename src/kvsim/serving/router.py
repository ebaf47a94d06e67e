"""Which replica gets a request: one class per policy, registered under its name.

Cache-aware: SGLang's router (sglang_router, policy cache_aware, defaults of its router_args: cache_threshold 0.3, balance_abs_threshold
64, balance_rel_threshold 1.5, max_tree_size 2^26 characters; first releases had 0.5, 32, 1.0001): it keeps an approximate radix tree per
worker of what it sent there. Balanced, it follows the longest match when that is more than ``cache_threshold`` of the prompt, else it picks
the worker with the smallest tree; unbalanced (max - min > balance_abs and max > min x balance_rel) it picks the shortest queue. The tree
is cut at a quarter of its characters in tokens, when it is full (the router does it every two minutes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from kvsim.errors import UnknownName
from kvsim.rng import stream
from kvsim.workload.prefixes import PrefixTree

if TYPE_CHECKING:
    from kvsim.workload.spec import RequestSpec

Loads = Sequence[tuple[int, int]]


class Router(Protocol):
    """Picks a replica for each request; ``loads`` are the replicas' (running, waiting)."""

    def pick(self, spec: RequestSpec, loads: Loads, now: int) -> int:
        """Return the index of the replica."""


ROUTERS: dict[str, Callable[[int, int], Router]] = {}


def register(name: str) -> Callable[[Callable[[int, int], Router]], Callable[[int, int], Router]]:
    """Register a router's class (built with replicas and seed) under a name."""

    def keep(build: Callable[[int, int], Router]) -> Callable[[int, int], Router]:
        ROUTERS[name] = build
        return build

    return keep


def build_router(name: str, replicas: int, *, seed: int) -> Router:
    """Return the router called ``name``. Raises UnknownName."""
    if name not in ROUTERS:
        raise UnknownName("router", name, ROUTERS)
    return ROUTERS[name](replicas, seed)


@register("round_robin")
class RoundRobin:
    """One after the other."""

    def __init__(self, replicas: int, seed: int) -> None:
        self._next, self._replicas = 0, replicas

    def pick(self, spec: RequestSpec, loads: Loads, now: int) -> int:
        """Return the next replica in turn."""
        chosen = self._next
        self._next = (chosen + 1) % self._replicas
        return chosen


@register("random")
class Uniform:
    """A seeded draw."""

    def __init__(self, replicas: int, seed: int) -> None:
        self._rng, self._replicas = stream(seed, "router"), replicas

    def pick(self, spec: RequestSpec, loads: Loads, now: int) -> int:
        """Return a random replica."""
        return self._rng.randrange(self._replicas)


@register("least_loaded")
class LeastLoaded:
    """Fewest requests in the system; the first of equals."""

    def __init__(self, replicas: int, seed: int) -> None:
        pass

    def pick(self, spec: RequestSpec, loads: Loads, now: int) -> int:
        """Return the replica with the fewest requests."""
        totals = [running + waiting for running, waiting in loads]
        return totals.index(min(totals))


@register("power_of_two")
class PowerOfTwo:
    """The less loaded of two random ones."""

    def __init__(self, replicas: int, seed: int) -> None:
        self._rng = stream(seed, "router")

    def pick(self, spec: RequestSpec, loads: Loads, now: int) -> int:
        """Return the less loaded of two draws."""
        if len(loads) < 2:
            return 0
        a, b = self._rng.sample(range(len(loads)), 2)
        return a if sum(loads[a]) <= sum(loads[b]) else b


@register("sticky")
class Sticky:
    """A session stays where its first turn went (round robin); requests without a session go round robin."""

    def __init__(self, replicas: int, seed: int) -> None:
        self._fallback = RoundRobin(replicas, seed)
        self._home: dict[str, int] = {}

    def pick(self, spec: RequestSpec, loads: Loads, now: int) -> int:
        """Return the session's replica."""
        if spec.session is None:
            return self._fallback.pick(spec, loads, now)
        if spec.session not in self._home:
            self._home[spec.session] = self._fallback.pick(spec, loads, now)
        return self._home[spec.session]


@register("cache_aware")
class CacheAware:
    """Longest approximate match while the load is balanced, else the shortest queue."""

    cache_threshold = 0.3
    balance_abs = 64
    balance_rel = 1.5
    max_tree_tokens = 1 << 24

    def __init__(self, replicas: int, seed: int) -> None:
        self._trees = [PrefixTree(self.max_tree_tokens) for _ in range(replicas)]

    def pick(self, spec: RequestSpec, loads: Loads, now: int) -> int:
        """Return the replica, and remember what it was sent."""
        totals = [running + waiting for running, waiting in loads]
        low, high = min(totals), max(totals)
        if high - low > self.balance_abs and high > low * self.balance_rel:
            chosen = totals.index(low)
        else:
            matches = [tree.match(spec.prompt, spec.namespace) for tree in self._trees]
            best = max(matches)
            if best > self.cache_threshold * spec.prompt_tokens:
                chosen = matches.index(best)
            else:
                sizes = [tree.size for tree in self._trees]
                chosen = sizes.index(min(sizes))
        self._trees[chosen].insert(spec.prompt, spec.namespace)
        return chosen
