"""One rule of the cache per test, on worlds small enough to follow by hand."""

import dataclasses

import pytest

from kvsim.content import canonical, cut, length
from kvsim.errors import InputError, InvariantError, UnknownName
from kvsim.kv.cache import Holding, KvCache
from kvsim.kv.eviction import ORDERS
from kvsim.kv.invariants import check, guard
from kvsim.rules.sglang import SGLANG_0_5_9, SGLANG_0_5_23
from kvsim.verify.clock import Delays

OLD, NEW = SGLANG_0_5_9, SGLANG_0_5_23
BOTH = pytest.mark.parametrize("rules", [OLD, NEW], ids=lambda rules: rules.name)


def cache_of(rules, device=100, host=0, page=1, delays=(0, 0), **more):
    more.setdefault("transfers", Delays(*delays))
    return guard(KvCache(rules, page_size=page, device_tokens=device, host_tokens=host, **more))


def holding(*runs, out=1_000_000, **more):
    prompt = canonical(runs)
    return Holding(prompt, length(prompt), out, **more)


def start(cache, h, now=0):
    """Admit and compute the whole prompt; return (device hit, loaded)."""
    match = cache.match(h, h.total - 1)
    cache.lock(match.device_node)
    loaded = cache.load_back(match, h, now) if match.host else 0
    prefix = cache.hold(h, match, loaded)
    cache.unlock(match.device_node)
    cache.start_loads(now)
    cache.make_room(h.total - prefix + (cache.page if cache.page > 1 else 0), now)
    cache.extend(h, h.total)
    return match.device, loaded


def serve(cache, h, outputs=1, now=0):
    """One whole request with ``outputs`` generated tokens (no overlap: the last one is not cached)."""
    got = start(cache, h, now)
    cache.checkpoint(h, h.total, now, chunked=False)
    h.outputs += 1
    cache.flush(now)
    for _ in range(outputs - 1):
        cache.make_room(cache.page, now)
        cache.extend(h, h.committed + 1)
        h.outputs += 1
    cache.finish(h, h.committed, now)
    cache.flush(now)
    return got


def shape(cache):
    """The tree without lock and hit counts."""
    return [row[:5] for row in cache.dump()]


# ---- matching, splitting, pages ----


@BOTH
def test_one_token_of_a_repeated_prompt_is_always_computed(rules):
    cache = cache_of(rules)
    assert serve(cache, holding((0, 10))) == (0, 0)
    assert serve(cache, holding((0, 10))) == (9, 0)


@BOTH
def test_a_repeated_prompt_of_whole_pages_hits_one_page_less(rules):
    cache = cache_of(rules, page=16)
    serve(cache, holding((0, 48)))
    assert serve(cache, holding((0, 48))) == (32, 0)


@BOTH
def test_generated_tokens_are_matched_by_the_next_turn(rules):
    cache = cache_of(rules)
    serve(cache, holding((0, 10), out=500), outputs=6)
    assert serve(cache, holding((0, 10), (500, 6), (70, 4)))[0] == 15


@BOTH
def test_a_page_that_differs_in_one_token_does_not_match(rules):
    cache = cache_of(rules, page=16)
    serve(cache, holding((0, 32)))
    assert cache.match(holding((0, 31), (900, 17)), 47).device == 16
    assert cache.match(holding((0, 15), (900, 33)), 47).device == 0


@BOTH
def test_a_lookup_splits_the_node_it_matches_in_part(rules):
    cache = cache_of(rules)
    serve(cache, holding((0, 20)))
    assert shape(cache) == [[0, 20, 0, 1, 0]]
    assert cache.match(holding((0, 12), (500, 5)), 17).device == 12
    assert shape(cache) == [[0, 12, 0, 1, 0], [1, 8, 12, 1, 0]]


@BOTH
def test_the_limit_cuts_a_match_in_the_middle_of_a_node(rules):
    cache = cache_of(rules)
    serve(cache, holding((0, 20)))
    assert cache.match(holding((0, 20)), 7).device == 7


@BOTH
def test_content_of_many_runs_matches_exactly_to_the_token(rules):
    runs = [(1000 * i, 3) for i in range(40)]
    cache = cache_of(rules, device=400)
    serve(cache, holding(*runs))
    for limit in (1, 2, 3, 4, 59, 60, 61, 119):
        assert cache.match(holding(*runs), limit).device == limit
    assert cache.match(holding(*runs[:20], (1000 * 20, 2), (7, 9)), 71).device == 62


@BOTH
def test_namespaces_share_nothing(rules):
    cache = cache_of(rules, device=200, page=4)
    serve(cache, holding((0, 20), namespace="a"))
    assert cache.match(holding((0, 20), namespace="b"), 19).device == 0
    assert cache.match(holding((0, 20)), 19).device == 0
    serve(cache, holding((0, 20), namespace="b"))
    assert cache.match(holding((0, 20), namespace="a"), 19).device == 16
    assert cache.device_used == 40
    check(cache, [])


@BOTH
@pytest.mark.parametrize("page", [1, 7, 64, 784])
def test_long_contexts_cost_no_token_lists(rules, page):
    cache = cache_of(rules, device=500_000, page=page)
    serve(cache, holding((0, 120_001)))
    assert serve(cache, holding((0, 120_001)))[0] == 120_000 // page * page


# ---- inserting ----


@BOTH
def test_a_duplicate_computed_at_the_same_time_is_freed(rules):
    cache = cache_of(rules)
    a, b = holding((0, 30)), holding((0, 30))
    start(cache, a)
    start(cache, b)
    assert cache.device_used == 60
    cache.checkpoint(a, 30, 0, chunked=False)
    cache.checkpoint(b, 30, 0, chunked=False)
    assert cache.device_used == 30
    assert (a.owned, b.owned) == (30, 30)
    check(cache, [a, b])


@BOTH
def test_the_unaligned_tail_of_a_chunk_stays_private(rules):
    cache = cache_of(rules, page=4)
    h = holding((0, 30))
    match = cache.match(h, 29)
    cache.hold(h, match, 0)
    cache.extend(h, 10)
    cache.checkpoint(h, 10, 0, chunked=True)
    assert (h.owned, h.committed, cache.device_used, cache.protected) == (8, 10, 12, 8)
    cache.extend(h, 20)
    cache.checkpoint(h, 20, 0, chunked=True)
    assert shape(cache) == [[0, 8, 0, 1, 0], [1, 12, 8, 1, 0]]


@BOTH
def test_finishing_frees_the_partial_last_page(rules):
    cache = cache_of(rules, page=4, device=40)
    serve(cache, holding((0, 10)), outputs=4)
    assert (cache.device_used, cache.evictable, cache.protected) == (12, 12, 0)


@BOTH
def test_a_retracted_request_leaves_only_what_the_tree_owned(rules):
    cache = cache_of(rules)
    h = holding((0, 10))
    start(cache, h)
    cache.checkpoint(h, 10, 0, chunked=False)
    cache.extend(h, 14)
    cache.retract(h, 0)
    assert (cache.free, cache.evictable, cache.protected) == (90, 10, 0)
    assert (h.node, h.owned, h.committed, h.inserted) == (None, 0, 0, 0)


def test_prompt_and_output_share_a_node_after_a_retraction_in_0_5_9_only():
    for rules, nodes in ((OLD, 1), (NEW, 2)):
        cache = cache_of(rules)
        h = holding((0, 10))
        h.outputs = 5
        start(cache, h)
        cache.checkpoint(h, 15, 0, chunked=False)
        assert len(cache.dump()) == nodes


# ---- eviction ----


def test_0_5_9_evicts_the_full_amount_and_0_5_23_the_shortfall():
    """Worked example E12 of sglang_scheduler.md."""
    for rules, free in ((OLD, 30), (NEW, 20)):
        cache = cache_of(rules, device=40)
        for first in (0, 100, 200):
            serve(cache, holding((first, 10)))
        cache.make_room(20, 0)
        assert cache.free == free


@pytest.mark.parametrize(
    ("order", "victim"),
    [("lru", 100), ("mru", 0), ("fifo", 0), ("filo", 300), ("lfu", 200), ("slru", 200), ("priority", 300)],
)
def test_each_order_evicts_its_own_first_victim(order, victim):
    """0: oldest, used last and often; 100: twice, least recently; 200: once; 300: newest, lowest priority."""
    cache = cache_of(NEW, device=400, eviction=order)
    serve(cache, holding((0, 10), priority=2))
    serve(cache, holding((100, 10), priority=2))
    serve(cache, holding((100, 10), priority=2))
    serve(cache, holding((200, 10), priority=2))
    serve(cache, holding((300, 10), priority=0))
    for _ in range(3):
        serve(cache, holding((0, 10), priority=2))
        serve(cache, holding((300, 10), priority=0))
    for _ in range(2):
        serve(cache, holding((0, 10), priority=2))
    seen = []
    cache.on_event = lambda kind, tokens, first: seen.append((kind, first // 100 * 100))
    cache.evict(1, 0)
    assert seen[0] == ("drop", victim)


def test_lfu_is_lru_where_0_5_9_counts_no_hits():
    drops = []
    for order in ("lru", "lfu"):
        cache = cache_of(OLD, device=100, eviction=order)
        for first in (0, 100, 0, 0, 200, 100):
            serve(cache, holding((first, 10)))
        cache.on_event = lambda kind, tokens, first: drops.append((kind, tokens, first))
        cache.evict(100, 0)
    assert drops[: len(drops) // 2] == drops[len(drops) // 2 :]


@BOTH
def test_locked_paths_are_not_evicted(rules):
    cache = cache_of(rules)
    h = holding((0, 30))
    start(cache, h)
    cache.checkpoint(h, 30, 0, chunked=False)
    assert cache.evict(100, 0) == 0
    cache.finish(h, 30, 0)
    assert cache.evict(100, 0) == 30


@BOTH
def test_a_parent_follows_its_last_child_out(rules):
    cache = cache_of(rules)
    serve(cache, holding((0, 20), (500, 5)))
    serve(cache, holding((0, 20), (600, 5)))
    assert cache.evict(11, 0) == 30
    assert cache.dump() == []


def test_an_unknown_order_or_policy_is_named_with_the_known_ones():
    with pytest.raises(UnknownName, match=r"unknown eviction order 'lur' \(did you mean 'lru'\?\); known: fifo"):
        KvCache(OLD, page_size=1, device_tokens=10, eviction="lur")
    with pytest.raises(UnknownName, match="write policy 'write_thru'"):
        KvCache(OLD, page_size=1, device_tokens=10, write_policy="write_thru")
    with pytest.raises(InputError, match="allowed: repaired, keep"):
        KvCache(dataclasses.replace(OLD, defects="both"), page_size=1, device_tokens=10)
    assert set(ORDERS) == {"lru", "lfu", "fifo", "mru", "filo", "priority", "slru"}


# ---- the host tier ----


@BOTH
def test_write_through_copies_a_prompt_at_prefill_end_and_the_output_at_finish(rules):
    cache = cache_of(rules, host=300)
    h = holding((0, 20))
    start(cache, h)
    cache.checkpoint(h, 20, 0, chunked=False)
    assert cache.backed_up == 20
    h.outputs += 1
    cache.extend(h, 21)
    h.outputs += 1
    cache.finish(h, 21, 0)
    assert cache.backed_up == 21


def test_selective_needs_a_second_insert_in_0_5_9_and_a_second_request_in_0_5_23():
    for rules, after_one in ((OLD, 20), (NEW, 0)):
        cache = cache_of(rules, host=300, write_policy="write_through_selective")
        serve(cache, holding((0, 20)))
        assert cache.backed_up == after_one
        serve(cache, holding((0, 20), (90, 4)))
        assert cache.backed_up >= 20


@BOTH
def test_a_demoted_prefix_is_loaded_back_from_ten_tokens_on(rules):
    for size, loaded in ((9, 0), (10, 10)):
        cache = cache_of(rules, host=300)
        serve(cache, holding((0, size)))
        cache.poll(1)
        cache.evict(100, 1)
        assert (cache.demoted, cache.device_used, cache.host_used) == (size, 0, size)
        assert start(cache, holding((0, size), (700, 5)), now=1) == (0, loaded)
        assert cache.in_flight_loads == (1 if loaded else 0)


@BOTH
def test_a_load_back_locks_its_path_until_it_is_acknowledged(rules):
    cache = cache_of(rules, host=300, delays=(0, 5))
    serve(cache, holding((0, 20)))
    cache.poll(1)
    cache.evict(100, 1)
    h = holding((0, 20), (700, 5))
    start(cache, h, now=1)
    cache.retract(h, 1)
    assert (cache.protected, cache.evictable, cache.next_ack(1)) == (20, 0, 6)
    cache.poll(5)
    assert cache.protected == 20
    cache.poll(6)
    assert (cache.protected, cache.evictable, cache.idle_transfers) == (0, 20, True)


@BOTH
def test_a_copy_in_flight_locks_its_node_until_it_is_acknowledged(rules):
    cache = cache_of(rules, host=300, delays=(7, 0))
    serve(cache, holding((0, 20)))
    assert (cache.protected, cache.in_flight_writes, cache.next_ack(0)) == (20, 1, 7)
    assert cache.evict(100, 0) == 0
    cache.poll(7)
    assert cache.evict(100, 7) == 20


def test_copies_of_one_result_are_one_operation_in_0_5_23_and_one_per_node_in_0_5_9():
    class Counting(Delays):
        __slots__ = ("sizes",)

        def write(self, tokens, now):
            self.sizes.append(tokens)
            return super().write(tokens, now)

    for rules, sizes in ((OLD, [8, 12]), (NEW, [20])):
        copies = Counting(0, 0)
        copies.sizes = []
        cache = cache_of(rules, host=300, transfers=copies)
        h = holding((0, 20))
        cache.hold(h, cache.match(h, 19), 0)
        cache.extend(h, 8)
        cache.checkpoint(h, 8, 0, chunked=True)
        cache.extend(h, 20)
        cache.checkpoint(h, 20, 0, chunked=False)
        cache.flush(0)
        assert copies.sizes == sizes


def test_chunked_inserts_copy_at_once_in_0_5_23_only():
    for rules, copied in ((OLD, 0), (NEW, 8)):
        cache = cache_of(rules, host=300)
        h = holding((0, 20))
        cache.hold(h, cache.match(h, 19), 0)
        cache.extend(h, 8)
        cache.checkpoint(h, 8, 0, chunked=True)
        assert cache.backed_up == copied


@BOTH
def test_recomputed_tokens_take_the_place_of_an_evicted_node(rules):
    cache = cache_of(rules, host=300)
    serve(cache, holding((0, 9)))
    cache.poll(1)
    cache.evict(100, 1)
    h = holding((0, 9), (700, 5))
    assert start(cache, h, now=1) == (0, 0)
    cache.checkpoint(h, 14, 1, chunked=False)
    assert shape(cache)[0] == [0, 9, 0, 1, 1]
    assert (cache.device_used, cache.host_used) == (14, 14)


@BOTH
def test_the_host_loses_its_least_recent_leaf_when_it_is_full(rules):
    cache = cache_of(rules, device=40, host=44)
    for first in (0, 100, 200):
        serve(cache, holding((first, 18)), now=first)
        cache.poll(first + 1)
        cache.evict(40, first + 1)
    assert cache.host_evicted == 18
    assert [row[2] for row in cache.dump()] == [100, 200]


def test_a_copy_that_does_not_fit_is_skipped_and_tried_again():
    cache = cache_of(NEW, device=100, host=12)
    serve(cache, holding((0, 20)))
    assert (cache.backed_up, cache.write_failures) == (0, 1)
    serve(cache, holding((0, 20), (700, 5)))
    assert cache.write_failures > 1


@BOTH
def test_write_back_copies_at_eviction_and_blocks(rules):
    cache = cache_of(rules, host=300, write_policy="write_back", delays=(9, 0))
    serve(cache, holding((0, 20)))
    assert (cache.backed_up, cache.stall_until) == (0, 0)
    cache.evict(5, 4)
    assert (cache.backed_up, cache.demoted, cache.stall_until) == (20, 20, 13)


def test_write_back_waits_for_all_victims_together_in_0_5_9_and_one_by_one_in_0_5_23():
    for rules, until in ((OLD, 9), (NEW, 18)):
        cache = cache_of(rules, host=300, write_policy="write_back", delays=(9, 0))
        serve(cache, holding((0, 20)))
        serve(cache, holding((100, 20)))
        cache.evict(40, 0)
        assert (cache.demoted, cache.stall_until) == (40, until)


def test_write_back_in_0_5_23_gives_up_copies_of_device_resident_nodes_first():
    cache = cache_of(NEW, device=60, host=42, write_policy="write_back")
    serve(cache, holding((0, 20)))
    cache.evict(20, 0)
    start(cache, holding((0, 20), (700, 5)), now=1)
    cache.poll(2)
    assert (cache.host_used, cache.evict_host(1)) == (20, 20)
    assert (cache.host_duplicates, cache.host_evicted) == (20, 0)


# ---- no radix cache, flushing, misuse ----


@BOTH
def test_without_the_radix_cache_nothing_is_shared_or_evictable(rules):
    cache = cache_of(rules, radix=False, host=300, page=4)
    assert serve(cache, holding((0, 20)), outputs=5) == (0, 0)
    assert serve(cache, holding((0, 20)), outputs=5) == (0, 0)
    h = holding((0, 20))
    start(cache, h)
    cache.checkpoint(h, 20, 0, chunked=False)
    assert (cache.device_used, cache.evictable, cache.protected, cache.evict(100, 0)) == (20, 0, 0, 0)
    cache.retract(h, 0)
    assert (cache.device_used, cache.host_used, cache.dump()) == (0, 0, [])


@BOTH
def test_flushing_empties_both_tiers(rules):
    cache = cache_of(rules, host=300)
    serve(cache, holding((0, 20)))
    cache.poll(1)
    cache.reset()
    assert (cache.free, cache.host_free, cache.evictable, cache.dump()) == (100, 300, 0, [])
    assert serve(cache, holding((0, 20))) == (0, 0)


@BOTH
def test_flushing_while_a_request_holds_tokens_is_refused(rules):
    cache = cache_of(rules)
    start(cache, holding((0, 20)))
    with pytest.raises(InvariantError, match="hold parts"):
        cache.reset()


@BOTH
def test_slots_that_are_not_free_cannot_be_taken(rules):
    cache = cache_of(rules, device=10)
    h = holding((0, 20))
    cache.hold(h, cache.match(h, 19), 0)
    with pytest.raises(InvariantError, match="20 device slots wanted, 10 free"):
        cache.extend(h, 20)
    assert not cache.take(11)
    assert cache.take(10)


@BOTH
def test_a_lock_released_twice_is_a_bug_that_is_noticed(rules):
    cache = cache_of(rules)
    serve(cache, holding((0, 20)))
    node = cache.match(holding((0, 20)), 19).device_node
    cache.lock(node)
    cache.unlock(node)
    with pytest.raises(InvariantError, match="more often than locked"):
        cache.unlock(node)


def test_a_host_tier_needs_transfers():
    with pytest.raises(InputError, match="needs transfers"):
        KvCache(OLD, page_size=1, device_tokens=10, host_tokens=20)


@BOTH
def test_equal_content_spelled_differently_is_equal(rules):
    cache = cache_of(rules)
    serve(cache, holding((0, 4), (4, 6)))
    assert cache.match(holding((0, 10), (50, 1)), 10).device == 10
    assert cut(canonical(((0, 4), (4, 6))), 0, 10) == ((0, 10),)


def test_an_insert_whose_own_backup_evicts_the_nodes_ahead_of_it_grows_them_anew():
    """Reachable with a single rule changed: the first node is too long for the host, its child is not."""
    cache = cache_of(dataclasses.replace(NEW, backup_chain=False), device=100, host=20)
    serve(cache, holding((0, 30)))
    serve(cache, holding((0, 30), (500, 9)))
    cache.poll(1)
    cache.evict(9, 1)
    assert shape(cache) == [[0, 30, 0, 1, 0], [1, 9, 500, 0, 1]]
    h = holding((0, 30), (500, 9), (600, 4))
    assert start(cache, h, now=1) == (30, 0)
    cache.checkpoint(h, 43, 1, chunked=False)
    assert cache.host_evicted == 9
    assert shape(cache) == [[0, 30, 0, 1, 0], [1, 13, 500, 1, 1]]
    assert (cache.device_used, h.owned) == (43, 43)
    check(cache, [h])


@BOTH
def test_a_request_looked_up_in_two_caches_matches_each_on_its_own(rules):
    here, there = cache_of(rules), cache_of(rules)
    serve(here, holding((0, 20)))
    serve(there, holding((0, 8), (700, 5)))
    h = holding((0, 20), (500, 5))
    assert [cache.match(h, 24).device for cache in (here, there, here, there)] == [20, 8, 20, 8]
    here.reset()
    assert here.match(h, 24).device == 0
