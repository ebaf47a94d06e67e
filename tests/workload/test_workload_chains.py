"""Block ids become runs of tokens: the same as an interning of (parent, id) pairs, however the ids are numbered."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.workload.chains import MADE, Chains

BLOCK = 16


def naive(requests):
    """Give every request the list of its own ids: an id keeps its number behind its first parent only."""
    parents, made, out = {}, {}, []
    for ids in requests:
        own, previous = [], -1
        for block in ids:
            if parents.setdefault(block, previous) == previous:
                previous = block
            else:
                previous = made.setdefault((previous, block), MADE + 2 * len(made))
            own.append(previous)
        out.append(own)
    return out


def blocks_of(runs):
    return [first // BLOCK + i for first, count in runs for i in range(count // BLOCK)]


scattered = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 1 << 50)), max_size=8)
in_order = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 6)), max_size=4).map(
    lambda spans: [first + i for first, count in spans for i in range(count)]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(scattered, in_order), max_size=25))
def test_ids_are_told_apart_by_what_stands_before_them(requests):
    chains = Chains(BLOCK)
    assert [blocks_of(chains.runs(ids, len(ids) * BLOCK)) for ids in requests] == naive(requests)


def test_ids_numbered_in_order_cost_no_memory_of_their_own():
    chains = Chains(BLOCK)
    for first in range(0, 100_000, 100):
        chains.runs(list(range(first, first + 100)), 100 * BLOCK)
    assert len(chains._named) == 1000  # the first block of each request


def test_a_second_file_numbered_from_elsewhere_costs_no_more():
    chains = Chains(BLOCK)
    for start in (0, 10_000_000, 20_000_000):
        chains.runs(list(range(start, start + 100)), 100 * BLOCK)
    chains.runs(list(range(10_000_000, 10_000_050)), 50 * BLOCK)
    assert len(chains._named) == 3
