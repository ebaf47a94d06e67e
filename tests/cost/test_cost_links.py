from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cost.links import CopyMode, Links
from kvsim.cost.modes import CopyCosts, Layout, dma_rate, mode_rates
from kvsim.cost.topology import Shared, Topology, check_possible, pcie_ceiling
from kvsim.errors import ConfigError, UnknownName

MS = 10**9
TOY = CopyMode((100_000, 100_000))


def toy_links(**topology: object) -> Links:
    return Links(Topology(1, 50e9, 50e9, **topology), TOY)


def test_four_loads_in_one_fifo_finish_one_after_the_other() -> None:
    links = toy_links()
    tickets = [links.load(1000, 0) for _ in range(4)]
    assert [links.finish_time(t, 0) for t in tickets] == [2 * MS, 4 * MS, 6 * MS, 8 * MS]
    assert [links.done(t, 4 * MS) for t in tickets] == [True, True, False, False]


def test_a_load_slows_down_by_the_duplex_factor_while_stores_fill_the_other_direction() -> None:
    links = toy_links(duplex=(0.8, 0.5))
    links.write(100_000, 0)
    load = links.load(1000, 0)
    assert links.finish_time(load, 0) == 2 * MS * 10 // 8


def test_a_load_speeds_up_again_when_the_store_ends() -> None:
    links = toy_links(duplex=(0.5, 0.5))
    store, load = links.write(1000, 0), links.load(2000, 0)
    assert links.finish_time(store, 0) == 4 * MS
    assert links.finish_time(load, 0) == 4 * MS + 2 * MS


def test_a_store_submitted_later_slows_only_what_is_left_of_the_load() -> None:
    links = toy_links(duplex=(0.5, 0.5))
    load = links.load(2000, 0)
    assert links.finish_time(load, 0) == 4 * MS
    links.write(100_000, 2 * MS)
    assert links.finish_time(load, 2 * MS) == 6 * MS


@pytest.mark.parametrize(("a", "c", "on", "off"), [(1, 2, 21, 30), (3, 2, 32, 50)])
def test_o16_layerwise_load_and_compute_overlap_or_follow_each_other(a: int, c: int, on: int, off: int) -> None:
    for layerwise, expected in ((True, on), (False, off)):
        links = Links(Topology(1, 1e9, 1e9), CopyMode((a * 10**6, 1), layerwise=layerwise))
        end = links.finish_with_load(links.load(10, 0), 0, c * 10 * MS, 10)
        assert end == expected * MS
        assert 10 * max(a, c) * MS <= end <= 10 * (a + c) * MS


@given(st.integers(1, 80), st.integers(1, 10**6), st.integers(1, 10**12), st.integers(0, 10**10))
@settings(max_examples=200, deadline=None)
def test_layerwise_end_is_the_pipeline_computed_layer_by_layer(layers: int, size: int, compute: int, late: int) -> None:
    links = Links(Topology(1, 50e9, 50e9, (0.5, 0.5)), CopyMode((size, size)))
    links.write(500, 0)
    load = links.load(1000, 0)
    links.finish_time(load, 0)
    end = late
    for i in range(1, layers + 1):
        end = max(end, _ready(load, i, layers)) + compute / layers
    assert abs(links.finish_with_load(load, late, compute, layers) - end) <= 2 * layers + 2


def _ready(copy: object, i: int, layers: int) -> float:
    target = copy.bytes * 10**12 * i / layers
    moved = 0.0
    for k, (at, _, rates) in enumerate(copy.course()):
        until = copy.course()[k + 1][0] if k + 1 < len(copy.course()) else copy.end
        if moved + rates[0] * (until - at) >= target * (1 - 1e-12):
            return at + (target - moved) / rates[0]
        moved += rates[0] * (until - at)
    return copy.end


def test_a_load_that_arrived_before_the_step_costs_nothing() -> None:
    links = toy_links()
    load = links.load(1000, 0)
    assert links.finish_with_load(load, 5 * MS, 7 * MS, 10) == 12 * MS


def test_compute_is_slower_only_while_a_copy_kernel_runs() -> None:
    links = Links(Topology(1, 50e9, 50e9), CopyMode((100_000, 100_000), interference=0.5))
    load = links.load(1000, 0)
    assert links.finish_with_load(load, 0, 100 * MS, 1_000_000) == pytest.approx(2 * MS + (100 - 2 / 1.5) * MS, rel=1e-4)


def test_direct_mode_blocks_the_launch_while_descriptors_are_built() -> None:
    links = Links(Topology(1, 50e9, 50e9), CopyMode((100_000, 100_000), cpu_ps_per_token=10_000_000))
    load = links.load(1000, 0)
    assert links.finish_with_load(load, 0, 7 * MS, 10) == 10 * MS + 7 * MS


DRAM = Shared("dram", tuple(range(8)), 100e9, both_ways=True)
PAIRS = tuple(Shared(f"uplink{i}", (2 * i, 2 * i + 1), 50e9) for i in range(4))


@pytest.mark.parametrize(("shared", "seconds"), [((), 0.2), ((DRAM,), 0.8), (PAIRS, 0.4), ((*PAIRS, DRAM), 0.8)])
def test_o17_eight_gpus_share_uplinks_and_host_memory(shared: tuple[Shared, ...], seconds: float) -> None:
    links = Links(Topology(8, 50e9, 50e9, shared=shared), CopyMode((10**9, 10**9)))
    assert links.finish_time(links.load(10, 0), 0) == round(seconds * 10**12)


def test_replicated_latents_load_eight_times_the_bytes_of_a_sharded_model() -> None:
    full = Links(Topology(8, 50e9, 50e9, shared=(DRAM,)), CopyMode((70_272, 70_272)))
    sharded = Links(Topology(8, 50e9, 50e9, shared=(DRAM,)), CopyMode((70_272 // 8, 70_272 // 8)))
    times = [links.finish_time(links.load(100_000, 0), 0) for links in (full, sharded)]
    assert times[0] == pytest.approx(8 * times[1], rel=1e-6)


@pytest.mark.parametrize(
    ("gpus", "uplinks", "per_gpu"),
    [
        (1, (Shared("u0", (0,), 57e9),), 55.0),
        (8, (Shared("u0", (0, 1, 2, 3), 57e9), Shared("u1", (4, 5, 6, 7), 57e9)), 14.26),
        (
            8,
            (
                Shared("u0", (0, 1, 2, 3), 57e9),
                Shared("u1", (4, 5, 6, 7), 57e9),
                Shared("root", tuple(range(8)), 73.1e9),
            ),
            9.14,
        ),
    ],
)
def test_s08_measured_rates_per_gpu_behind_switches(gpus: int, uplinks: tuple[Shared, ...], per_gpu: float) -> None:
    loading, _ = Topology(gpus, 55e9, 56e9, shared=uplinks).rates(range(gpus), ())
    assert [rate / 1e9 for rate in loading] == pytest.approx([per_gpu] * gpus, rel=0.01)


def test_gpus_behind_uneven_uplinks_finish_apart_and_the_copy_waits_for_the_slowest() -> None:
    uneven = Topology(3, 50e9, 50e9, shared=(Shared("u", (0, 1), 50e9), Shared("dram", (0, 1, 2), 75e9, both_ways=True)))
    links = Links(uneven, CopyMode((10**9, 1)))
    copy = links.load(25, 0)
    assert links.finish_time(copy, 0) == 10**12
    assert len(links._classes) == 2


def test_o15_the_ceiling_of_gen5_x16_is_63_gigabytes_per_second() -> None:
    assert pcie_ceiling(5, 16) / 1e9 == pytest.approx(63.0, abs=0.05)
    assert 2_097_152 / pcie_ceiling(5, 16) * 1e6 == pytest.approx(33.28, abs=0.02)


def test_o15_a_rate_above_the_ceiling_is_refused_with_the_ceiling_shown() -> None:
    with pytest.raises(ConfigError, match=r"200\.0 GB/s.*at most 63\.0 GB/s.*32 GT/s x 16 x 128/130 / 8"):
        check_possible("links.h2d", 200e9, 5)


def test_batch_copies_of_page_16_are_eight_times_slower_than_of_page_64() -> None:
    slow, fast = (mode_rates("batch", Layout(page, 61, 1152 * page / page), CopyCosts())[0] for page in (16, 64))
    assert fast / slow == pytest.approx(8, rel=0.05)


@pytest.mark.parametrize(
    ("mode", "page", "ms"),
    [
        ("kernel", 1, 76.78),
        ("batch", 64, 44.52),
        ("batch", 16, 357.5),
        ("direct", 16, 374.8),
        ("direct", 64, 93.72),
        ("page_contig", 1, 44.57),
    ],
)
def test_copy_modes_give_the_worked_examples(mode: str, page: int, ms: float) -> None:
    caps = mode_rates(mode, Layout(page, 61, 1152), CopyCosts())
    links = Links(Topology(8, 55e9, 56e9, mode_caps=caps), CopyMode((70_272, 70_272), setup_ps=20_000_000))
    assert links.finish_time(links.load(32_768, 0), 0) / 1e9 == pytest.approx(ms, rel=0.01)


def test_an_unknown_copy_mode_is_named_with_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="kernel"):
        mode_rates("kernal", Layout(1, 61, 1152), CopyCosts())


def test_completed_copies_are_handed_out_once() -> None:
    links = toy_links()
    links.load(1000, 0)
    links.write(500, 1 * MS)
    assert links.drain_completed() == [("h2d", 0, 0, 2 * MS, 1000, 10**8), ("d2h", MS, MS, 2 * MS, 500, 5 * 10**7)]
    assert links.drain_completed() == []
    assert links.busy_ps("h2d", MS, 3 * MS) == MS


def test_next_done_names_the_copy_that_completes_first() -> None:
    links = toy_links()
    assert links.next_done(0) is None
    links.load(1000, 0)
    links.write(100, 0)
    assert links.next_done(0) == MS // 5
    assert links.next_done(MS) == 2 * MS
    assert links.next_done(2 * MS) is None


def test_s08_single_dma_commands_follow_the_measured_curve(shared: object) -> None:
    import csv

    with open(shared / "groundtruth" / "C1_vllm_h100_transfer_curve.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["mode"] in {"H2D_DMA", "D2H_DMA"}]
    assert len(rows) == 26
    for row in rows:
        measured, predicted = float(row["GB_s"]), dma_rate(float(row["block_kB"]) * 1024) / 1e9
        assert abs(predicted - measured) <= max(0.10 * measured, 1.0), row
