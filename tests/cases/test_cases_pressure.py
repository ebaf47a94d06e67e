"""Field reports of groups C, E and G: pressure, scheduling, queueing, goodput."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_world import case, rows, summary, ttft


def test_o18_throughput_recovers_after_retraction(shared: Path) -> None:
    wide = case(shared, "o18_retraction.jsonl", "engine.device_tokens=40000")
    assert summary(wide)["retractions"]["count"] == 0
    assert wide.manifest["end_ps"] * 1e-12 == pytest.approx(10.19, abs=1e-9)
    tight = case(shared, "o18_retraction.jsonl", "engine.device_tokens=4000")
    assert [row.output_tokens for row in tight.requests] == [1000] * 4
    assert summary(tight)["retractions"]["count"] == 3
    assert tight.manifest["end_ps"] * 1e-12 == pytest.approx(14.5, abs=0.05)


def test_o18_with_reservations_only_one_request_is_retracted(shared: Path) -> None:
    recording = case(shared, "o18_retraction.jsonl", "engine.device_tokens=4000", "engine.clip_max_new_tokens=4096")
    assert summary(recording)["retractions"]["count"] == 1
    assert 20.2 <= recording.manifest["end_ps"] * 1e-12 <= 20.5


def test_o20_recomputation_is_no_prefix_hit(shared: Path) -> None:
    found = summary(case(shared, "o20_unique_pressure.jsonl", "engine.device_tokens=6000"))
    assert 1 <= found["retractions"]["count"] <= 6  # the report: at least one
    assert found["hits"]["hit_rate"] == 0
    assert found["tokens"]["prompt"] == 6000
    assert found["hits"]["recompute_hit_tokens"] >= 0


@pytest.mark.parametrize(("size", "lru", "slru"), [("a_1300", 0, 2000), ("b_800", 2000, 2000)])
def test_o23_scans_flush_the_hot_prefix_under_lru(shared: Path, size: str, lru: int, slru: int) -> None:
    for rules in ("sglang-0.5.9", "sglang-0.5.23"):
        found = rows(case(shared, f"o23_scan_{size}.jsonl", f"engine.rules={rules}"))
        hot = [row for row in found if row.prompt_tokens > 1500]
        assert {row.device_hit for row in hot[2:]} == {lru}
    found = rows(case(shared, f"o23_scan_{size}.jsonl", "engine.rules=sglang-0.5.23", "engine.radix_eviction_policy=slru"))
    assert {row.device_hit for row in found if row.prompt_tokens > 1500 and row.arrival_ps > found[5].arrival_ps} == {slru}


@pytest.mark.parametrize(("policy", "fallback", "low", "high"), [("lpm", "off", 33, 34), ("lpm", "128", 9, 17), ("fcfs", "128", 1.0, 1.2)])
def test_o24_lpm_starves_a_cold_request(shared: Path, policy: str, fallback: str, low: float, high: float) -> None:
    recording = case(
        shared,
        "o24_lpm_starvation_block1000.jsonl",
        "engine.device_tokens=60000",
        "engine.max_running_requests=1",
        f"engine.schedule_policy={policy}",
        f"engine.lpm_fallback_length={fallback}",
        block=1000,
    )
    cold = next(row for row in recording.requests if row.arrival_ps == 500_000_000_000 and row.device_hit == 0)
    assert low <= ttft(cold) <= high


def test_o25_a_request_larger_than_the_pool_is_refused_and_the_run_goes_on(shared: Path) -> None:
    found = rows(case(shared, "o25_oversize.jsonl"))
    refused = [row for row in found if row.status == "refused"]
    assert [row.reason for row in refused] == ["needs 12 010, pool 10 000"]
    assert all(ttft(row) < 0.1 for row in found if row.status == "finished")
    assert sum(row.status == "finished" for row in found) == 5


def test_o25_under_the_engines_own_limits_the_reason_is_the_engines(shared: Path) -> None:
    found = rows(case(shared, "o25_oversize.jsonl", "engine.length_limits=true"))
    assert [row.reason for row in found if row.status == "refused"] == ["prompt too long: 12 000 >= 9 994"]


def test_o26_left_over_chunk_budget_is_used(shared: Path) -> None:
    recording = case(shared, "o26_chunk_budget.jsonl", "engine.device_tokens=100000", "engine.chunked_prefill_size=8000")
    assert [ttft(row) for row in rows(recording)] == pytest.approx([0.8, 1.2], abs=1e-9)
    assert sum(row[1] == "prefill" for row in recording.steps) == 2


def test_o30_ttft_of_a_burst_is_queueing(shared: Path) -> None:
    recording = case(
        shared, "o30_burst50.jsonl", "engine.device_tokens=100000", "engine.max_running_requests=1", "engine.chunked_prefill_size=1000"
    )
    times = [ttft(row) for row in rows(recording)]
    assert times == pytest.approx([0.1 * k for k in range(1, 51)], abs=1e-9)
    found = summary(recording)
    assert found["ttft_s"]["mean_all"] == pytest.approx(2.55)
    assert found["ttft_queue_s"]["mean_all"] + found["ttft_prefill_s"]["mean_all"] + found["ttft_load_s"]["mean_all"] == pytest.approx(2.55)


def test_o31_goodput_counts_requests_within_the_slo(shared: Path) -> None:
    settings = ("engine.device_tokens=100000", "engine.max_running_requests=1", "engine.chunked_prefill_size=1000")
    found = summary(case(shared, "o31_goodput4.jsonl", *settings, "slo={ttft: 250ms, attainment: 0.99}"))
    assert (found["slo"]["good_requests"], found["slo"]["attainment"], found["slo"]["met"]) == (2, 0.5, False)
    assert found["slo"]["goodput_requests_per_s"] == pytest.approx(5)
    assert found["throughput"]["requests_per_s"] == pytest.approx(10)
    assert found["ttft_s"]["p50"] == pytest.approx(0.25)
    assert summary(case(shared, "o31_goodput4.jsonl", *settings))["slo"] is None


def test_o32_in_open_loop_the_next_turn_does_not_wait(shared: Path) -> None:
    found = rows(case(shared, "o32_two_turn_session.jsonl", "engine.device_tokens=50000"))
    assert found[1].arrival_ps == 2_000_000_000_000
    assert found[1].admitted_ps is not None
    assert found[0].end_ps is not None
    assert found[1].admitted_ps < found[0].end_ps
