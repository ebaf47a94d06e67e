"""Group H and F: every format gives one workload, up to what it can carry."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.errors import TraceError
from kvsim.workload.read import open_trace

FORMATS = {
    "aiperf_profile_export.jsonl": ("aiperf", True),
    "azure2023.csv": ("azure", False),
    "azure2024.csv": ("azure", False),
    "bailian_blksz16.jsonl": ("bailian", True),
    "burstgpt.csv": ("burstgpt", True),
    "dynamo_request_trace.jsonl": ("dynamo", True),
    "langfuse_observations.jsonl": ("langfuse", True),
    "litellm_standard_logging.jsonl": ("litellm", True),
    "mooncake.jsonl": ("mooncake", False),
    "openai_access.log": ("access_log", True),
    "otel_genai_spans.json": ("otel", True),
    "sglang-request-metrics-20260823_10.log": ("sglang_metrics", False),
    "vllm_bench_save_detailed.json": ("vllm_bench", False),
    "weka.jsonl": ("weka", True),
}


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_gives_one_workload(shared: Path, name: str) -> None:
    expected, sessions = FORMATS[name]
    trace = open_trace(str(shared / "cases" / "formats" / name))
    rows = list(trace)
    assert trace.format == expected
    assert [(r.arrival_ps, r.prompt_tokens, r.output_tokens) for r in rows] == [
        (0, 512, 16),
        (500_000_000_000, 1024, 32),
        (1_500_000_000_000, 256, 8),
    ]
    if sessions:
        assert rows[0].session == rows[1].session
        assert rows[2].session != rows[0].session
        assert rows[1].turn == 1


def test_a_benchmark_without_arrivals_is_laid_out_at_its_rate(shared: Path) -> None:
    rows = list(open_trace(str(shared / "cases" / "formats" / "sglang_bench_output_details.jsonl")))
    assert [(r.arrival_ps, r.prompt_tokens) for r in rows] == [(0, 512), (500_000_000_000, 1024), (1_000_000_000_000, 256)]


def test_sharegpt_turns_grow_and_single_turns_are_skipped(shared: Path) -> None:
    trace = open_trace(str(shared / "cases" / "formats" / "sharegpt.json"))
    rows = list(trace)
    assert [row.session for row in rows] == ["c1", "c1"]
    assert rows[1].prompt_tokens > rows[0].prompt_tokens + rows[0].output_tokens
    assert trace.report.skipped == {"a single turn": (1, [2])}


def test_o27_rows_out_of_order_are_sorted_with_a_count(shared: Path) -> None:
    messy = open_trace(str(shared / "cases" / "o27_out_of_order.jsonl"), block_size=100)
    twin = open_trace(str(shared / "cases" / "o27_sorted_twin.jsonl"), block_size=100)
    assert [(r.arrival_ps, r.prompt_tokens, r.prompt) for r in messy] == [(r.arrival_ps, r.prompt_tokens, r.prompt) for r in twin]
    assert messy.report.out_of_order == 2


def test_a_negative_time_is_an_error_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(
        '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n{"timestamp": -5, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n'
    )
    with pytest.raises(TraceError, match=r"t\.jsonl:2"):
        list(open_trace(str(file)))


def test_o28_failures_are_counted_and_windows_cut(shared: Path) -> None:
    path = str(shared / "cases" / "o28_burstgpt_with_failures.csv")
    whole = open_trace(path)
    assert len(list(whole)) == 31
    assert whole.report.skipped["zero output tokens"][0] == 2
    assert len(list(open_trace(path, zero_outputs="prefill_only"))) == 33
    assert len(list(open_trace(path, start=70, end=80, zero_outputs="prefill_only"))) == 30
    assert len(list(open_trace(path, start=70, end=80))) == 28


def test_o29_a_count_that_does_not_fit_names_the_line_and_a_block_size(shared: Path) -> None:
    with pytest.raises(TraceError, match=r":2: expected 1 id\(s\) for 20 tokens at block size 512, found 2; a block size of 16 would fit"):
        list(open_trace(str(shared / "cases" / "o29_hash_count_mismatch.jsonl")))
    assert list(open_trace(str(shared / "cases" / "o29_block16_ok.jsonl"), block_size=16))
    rows = list(open_trace(str(shared / "cases" / "o29_partial_tail_variants.jsonl"), block_size=16))
    assert [row.prompt_tokens for row in rows] == [33, 33]


@pytest.mark.parametrize("name", ["o33_mooncake_ms.jsonl", "o33_bailian_seconds.jsonl", "o33_epoch_seconds.jsonl"])
def test_o33_units_are_found(shared: Path, name: str) -> None:
    assert [r.arrival_ps for r in open_trace(str(shared / "cases" / name))] == [0, 1_500_000_000_000, 3_000_000_000_000]


def test_o34_bom_line_ends_digits_and_zones(shared: Path) -> None:
    first = [r.arrival_ps for r in open_trace(str(shared / "cases" / "o34_azure2023_bom.csv"))]
    assert first == [0, 52_000_000_000, 1_500_000_000_000]
    second = [r.arrival_ps for r in open_trace(str(shared / "cases" / "o34_azure2024_mixed_tz.csv"))]
    assert second == [0, 7_405_000_000, 990_070_000_000, 1_490_070_000_000]


def test_the_azure_file_has_no_prefixes_and_says_so(shared: Path) -> None:
    trace = open_trace(str(shared / "traces" / "azure_2023_code.csv"))
    assert sum(1 for _ in trace) == 8819
    assert trace.report.content.startswith("not at all")


def test_o32_in_closed_loop_the_next_turn_waits_for_the_simulated_answer(shared: Path) -> None:
    from kvsim.config.load import load
    from kvsim.config.resolve import resolve
    from kvsim.sim.simulate import simulate

    trace = shared / "cases" / "o32_two_turn_session.jsonl"
    sets = [
        f"workload={{kind: trace, trace: '{trace}', format: mooncake, block_size: 100}}",
        "engine.device_tokens=50000",
        "clients.loop=closed",
    ]
    recording = simulate(resolve(load("toy", sets)))
    first, second = sorted(recording.requests, key=lambda row: row.arrival_ps)
    assert first.end_ps == 5_000_000_000_000
    assert second.arrival_ps == 5_500_000_000_000
    assert second.device_hit == 20_300
    assert "recorded end" in recording.manifest["client"]
