"""The lab's answers without its page: controls to scenario, verdict, advice, curve, downloads; and who may see it."""

from __future__ import annotations

import dataclasses
import json
import threading

import pytest
import yaml

from kvsim.cli.lab import lab_command
from kvsim.errors import ConfigError
from kvsim.report.embed import read_block
from kvsim.web import lab
from kvsim.web.job import Job

TOY = lab.Choice(workload="experiment:toy", limit=60, ratio=0)


def test_a_ratio_becomes_host_tokens():
    small, large = (lab.resolve_choice(dataclasses.replace(TOY, ratio=ratio)).resolved.capacity for ratio in (1, 2))
    assert large.host_tokens == pytest.approx(2 * small.host_tokens, rel=1e-4)


def test_ram_in_total_is_divided_over_the_ranks_and_wins_over_the_ratio():
    capacity = lab.resolve_choice(dataclasses.replace(TOY, ratio=2, ram_gb=400)).resolved.capacity
    assert capacity.host_bytes_total == pytest.approx(400e9, rel=1e-3)


def test_a_format_of_half_the_bytes_doubles_the_tokens():
    normal, halved = (lab.resolve_choice(dataclasses.replace(TOY, dtype=dtype)).resolved.capacity for dtype in ("auto", "fp8_e4m3"))
    assert halved.kv_bytes_per_token * 2 == normal.kv_bytes_per_token
    assert halved.device_tokens > 1.9 * normal.device_tokens


def test_the_rate_scales_the_load():
    slow, fast = (lab.scenario_data(dataclasses.replace(TOY, rate=rate))["workload"]["rate_per_s"] for rate in (1, 2))
    assert fast == 2 * slow


def test_a_batch_cap_reaches_the_engine():
    assert lab.resolve_choice(dataclasses.replace(TOY, batch_cap=5)).resolved.engine.max_running_requests == 5


def test_the_sliders_move_a_vllm_server_too():
    command = "vllm serve moonshotai/Kimi-K2.5 --tensor-parallel-size 8 --max-model-len 60000"
    choice = dataclasses.replace(TOY, command=command, ratio=2, batch_cap=7)
    resolved = lab.resolve_choice(choice).resolved
    assert resolved.family == "vllm"
    assert resolved.engine.max_num_seqs == 7
    assert resolved.capacity.host_tokens == pytest.approx(2 * resolved.capacity.device_tokens, rel=0.02)
    wider = lab.resolve_choice(dataclasses.replace(choice, ram_gb=500)).resolved.capacity
    assert wider.host_bytes_total == pytest.approx(500e9, rel=0.01)


@pytest.mark.parametrize(
    ("flags", "ratio", "ram_gb", "cap"),
    [
        ("", 0, 0, 0),
        ("--enable-hierarchical-cache", 2, 0, 0),
        ("--enable-hierarchical-cache --hicache-ratio 20", 20, 0, 0),
        ("--enable-hierarchical-cache --hicache-size 45", 2, 360, 0),
        ("--max-running-requests 300", 0, 0, 300),
    ],
)
def test_the_sliders_start_at_what_the_launch_command_says(flags, ratio, ram_gb, cap):
    command = f"python -m sglang.launch_server --tp 8 {flags}"
    start = lab.start_of("8x-rtx-pro-6000", "kimi-k2.5-int4", command)
    assert (start.ratio, start.ram_gb, start.batch_cap) == (ratio, ram_gb, cap)
    capacity = lab.resolve_choice(start).resolved.capacity
    said = lab.resolve_choice(dataclasses.replace(start, ratio=0, ram_gb=0)).resolved.capacity.device_tokens * ratio
    assert capacity.host_bytes_total == pytest.approx(ram_gb * 1e9 or said * 8 * 70_272, rel=1e-3)


@pytest.mark.parametrize(("flags", "ram_gb"), [("", 0), ("--kv-offloading-size 400", 400 * 1.073741824)])
def test_the_sliders_start_at_what_a_vllm_command_says(flags, ram_gb):
    start = lab.start_of("8x-rtx-pro-6000", "kimi-k2.5-int4", f"vllm serve x --tensor-parallel-size 8 {flags}")
    assert (start.ratio, start.ram_gb) == (0, pytest.approx(ram_gb))
    assert lab.resolve_choice(start).resolved.capacity.host_bytes_total == pytest.approx(ram_gb * 1e9, rel=1e-3)


def test_the_curve_follows_the_load_and_not_the_memory(tmp_path):
    small, large = (lab.resolve_choice(dataclasses.replace(TOY, ratio=ratio)) for ratio in (1, 2))
    first = lab.hit_curve_figure(small).table.rows
    assert [row[1] for row in lab.hit_curve_figure(large).table.rows if row in first]
    trace = tmp_path / "t.jsonl"
    figures = []
    for same in (True, False):
        ids = [[1, 2, 3] if same else [3 * i, 3 * i + 1, 3 * i + 2] for i in range(1, 30)]
        trace.write_text(
            "".join(
                json.dumps({"timestamp": 900 * i, "input_length": 1500, "output_length": 10, "hash_ids": row}) + "\n"
                for i, row in enumerate(ids)
            )
        )
        figures.append(lab.hit_curve_figure(lab.resolve_choice(dataclasses.replace(TOY, workload=str(trace), trace_format="mooncake"))))
    assert figures[0].table.rows != figures[1].table.rows


def test_what_does_not_fit_is_said_and_not_simulated():
    answer = lab.simulate_answer(lab.resolve_choice(dataclasses.replace(TOY, ratio=16)))
    assert "does not fit" in answer.problem
    assert answer.recording is None
    assert lab.headline(answer) == answer.problem
    assert set(lab.figures_of(answer)) == {"card", "host"}


@pytest.mark.parametrize(
    "change",
    [{"hardware": "none"}, {"model": "none"}, {"workload": "/nowhere/trace.jsonl"}, {"workload": "workload:none"}],
)
def test_bad_choices_are_problems_in_words(change):
    answer = lab.simulate_answer(lab.resolve_choice(dataclasses.replace(TOY, **change)))
    assert answer.problem
    assert "Traceback" not in answer.problem


def test_a_small_load_gives_every_number_figure_and_advice():
    answer = lab.simulate_answer(lab.resolve_choice(TOY))
    assert answer.summary["requests"]["finished"] == 60
    assert {"latency", "occupancy", "gpu"} <= set(lab.figures_of(answer))
    assert any("host tier" in line for line in lab.advice(answer))


def test_advice_follows_from_the_numbers():
    capacity = lab.resolve_choice(dataclasses.replace(TOY, ratio=1)).resolved.capacity
    hits = {"host_rate": 0.2, "host_tokens": 10}
    full = {"device_tokens_max": capacity.device_tokens, "host_tokens_max": capacity.host_tokens}
    assert "larger ratio may serve more" in lab._tier_advice(capacity, full, hits)[0]
    assert "would change nothing" in lab._tier_advice(capacity, {**full, "host_tokens_max": 1}, hits)[0]
    assert "served nothing" in lab._tier_advice(capacity, full, {"host_rate": 0.0, "host_tokens": 0})[0]


def test_the_curve_of_all_sizes_rises_and_marks_both_tiers():
    choice = lab.Choice(workload="experiment:hicache-ratio", limit=100)
    figure = lab.hit_curve_figure(lab.resolve_choice(choice))
    line, rules = (layer["data"]["values"] for layer in figure.spec()["layer"])
    rates = [row["percent"] for row in line]
    assert rates == sorted(rates)
    assert rates[-1] > 50
    assert {row["tier"]: row["tokens"] for row in rules} == {"device": 159_215, "host": 636_861}
    assert figure.table.rows[-1][0] == "without limit"


def test_a_load_without_reuse_has_a_flat_curve():
    figure = lab.hit_curve_figure(lab.resolve_choice(TOY))
    assert {row["percent"] for row in figure.spec()["layer"][0]["data"]["values"]} == {0}


def test_an_infeasible_ratio_is_a_cross_and_never_a_value():
    rows = lab.ratio_curve(TOY, (0, 1, 16))
    assert [bool(row["infeasible"]) for row in rows] == [False, False, True]
    assert "hit_percent" not in rows[2]
    figure = lab.ratio_figure(rows)
    spec = figure.spec()
    crosses = [layer for layer in spec["layer"] if layer["mark"]["type"] == "point"]
    assert [row["ratio"] for row in crosses[0]["data"]["values"]] == [16]
    assert figure.table.rows[2][2] == "-"


def test_the_downloaded_scenario_and_report_make_the_same_numbers_again(tmp_path):
    from kvsim.config.load import load_data
    from kvsim.config.resolve import resolve

    answer = lab.simulate_answer(lab.resolve_choice(TOY))
    files = {name: content() for name, content in lab.downloads(answer).values()}
    again = lab.simulate_answer(lab.Answer(resolve(load_data(yaml.safe_load(files["scenario.yaml"]), [], "t"))))
    assert again.summary == answer.summary
    (tmp_path / "r.html").write_bytes(files["report.html"])
    assert read_block(tmp_path / "r.html")["summary"]["requests"] == answer.summary["requests"]


def test_a_load_is_large_by_its_own_requests_not_by_the_limit(tmp_path):
    count = {limit: lab.expected_requests(dataclasses.replace(TOY, limit=limit)) for limit in (60, 100_000)}
    assert count == {60: 60, 100_000: 200}
    conversations = lab.Choice(workload="experiment:hicache-ratio", limit=100_000)
    assert lab.expected_requests(conversations) == 960
    assert lab.expected_requests(dataclasses.replace(TOY, workload=str(tmp_path / "t.jsonl"), limit=3000)) == 3000


def test_the_launch_command_says_what_the_sliders_say():
    choice = dataclasses.replace(TOY, ratio=3, batch_cap=9)
    command = lab.launch_command(lab.resolve_choice(choice))
    assert "--hicache-ratio 3" in command
    assert "--max-running-requests 9" in command
    again = lab.resolve_choice(dataclasses.replace(choice, command=command.replace("\\\n", " ")))
    assert again.resolved.capacity.host_tokens == lab.resolve_choice(choice).resolved.capacity.host_tokens


def test_an_uploaded_trace_is_simulated(tmp_path):
    rows = [{"timestamp": 900 * i, "input_length": 1500, "output_length": 10, "hash_ids": [1, 2, 10 + i % 2]} for i in range(8)]
    path = lab.save_trace(str(tmp_path), "my trace.jsonl", "\n".join(map(json.dumps, rows)).encode())
    answer = lab.simulate_answer(lab.resolve_choice(dataclasses.replace(TOY, workload=path, limit=5)))
    assert answer.summary["requests"]["finished"] == 5
    assert answer.summary["hits"]["device_tokens"] > 0


def test_a_damaged_upload_is_a_problem_in_words(tmp_path):
    path = lab.save_trace(str(tmp_path), "trace.jsonl", b'{"timestamp": 0, "input_length": "<b>many</b>"}')
    answer = lab.simulate_answer(lab.resolve_choice(dataclasses.replace(TOY, workload=path)))
    assert "trace.jsonl:1" in answer.problem


def test_a_large_load_reports_progress_and_can_be_stopped():
    seen = threading.Event()
    prepared = lab.resolve_choice(dataclasses.replace(TOY, limit=100_000))

    def work(progress):
        def watch(done):
            seen.set()
            go.wait(20)
            progress(done)

        return lab.simulate_answer(prepared, watch)

    go = threading.Event()
    job = Job(work)
    assert seen.wait(60)
    job.cancel()
    go.set()
    assert job.join(60).state == "cancelled"


def test_an_uploaded_file_gets_a_harmless_name(tmp_path):
    path = lab.save_trace(str(tmp_path), "../../etc/<b>pass wd.jsonl", b"x")
    assert path.startswith(str(tmp_path))
    assert (tmp_path / "_b_pass_wd.jsonl").read_bytes() == b"x"


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "::", "example.org"])
def test_an_open_host_without_a_token_is_refused(host):
    with pytest.raises(ConfigError, match="open to everybody"):
        lab_command(host, 2718, None, True)


def test_an_open_host_with_a_token_asks_for_it_and_keeps_it_out_of_the_command():
    command = lab_command("0.0.0.0", 2718, "a-long-enough-token", True)
    assert "--token" in command
    assert "--no-token" not in command
    assert not [word for word in command if "a-long-enough-token" in word]


def test_a_short_token_and_a_bad_port_are_refused():
    with pytest.raises(ConfigError, match="at least 12"):
        lab_command("0.0.0.0", 2718, "short", True)
    with pytest.raises(ConfigError, match="between 1 and 65535"):
        lab_command("127.0.0.1", 0, None, True)
