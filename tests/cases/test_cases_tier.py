"""Field reports of group B and D: does the RAM tier help, and by how much; prefix matching."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_world import HOST, POLICY, case, rows, summary, ttft


@pytest.mark.parametrize(
    ("host", "policy", "mean", "backed_up"),
    [(0, "write_through", 0.1, 0), (30_000, "write_through", 0.1, 40_000), (30_000, "write_back", 0.1016, 32_000)],
)
def test_o10_no_reuse_means_no_gain(shared: Path, host: int, policy: str, mean: float, backed_up: int) -> None:
    recording = case(shared, "o10_unique.jsonl", HOST.format(host), POLICY.format(policy))
    found = summary(recording)
    assert found["hits"]["hit_rate"] == 0
    assert found["ttft_s"]["mean_all"] == pytest.approx(mean, abs=1e-4)
    assert found["cache"]["backed_up_tokens"] == backed_up


def test_o10_a_working_set_that_fits_the_device_has_no_host_hits(shared: Path) -> None:
    outcomes = [
        case(shared, "o13_multiturn_20x5.jsonl", "engine.device_tokens=200000", HOST.format(host), block=512) for host in (0, 400_000)
    ]
    assert [ttft(row) for row in rows(outcomes[0])] == [ttft(row) for row in rows(outcomes[1])]
    assert summary(outcomes[1])["hits"]["host_tokens"] == 0
    assert summary(outcomes[0])["hits"]["device_tokens"] == summary(outcomes[1])["hits"]["device_tokens"] > 0


@pytest.mark.parametrize(("rate", "second"), [("0.5GB/s", 1.59), ("1GB/s", 0.80), ("2GB/s", 0.405), ("50GB/s", 0.0258)])
def test_o11_reloading_pays_above_one_gigabyte_per_second(rate: str, second: float) -> None:
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))
    from sim_world import request, run_specs

    long = ((1_000, 8000),)
    specs = [request(0, 0, 8000, 2, runs=long), *(request(i, 2.0 * i, 1000, 2) for i in range(1, 11)), request(11, 30, 8000, 2, runs=long)]
    on = run_specs(specs, "engine.hicache.host_tokens=20000", f"links.h2d={rate}")
    off = run_specs(specs, "engine.hicache.host_tokens=0")
    assert ttft(rows(on)[-1]) == pytest.approx(second, abs=1e-3)
    assert ttft(rows(off)[-1]) == pytest.approx(0.8, abs=1e-9)


@pytest.mark.parametrize(
    ("host", "policy", "page", "cached", "expected", "stored"),
    [
        (0, "write_through", 100, 0, 0.5, 0),
        (20_000, "write_through", 100, 4900, 0.0198, 15_000),
        (20_000, "write_through", 1, 4999, 0.010098, 15_012),
        (20_000, "write_back", 100, 4900, 0.0298, 12_000),
    ],
)
def test_o12_an_evicted_conversation_comes_back_from_ram(
    shared: Path, host: int, policy: str, page: int, cached: int, expected: float, stored: int
) -> None:
    recording = case(shared, "o12_evict_revisit.jsonl", HOST.format(host), POLICY.format(policy), page=page)
    last = rows(recording)[-1]
    assert (last.device_hit, last.host_hit) == (0, cached)
    assert ttft(last) == pytest.approx(expected, abs=2e-4)
    assert summary(recording)["cache"]["backed_up_tokens"] == stored


def test_o13_the_knee_is_the_working_set(shared: Path) -> None:
    def hits(host: int) -> list[float]:
        recording = case(shared, "o13_multiturn_20x5.jsonl", "engine.device_tokens=10240", HOST.format(host), block=512)
        by_round: dict[int, list[int]] = {}
        for row in recording.requests:
            have = by_round.setdefault(row.prompt_tokens, [0, 0])
            have[0] += row.device_hit + row.host_hit
            have[1] += row.prompt_tokens
        rounds = [hit / all_ for _, (hit, all_) in sorted(by_round.items())]
        total = sum(v[0] for v in by_round.values()) / sum(v[1] for v in by_round.values())
        return [*rounds, total]

    assert hits(204_800) == pytest.approx([0, 0.5, 0.667, 0.75, 0.8, 0.6667], abs=1e-3)
    assert hits(102_400) == pytest.approx([0, 0.5, 0.667, 0.75, 0.8, 0.6667], abs=1e-3)
    assert hits(0) == [0, 0, 0, 0, 0, 0]
    assert max(hits(20_480)) <= 0.03
    middle = hits(51_200)
    assert middle[1] == pytest.approx(0.5, abs=0.01)
    assert middle[3] == pytest.approx(0, abs=0.01)


def test_o14_other_host_hits_always_mean_other_times(shared: Path) -> None:
    off, on = (rows(case(shared, "o12_evict_revisit.jsonl", HOST.format(host)))[-1] for host in (0, 20_000))
    assert on.host_hit == 4900
    assert ttft(off) - ttft(on) == pytest.approx(4900 * 98e-6, abs=1e-3)


@pytest.mark.parametrize(
    ("file", "block", "expected"), [("o21_repeat_block128.jsonl", 128, [128, 256]), ("o21_repeat_block64.jsonl", 64, [0, 64, 192])]
)
def test_o21_the_last_token_is_always_computed(shared: Path, file: str, block: int, expected: list[int]) -> None:
    found = rows(case(shared, file, "engine.device_tokens=64000", block=block))
    assert [row.device_hit for row in found[1::2]] == expected


def test_o21_with_page_one_all_but_the_last_token_hits(shared: Path) -> None:
    found = rows(case(shared, "o21_repeat_block64.jsonl", "engine.device_tokens=64000", block=64, page=1))
    assert [row.device_hit for row in found[1::2]] == [row.prompt_tokens - 1 for row in found[1::2]]


@pytest.mark.parametrize(("page", "cached", "total"), [(16, 240, 0.588), (64, 192, 0.470), (256, 0, 0), (784, 0, 0)])
def test_o22_a_shared_prompt_below_a_page_never_hits(shared: Path, page: int, cached: int, total: float) -> None:
    recording = case(shared, "o22_shared240_block16.jsonl", f"engine.device_tokens={160_000 // page * page}", block=16, page=page)
    assert {row.device_hit for row in rows(recording)[1:]} == {cached}
    assert summary(recording)["hits"]["hit_rate"] == pytest.approx(total, abs=1e-3)
