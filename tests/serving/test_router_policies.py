from __future__ import annotations

from collections import Counter

import pytest

from kvsim.config.load import load
from kvsim.config.resolve import resolve
from kvsim.errors import UnknownName
from kvsim.serving.router import CacheAware, build_router
from kvsim.sim.simulate import simulate
from kvsim.workload.clients import OpenLoop
from kvsim.workload.prefixes import PrefixTree
from kvsim.workload.spec import RequestSpec


def spec(number: int, runs: list[tuple[int, int]], session: str | None = None, at: int = 0) -> RequestSpec:
    return RequestSpec(str(number), at, tuple(runs), sum(n for _, n in runs), 1, 10**9 + number, session=session)


IDLE = [(0, 0)] * 4


def test_round_robin_takes_turns():
    router = build_router("round_robin", 3, seed=1)
    assert [router.pick(spec(n, [(n, 1)]), IDLE[:3], 0) for n in range(6)] == [0, 1, 2, 0, 1, 2]


def test_least_loaded_counts_running_and_waiting():
    assert build_router("least_loaded", 3, seed=1).pick(spec(0, [(0, 1)]), [(3, 0), (1, 1), (0, 4)], 0) == 1


def test_random_is_seeded_and_even():
    one, two = build_router("random", 4, seed=7), build_router("random", 4, seed=7)
    draws = [one.pick(spec(n, [(n, 1)]), IDLE, 0) for n in range(4000)]
    assert draws == [two.pick(spec(n, [(n, 1)]), IDLE, 0) for n in range(4000)]
    assert all(900 < count < 1100 for count in Counter(draws).values())


def test_power_of_two_never_takes_the_most_loaded():
    router = build_router("power_of_two", 4, seed=3)
    assert 3 not in {router.pick(spec(n, [(n, 1)]), [(0, 0), (1, 0), (2, 0), (9, 9)], 0) for n in range(200)}


def test_sticky_keeps_a_session_where_it_began():
    router = build_router("sticky", 3, seed=1)
    homes = [router.pick(spec(n, [(n, 1)], session=f"s{n % 2}"), IDLE[:3], 0) for n in range(8)]
    assert homes == [0, 1] * 4


def test_cache_aware_follows_a_match_above_the_threshold():
    router = CacheAware(3, 1)
    home = router.pick(spec(0, [(0, 100)]), IDLE[:3], 0)
    assert router.pick(spec(1, [(0, 100), (5000, 50)]), IDLE[:3], 0) == home
    assert router.pick(spec(2, [(0, 30), (9000, 70)]), IDLE[:3], 0) != home  # exactly the threshold is not more than it


def test_cache_aware_takes_the_shortest_queue_when_unbalanced():
    router = CacheAware(2, 1)
    home = router.pick(spec(0, [(0, 100)]), IDLE[:2], 0)
    loads = [(65, 0), (0, 0)] if home == 0 else [(0, 0), (65, 0)]
    assert router.pick(spec(1, [(0, 100)]), loads, 0) == 1 - home
    loads = [(64, 0), (0, 0)] if home == 0 else [(0, 0), (64, 0)]
    assert CacheAware(2, 1).pick(spec(2, [(7, 100)]), loads, 0) in (0, 1)


def test_the_approximate_tree_matches_tokens_and_forgets_the_oldest_leaves():
    tree = PrefixTree(100)
    tree.insert(((0, 40),), "")
    tree.insert(((0, 20), (500, 30)), "")
    assert (tree.size, tree.match(((0, 30), (9, 9)), "")) == (70, 30)
    assert tree.match(((0, 40),), "tenant") == 0
    tree.insert(((1000, 60),), "")
    assert tree.size <= 100
    assert tree.match(((1000, 60),), "") == 60
    assert tree.match(((0, 40),), "") == 20


def test_an_unknown_router_names_the_known_ones():
    with pytest.raises(UnknownName, match="cache_aware"):
        build_router("nearest", 2, seed=1)


def replicas(router: str) -> list[RequestSpec]:
    """Eight conversations of four turns."""
    rows = []
    for turn in range(4):
        rows += [spec(10 * s + turn, [(100_000 * (s + 1), 500 * (turn + 1))], f"s{s}", at=(8 * turn + s) * 10**12) for s in range(8)]
    return rows


@pytest.mark.parametrize(("router", "keeps"), [("sticky", True), ("cache_aware", True), ("random", False)])
def test_routers_that_know_sessions_or_content_keep_the_cache(router: str, keeps: bool):
    resolved = resolve(load("toy", ["replicas=4", f"router={router}"]))
    recording = simulate(resolved, client=OpenLoop(replicas(router)))
    hits = sum(row.device_hit for row in recording.requests)
    best = 8 * sum(500 * turn for turn in range(1, 4))
    assert (hits == best) is keeps


def test_one_replica_is_not_a_mode():
    alone = simulate(resolve(load("toy", [])), client=OpenLoop(replicas("")))
    routed = simulate(resolve(load("toy", ["replicas=1", "router=cache_aware"])), client=OpenLoop(replicas("")))
    assert (alone.requests, alone.steps) == (routed.requests, routed.steps)
