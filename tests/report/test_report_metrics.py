"""OpenMetrics text: the engine's names, timestamps, and numbers that agree with the summary."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from report_world import MS, S, capacity, fabricate, scenario

from kvsim.record.recording import Recording
from kvsim.report.metric_facts import Facts
from kvsim.report.metric_names import METRICS
from kvsim.report.openmetrics import metrics_text, sample_times, write_metrics


@pytest.fixture(scope="module")
def text(fabricated):
    return metrics_text(fabricated, capacity())


def at_time(text, stamp):
    """Return the exposition of one timestamp (the client's parser cannot read histograms with several)."""
    lines = [line for line in text.splitlines() if line.startswith("#") or line.endswith(f" {stamp}")]
    return {family.name: family for family in text_string_to_metric_families("\n".join(lines) + "\n")}


def stamps(text):
    return sorted({line.rsplit(" ", 1)[1] for line in text.splitlines() if not line.startswith("#")}, key=float)


def value(family, suffix="", **labels):
    found = [s.value for s in family.samples if s.name == family.name + suffix and labels.items() <= s.labels.items()]
    assert len(found) == 1, found
    return found[0]


@pytest.fixture(scope="module")
def final(text):
    return at_time(text, stamps(text)[-1])


def test_every_timestamp_is_accepted_by_the_parser(text):
    for stamp in stamps(text):
        assert len(at_time(text, stamp)) == len(METRICS["sglang"])


def test_names_keep_their_colon(text):
    assert "sglang:token_usage{" in text
    assert "sglang_token_usage" not in text
    assert "sglang:prompt_tokens_total{" in text


def test_the_file_ends_as_the_format_demands(text):
    assert text.endswith("# EOF\n")


def test_counters_end_at_the_totals_of_the_summary(final, fabricated_summary):
    assert value(final["sglang:prompt_tokens"], "_total") == fabricated_summary["tokens"]["prompt_admitted"]
    assert value(final["sglang:generation_tokens"], "_total") == fabricated_summary["tokens"]["output"]
    assert value(final["sglang:cached_tokens"], "_total", cache_source="device") == fabricated_summary["hits"]["device_tokens"]
    assert value(final["sglang:cached_tokens"], "_total", cache_source="host") == fabricated_summary["hits"]["host_tokens"]
    assert value(final["sglang:evicted_tokens"], "_total") == fabricated_summary["cache"]["evicted_tokens"]
    assert value(final["sglang:load_back_tokens"], "_total") == fabricated_summary["cache"]["loaded_tokens"]
    assert value(final["sglang:num_requests"], "_total") == fabricated_summary["requests"]["finished"]


def test_histograms_count_every_observation_and_sum_their_seconds(final, fabricated_summary):
    for name, key in (
        ("time_to_first_token", "ttft_s"),
        ("e2e_request_latency", "e2e_s"),
        ("queue_time", "ttft_queue_s"),
        ("inter_token_latency", "itl_s"),
    ):
        family = final[f"sglang:{name}_seconds"]
        count = value(family, "_count")
        assert count == fabricated_summary[key]["count"], name
        mean = fabricated_summary[key].get("mean_all", fabricated_summary[key]["mean"])
        assert value(family, "_sum") == pytest.approx(mean * count), name


def test_buckets_are_the_engines_and_hold_the_distribution(final, fabricated):
    family = final["sglang:time_to_first_token_seconds"]
    bounds = [s.labels["le"] for s in family.samples if s.name.endswith("_bucket")]
    assert bounds[:4] == ["0.1", "0.2", "0.4", "0.6"]
    assert bounds[-2:] == ["400.0", "+Inf"]
    below = sum(1 for row in fabricated.requests if row.first_token_ps is not None and row.first_token_ps - row.arrival_ps <= 4 * S // 10)
    assert value(family, "_bucket", le="0.4") == below


def test_capacity_gauges_are_the_capacities(final):
    assert value(final["sglang:max_total_num_tokens"]) == 10_000
    assert value(final["sglang:hicache_host_total_tokens"]) == 40_000


def test_running_and_waiting_never_become_negative_and_end_at_zero(text, final):
    for name in ("sglang:num_running_reqs", "sglang:num_queue_reqs"):
        values = [float(line.split()[-2]) for line in text.splitlines() if line.startswith(name + "{")]
        assert min(values) >= 0
        assert max(values) >= 1
        assert value(final[name]) == 0


def test_vllm_recordings_use_vllm_names(fabricated):
    recording = fabricate(20, resolved_data=scenario(engine={"rules": "vllm-0.24.0"}))
    text = metrics_text(recording, capacity())
    assert "vllm:num_requests_running{" in text
    assert "vllm:kv_cache_usage_perc{" in text
    assert "sglang:" not in text
    final = at_time(text, stamps(text)[-1])
    assert value(final["vllm:request_success"], "_total", finished_reason="length") == 20


def test_label_values_from_a_scenario_are_escaped():
    recording = fabricate(3, resolved_data=scenario(model='a"b\\c\nd'))
    text = metrics_text(recording, capacity())
    assert 'model_name="a\\"b\\\\c\\nd"' in text


def test_samples_are_15_s_apart_in_long_runs_and_denser_in_short_ones():
    recording = Recording(scenario())
    recording.manifest["end_ps"] = 3600 * S
    times = sample_times(recording)
    assert times[1] - times[0] == 15 * S
    recording.manifest["end_ps"] = 60 * S
    assert len(sample_times(recording)) == 60


def test_a_run_of_growing_gaps_is_counted_in_the_samples_where_its_gaps_ended():
    recording = Recording(scenario())
    recording.gaps.append((0, 10 * MS, 10 * MS, 2, 5, 5 * MS))  # gaps 10, 15, 20, 25, 30 ms ending at 10, 25, 45, 70, 100 ms
    facts = Facts(recording, capacity(), 0, [30 * MS, 70 * MS, 200 * MS])
    counts, sums = facts.histogram("itl_s", (0.010, 0.020, 0.025))
    assert counts.tolist() == [[2, 4, 4, 4], [2, 6, 8, 8], [2, 6, 8, 10]]
    assert sums.tolist() == pytest.approx([0.05, 0.14, 0.2])


def test_prometheus_accepts_the_file_where_promtool_is_there(tmp_path, fabricated):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    path = write_metrics(fabricated, tmp_path / "m.om", capacity())
    done = subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", str(path), str(tmp_path / "tsdb")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    series = {re.sub(r" .*", "", line) for line in path.read_text().splitlines() if not line.startswith("#")}
    assert f" {len(series)} " in done.stdout
