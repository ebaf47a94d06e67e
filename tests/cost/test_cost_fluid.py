from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cost.fluid import max_min_rates
from kvsim.cost.links import CopyMode, Links
from kvsim.cost.topology import Shared, Topology

caps = st.one_of(st.none(), st.integers(1, 10**11).map(float))


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[list[str]], dict[str, float], list[float | None]]:
    names = [f"r{i}" for i in range(draw(st.integers(1, 6)))]
    capacity = {name: float(draw(st.integers(1, 10**11))) for name in names}
    flows = draw(st.lists(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True), min_size=1, max_size=10))
    return flows, capacity, [draw(caps) for _ in flows]


@given(networks())
@settings(max_examples=200, deadline=None)
def test_no_capacity_is_ever_exceeded(network: tuple[list[list[str]], dict[str, float], list[float | None]]) -> None:
    flows, capacity, limits = network
    rates = max_min_rates(flows, capacity, limits)
    for name, value in capacity.items():
        assert sum(rate for rate, path in zip(rates, flows, strict=True) if name in path) <= value
    assert all(limit is None or rate <= limit for rate, limit in zip(rates, limits, strict=True))


@given(networks())
@settings(max_examples=200, deadline=None)
def test_every_flow_meets_a_full_resource_where_none_is_faster_or_its_own_limit(
    network: tuple[list[list[str]], dict[str, float], list[float | None]],
) -> None:
    flows, capacity, limits = network
    rates = max_min_rates(flows, capacity, limits)
    for i, path in enumerate(flows):
        at_limit = limits[i] is not None and rates[i] >= limits[i] - 1
        bottleneck = any(
            sum(r for r, other in zip(rates, flows, strict=True) if name in other) >= capacity[name] - len(flows)
            and all(rates[j] <= rates[i] + 1 for j, other in enumerate(flows) if name in other)
            for name in path
        )
        assert at_limit or bottleneck


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    gpus = draw(st.integers(1, 8))
    shared = []
    for i in range(draw(st.integers(0, 4))):
        members = draw(st.lists(st.integers(0, gpus - 1), min_size=1, max_size=gpus, unique=True))
        shared.append(Shared(f"s{i}", tuple(sorted(members)), float(draw(st.integers(10**9, 10**11))), draw(st.booleans())))
    link = float(draw(st.integers(10**9, 10**11)))
    return Topology(gpus, link, link, (0.9, 0.8), tuple(shared), (30e9, 28e9))


operations = st.lists(
    st.tuples(st.sampled_from(["load", "write"]), st.integers(0, 2000), st.integers(0, 30_000_000_000), st.booleans()),
    min_size=1,
    max_size=12,
)


@given(topologies(), operations)
@settings(max_examples=150, deadline=None)
def test_bytes_are_conserved_on_any_topology(topology: Topology, ops: list[tuple[str, int, int, bool]]) -> None:
    links, now, tickets = Links(topology, CopyMode((70_272, 70_272), setup_ps=20_000_000)), 0, []
    for kind, tokens, gap, _ in ops:
        now += gap
        tickets.append(getattr(links, kind)(tokens, now))
    for ticket in tickets:
        end = links.finish_time(ticket, now)
        for number in range(len(links._classes)):
            moved = 0
            for k, (at, _, rates) in enumerate(ticket.course()):
                until = ticket.course()[k + 1][0] if k + 1 < len(ticket.course()) else end
                moved += rates[number] * (until - at)
            size, fastest = ticket.bytes * 10**12, max((p[2][number] for p in ticket.course()), default=0)
            assert size <= moved <= size + fastest * (1 + len(ticket.course()))


@given(topologies(), operations)
@settings(max_examples=150, deadline=None)
def test_asking_changes_nothing_to_the_picosecond(topology: Topology, ops: list[tuple[str, int, int, bool]]) -> None:
    mode = CopyMode((70_272, 70_272), setup_ps=20_000_000, floor_ps=600_000_000)
    quiet, curious, now, tickets = Links(topology, mode), Links(topology, mode), 0, []
    for kind, tokens, gap, ask in ops:
        now += gap
        if ask and tickets:
            curious.done(tickets[0], now - gap // 2)
            curious.finish_time(tickets[-1], now)
            curious.next_done(now)
        getattr(quiet, kind)(tokens, now)
        tickets.append(getattr(curious, kind)(tokens, now))
    assert quiet.drain_completed() == curious.drain_completed()


@given(st.integers(1, 8), operations, st.booleans())
@settings(max_examples=100, deadline=None)
def test_links_whose_rates_never_change_agree_with_the_general_plan(gpus: int, ops: list[tuple[str, int, int, bool]], floor: bool) -> None:
    topology = Topology(gpus, 55e9, 56e9, (0.93, 0.93), (Shared("dram", tuple(range(gpus)), 600e9, True),), (30e9, 28e9))
    mode = CopyMode((70_272, 70_272), setup_ps=20_000_000, floor_ps=600_000_000 if floor else 0)
    steady, general, now = Links(topology, mode), Links(topology, mode), 0
    assert steady._steady == ((20_000_000, 30_000_000_000), (20_000_000, 28_000_000_000))
    general._steady = None
    for kind, tokens, gap, _ in ops:
        now += gap
        one, other = getattr(steady, kind)(tokens, now), getattr(general, kind)(tokens, now)
        assert steady.finish_time(one, now) == general.finish_time(other, now)
        assert steady.next_done(now) == general.next_done(now)
        if kind == "load":
            assert steady.finish_with_load(one, now, 10**9, 61) == general.finish_with_load(other, now, 10**9, 61)
    assert steady.drain_completed() == general.drain_completed()
