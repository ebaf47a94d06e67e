"""Benchmark files with the engines' keys, and the figures as files."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np
import pytest
from report_world import fabricate, scenario

from kvsim.measure.summary import summarise
from kvsim.report.bench import write_bench_json
from kvsim.report.images import save
from kvsim.report.memory_figures import card

SGLANG_KEYS = {
    "backend",
    "dataset_name",
    "request_rate",
    "max_concurrency",
    "duration",
    "completed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "input_throughput",
    "output_throughput",
    "mean_e2e_latency_ms",
    "median_e2e_latency_ms",
    "std_e2e_latency_ms",
    "p99_e2e_latency_ms",
    "mean_ttft_ms",
    "median_ttft_ms",
    "std_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "median_tpot_ms",
    "std_tpot_ms",
    "p99_tpot_ms",
    "mean_itl_ms",
    "median_itl_ms",
    "std_itl_ms",
    "p95_itl_ms",
    "p99_itl_ms",
    "max_itl_ms",
    "concurrency",
    "accept_length",
    "input_lens",
    "output_lens",
    "ttfts",
    "errors",
}
VLLM_KEYS = {
    "backend",
    "model_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "input_lens",
    "output_lens",
    "ttfts",
    "start_times",
    "errors",
    "mean_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "mean_itl_ms",
    "mean_e2el_ms",
    "p99_e2el_ms",
}


def result_of(recording, tmp_path):
    return json.loads(write_bench_json(recording, summarise(recording), tmp_path / "b.json").read_text())


def test_an_sglang_run_has_the_keys_of_bench_serving(fabricated, tmp_path):
    assert set(result_of(fabricated, tmp_path)) >= SGLANG_KEYS


def test_a_vllm_run_has_the_keys_of_vllm_bench_serve(tmp_path):
    assert set(result_of(fabricate(10, resolved_data=scenario(engine={"rules": "vllm-0.24.0"})), tmp_path)) >= VLLM_KEYS


def test_latencies_are_the_summarys_in_milliseconds(fabricated, fabricated_summary, tmp_path):
    result = result_of(fabricated, tmp_path)
    assert result["p99_ttft_ms"] == pytest.approx(1e3 * fabricated_summary["ttft_s"]["p99"])
    assert result["mean_e2e_latency_ms"] == pytest.approx(1e3 * fabricated_summary["e2e_s"]["mean_all"])
    assert result["p99_itl_ms"] == pytest.approx(1e3 * fabricated_summary["itl_s"]["p99"])


def test_detail_lists_have_one_entry_per_request_and_failures_have_no_output(fabricated, tmp_path):
    result = result_of(fabricated, tmp_path)
    assert len(result["input_lens"]) == len(result["output_lens"]) == len(result["ttfts"]) == len(result["errors"]) == 61
    refused = [i for i, error in enumerate(result["errors"]) if error.startswith("refused")]
    assert [result["output_lens"][i] for i in refused] == [0]
    assert sum(result["output_lens"]) == result["total_output_tokens"]


def test_the_spread_of_gaps_is_exact_over_the_compressed_rows(fabricated, tmp_path):
    recording = fabricate(5)
    recording.gaps[:] = [(0, 0, 10_000_000_000, 3, 4, 1_000_000_000), (0, 0, 50_000_000_000, 1, 1, 0)]
    gaps = np.array([10, 11, 12, 13] * 3 + [50], dtype=float)
    result = result_of(recording, tmp_path)
    assert result["mean_itl_ms"] == pytest.approx(gaps.mean())
    assert result["std_itl_ms"] == pytest.approx(gaps.std())
    assert result["max_itl_ms"] == pytest.approx(50)


def test_a_figure_becomes_a_vector_image_and_a_bitmap(fabricated_resolved, tmp_path):
    svg, png = save([card(fabricated_resolved.capacity)], tmp_path / "figures")
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert png.read_bytes().startswith(b"\x89PNG")
