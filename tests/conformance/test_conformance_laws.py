"""Thirty-odd laws that any simulator of a tiered KV cache should keep; one line of law, one test each (docs/reference/conformance.md).

Runnable alone: python -m pytest tests/conformance
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

import itertools

from sim_world import ListClient, request, run_specs, summary_of, toy

from kvsim.config.load import load, load_data
from kvsim.config.resolve import resolve
from kvsim.record.recording import Recording
from kvsim.workload.prefixes import PrefixTree

HOST = "engine.hicache.host_tokens={}"
LONG = ((1_000, 5000),)


def revisit() -> list[Any]:
    """A long prompt, ten one-shots, the same prompt again."""
    return [request(0, 0, 5000, 2, runs=LONG), *(request(i, 2.0 * i, 1000, 2) for i in range(1, 11)), request(11, 30, 5000, 2, runs=LONG)]


def chats(seed: int = 3, count: int = 60) -> list[Any]:
    """Random requests behind six shared prefixes."""
    rng = random.Random(seed)
    prefixes = [((7_000_000 * (k + 1), rng.randrange(500, 3000)),) for k in range(6)]
    specs, at = [], 0.0
    for i in range(count):
        at += rng.expovariate(3)
        prefix = rng.choice(prefixes)
        own = rng.randrange(50, 900)
        specs.append(request(i, at, prefix[0][1] + own, rng.randrange(1, 30), runs=(*prefix, ((i + 1) * 10_000_000, own))))
    return specs


def hits(recording: Recording) -> int:
    return sum(row.device_hit + row.host_hit for row in recording.requests)


def last_ttft(recording: Recording) -> float:
    row = max(recording.requests, key=lambda r: r.arrival_ps)
    assert row.first_token_ps is not None
    return (row.first_token_ps - row.arrival_ps) * 1e-12


def test_01_host_hits_change_time() -> None:
    assert last_ttft(run_specs(revisit(), HOST.format(20_000))) < last_ttft(run_specs(revisit(), HOST.format(0)))


def test_02_an_inclusive_tier_of_the_devices_size_buys_nothing() -> None:
    assert hits(run_specs(revisit(), HOST.format(10_100))) <= hits(run_specs(revisit(), HOST.format(20_000)))
    assert run_specs(revisit(), HOST.format(10_100)).requests[-1].host_hit == 0


def test_03_a_link_below_the_break_even_hurts() -> None:
    assert last_ttft(run_specs(revisit(), HOST.format(20_000), "links.h2d=0.5GB/s")) > last_ttft(run_specs(revisit(), HOST.format(0)))


def test_04_hits_never_exceed_what_an_unlimited_cache_could_serve() -> None:
    tree, ceiling = PrefixTree(), 0
    for spec in chats():
        ceiling += min(tree.match(spec.prompt, ""), spec.prompt_tokens - 1)
        tree.insert(spec.prompt, "")
    assert hits(run_specs(chats(), HOST.format(200_000))) <= ceiling


def test_05_more_host_ram_never_lowers_hits_under_page_granular_lru() -> None:
    found = [hits(run_specs(chats(), "engine.page_size=100", HOST.format(host))) for host in (0, 20_000, 40_000, 200_000)]
    assert found == sorted(found)


def test_06_tiers_add_up_to_prompt_tokens() -> None:
    found = summary_of(run_specs(chats(), HOST.format(30_000)))["hits"]
    assert found["device_tokens"] + found["host_tokens"] + found["miss_tokens"] == found["prompt_tokens"]


def test_07_a_request_larger_than_the_pool_is_refused() -> None:
    recording = run_specs([request(0, 0, 12_000, 10), request(1, 0, 100, 1)])
    assert {row.id: row.status for row in recording.requests} == {"0": "refused", "1": "finished"}


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_08_mla_has_the_same_bytes_per_token_at_any_tp(tp: int) -> None:
    data = {"hardware": "8x-h200", "model": "kimi-k2.5-int4", "engine": {"tp": tp, "device_tokens": 1000}}
    assert resolve(load_data(data)).capacity.kv_bytes_per_token == 70_272


def test_09_host_bytes_repeat_per_rank_for_replicated_kv() -> None:
    capacity = resolve(load("hicache-ratio")).capacity
    assert capacity.host_bytes_total == 8 * capacity.host_bytes_per_rank


def test_10_every_request_is_accounted_for_once() -> None:
    recording = run_specs(chats(), HOST.format(30_000))
    assert sorted(int(row.id) for row in recording.requests) == list(range(60))


def test_11_a_finished_request_has_exactly_its_output_tokens() -> None:
    outputs = {spec.id: spec.output_tokens for spec in chats()}
    assert all(row.output_tokens == outputs[row.id] for row in run_specs(chats()).requests)


def test_12_causality() -> None:
    for row in run_specs(chats(), HOST.format(30_000)).requests:
        assert row.admitted_ps is not None
        assert row.first_token_ps is not None
        assert row.end_ps is not None
        assert row.arrival_ps <= row.admitted_ps < row.first_token_ps <= row.end_ps


def test_13_ttft_splits_exactly_into_queue_load_and_prefill() -> None:
    for row in run_specs(chats(), HOST.format(30_000), "links.h2d=1GB/s").requests:
        assert row.admitted_ps is not None
        assert row.first_token_ps is not None
        prefill = row.first_token_ps - row.admitted_ps - row.load_wait_ps
        assert prefill > 0
        assert (row.admitted_ps - row.arrival_ps) + row.load_wait_ps + prefill == row.first_token_ps - row.arrival_ps


def test_14_the_same_seed_gives_the_same_recording() -> None:
    assert toy().requests == toy().requests


def test_15_another_seed_gives_another_workload() -> None:
    assert toy().requests != toy("run.seed=2").requests


def test_16_no_reuse_means_no_hits_and_no_gain() -> None:
    specs = [request(i, i * 0.5, 1000, 5) for i in range(30)]
    off, on = run_specs(specs), run_specs(specs, HOST.format(40_000))
    assert hits(on) == 0
    assert [row.end_ps for row in on.requests] == [row.end_ps for row in off.requests]


def test_17_a_working_set_that_fits_the_device_has_no_host_hits() -> None:
    recording = run_specs(chats(), "engine.device_tokens=500000", HOST.format(900_000))
    assert all(row.host_hit == 0 for row in recording.requests)


def test_18_the_last_prompt_token_is_always_computed() -> None:
    recording = run_specs(
        [request(0, 0, 500, 1, runs=LONG[:1] and ((1_000, 500),)), request(1, 5, 500, 1, runs=((1_000, 500),))], "engine.page_size=1"
    )
    assert max(recording.requests, key=lambda row: row.arrival_ps).device_hit == 499


def test_19_hits_are_whole_pages() -> None:
    assert all(row.device_hit % 100 == 0 and row.host_hit % 100 == 0 for row in run_specs(chats(), HOST.format(30_000)).requests)


def test_20_a_retracted_request_still_ends_with_all_its_tokens() -> None:
    recording = run_specs([request(i, 0, 500, 1000) for i in range(4)], "engine.device_tokens=4000")
    assert sum(row.retractions for row in recording.requests) > 0
    assert [row.output_tokens for row in recording.requests] == [1000] * 4


def test_21_recomputation_never_counts_as_a_prefix_hit() -> None:
    recording = run_specs([request(i, 0, 500, 400) for i in range(12)], "engine.device_tokens=6000")
    assert sum(row.retractions for row in recording.requests) > 0
    assert hits(recording) == 0


def test_22_tenants_share_nothing() -> None:
    a, b = request(0, 0, 2000, 1, runs=((1_000, 2000),)), request(1, 5, 2000, 1, runs=((1_000, 2000),))
    b.namespace = "other"
    assert hits(run_specs([a, b])) == 0


def test_23_write_through_copies_every_cached_token_once() -> None:
    found = summary_of(run_specs([request(i, i * 0.5, 1000, 1) for i in range(10)], HOST.format(50_000)))["cache"]
    assert found["backed_up_tokens"] == 10_000


def test_24_write_back_copies_only_what_is_evicted() -> None:
    found = summary_of(
        run_specs([request(i, i * 0.5, 1000, 1) for i in range(8)], HOST.format(50_000), "engine.hicache.write_policy=write_back")
    )["cache"]
    assert found["backed_up_tokens"] == 0


def test_25_a_load_moves_exactly_the_host_hit() -> None:
    recording = run_specs(revisit(), HOST.format(20_000))
    loaded = sum(row[5] for row in recording.transfers if row[1] == "h2d")
    assert loaded == sum(row.host_hit for row in recording.requests) > 0


def test_26_a_copy_takes_bytes_over_rate() -> None:
    recording = run_specs(revisit(), HOST.format(20_000))
    for row in recording.transfers:
        assert row[4] - row[3] == pytest.approx(row[6] / 50e9 * 1e12, rel=1e-9)


def test_27_copies_of_one_direction_never_overlap() -> None:
    recording = run_specs(chats(), HOST.format(30_000), "links.d2h=0.2GB/s", "links.h2d=0.2GB/s")
    for way in ("h2d", "d2h"):
        rows = sorted((row[3], row[4]) for row in recording.transfers if row[1] == way)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(rows))


def test_28_steps_never_overlap() -> None:
    rows = sorted((row[2], row[3]) for row in run_specs(chats(), HOST.format(30_000)).steps)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(rows))


def test_29_occupancy_stays_within_the_pools() -> None:
    for row in run_specs(chats(), HOST.format(30_000)).steps:
        assert 0 <= row[14] <= 10_000
        assert 0 <= row[16] <= 30_000


def test_30_a_faster_prefill_never_makes_anybody_wait_longer_alone() -> None:
    slow, fast = (run_specs([request(0, 0, 4000, 5)], f"costs.prefill_tokens_per_s={rate}").requests[0] for rate in (5_000, 20_000))
    assert slow.end_ps is not None
    assert fast.end_ps is not None
    assert fast.end_ps < slow.end_ps


def test_31_littles_law_holds() -> None:
    found = summary_of(toy("workload.requests=3000"))["little"]
    assert abs(found["residual"]) < 0.02


def test_32_an_overload_is_called_one() -> None:
    assert summary_of(toy("workload.rate_per_s=14", "workload.requests=2000"))["overload"]["overloaded"]
    assert not summary_of(toy("workload.rate_per_s=3", "workload.requests=500"))["overload"]["overloaded"]


def test_33_a_closed_form_run_equals_its_steps() -> None:
    assert run_specs(chats()).requests == run_specs(chats(), "run.exact_steps=true").requests


def test_34_goodput_never_exceeds_throughput() -> None:
    found = summary_of(toy("slo={ttft: 150ms, tpot: 50ms}"))
    assert found["slo"]["goodput_requests_per_s"] <= found["throughput"]["requests_per_s"]


def test_35_a_client_that_waits_for_answers_never_has_more_in_flight_than_its_limit() -> None:
    recording = toy("workload.rate_per_s=1000", "workload.requests=200", "clients.concurrency=4")
    events = sorted([(row.arrival_ps, 1) for row in recording.requests] + [(row.end_ps or 0, -1) for row in recording.requests])
    level = 0
    for _, change in events:
        level += change
        assert level <= 4


def test_the_client_of_the_tests_sends_everything() -> None:
    client = ListClient(chats())
    toy(client=client)
    assert list(client.unsent()) == []
