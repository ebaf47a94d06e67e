from __future__ import annotations

import json
import random
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import exp
from pathlib import Path

import pytest
from cost_models import LLAMA, anchor, model_on

from kvsim.cost.adapt import with_overrides
from kvsim.cost.analytic import AnalyticTime
from kvsim.cost.inputs import AnalyticInputs
from kvsim.errors import ConfigError, TraceError, UnknownName
from kvsim.study import calibrate_probe
from kvsim.study.calibrate import CANDIDATES, Problem, calibrate, choose, overlay_text, predict, value_of
from kvsim.study.calibrate_read import Observation, read_observations

BASE = anchor().inputs


def measured(inputs: AnalyticInputs, seed: int, noise: float = 0.02) -> list[Observation]:
    """What a server with these constants would show: 24 decode and 12 prefill steps with log-normal noise."""
    r, model = random.Random(seed), AnalyticTime(inputs)
    rows = [
        Observation("decode", 1, f"batch {b}", "", batch=b, sum_context=b * c)
        for b in (1, 2, 4, 8, 16, 32, 64, 128)
        for c in (500, 16_000, 64_000)
    ]
    rows += [
        Observation("prefill", 1, f"{n} new", "", new_tokens=n, cached_tokens=c)
        for n in (512, 2048, 8192, 32_768)
        for c in (0, 16_384, 100_000)
    ]
    return [replace(row, seconds=predict(model, row, 8192) * exp(r.gauss(0, noise))) for row in rows]


def test_known_constants_are_recovered_within_their_uncertainty_in_19_of_20_trials() -> None:
    names, _ = choose(Problem(BASE, measured(BASE, 0), 8192), list(CANDIDATES))
    assert len(names) >= 5
    recovered = 0
    for seed in range(20):
        r = random.Random(1000 + seed)
        truth = {name: value_of(BASE, name) * exp(r.uniform(-0.3, 0.09)) for name in names}
        fitted = {c.name: c for c in calibrate(BASE, measured(with_overrides(BASE, truth), seed), hold_out=False).constants}
        recovered += all(name in fitted and fitted[name].low <= value <= fitted[name].high for name, value in truth.items())
    assert recovered >= 19


def test_intervals_are_narrow_enough_to_mean_something() -> None:
    result = calibrate(BASE, measured(BASE, 3), hold_out=False)
    assert all(c.high / c.low < 2.5 for c in result.constants)
    assert result.noise == pytest.approx(0.02, rel=0.4)


def test_constants_that_the_data_cannot_tell_are_named_with_the_reason() -> None:
    rows = [row for row in measured(BASE, 1) if row.kind == "prefill"]
    result = calibrate(BASE, rows, hold_out=False)
    assert "decode.bw_eff" not in result.overrides()
    assert result.untold["decode.bw_eff"] == "hardly moves any of these measurements"
    assert any("acts like" in why for why in result.untold.values())


def test_the_held_out_error_comes_from_fits_without_the_group() -> None:
    rows = measured(BASE, 2, noise=0.001)
    spoiled = [replace(row, seconds=row.seconds * 2) if row.group == "32768 new" else row for row in rows]
    result = calibrate(BASE, spoiled)
    assert result.held_out["32768 new"].median > 0.4
    assert result.held_out["batch 1"].count == 3
    assert result.held_out_all is not None
    assert result.held_out_all.count == len(rows)


def test_an_overlay_is_yaml_whose_numbers_are_numbers() -> None:
    import yaml

    result = calibrate(BASE, measured(BASE, 4), hold_out=False)
    text = overlay_text(result, ["a.csv"], "demo")
    constants = yaml.safe_load(text)["costs"]["constants"]
    assert all(isinstance(value, float) for value in constants.values())
    assert constants == pytest.approx(result.overrides(), rel=1e-5)
    assert "held out" not in text


def test_a_constant_that_cannot_be_fitted_is_named() -> None:
    with pytest.raises(UnknownName, match=r"overheads\.m0"):
        calibrate(BASE, measured(BASE, 1), constants=["overheads.m9"])
    with pytest.raises(ConfigError, match="at least 3"):
        calibrate(BASE, measured(BASE, 1)[:2])


def log_line(kind: str, fields: str, rate: float, second: int) -> str:
    name = "input" if kind == "Prefill" else "gen"
    head = f"[2026-02-01 10:00:{second:02} TP0] {kind} batch, {fields}, cuda graph: True, "
    return f"{head}{name} throughput (token/s): {rate:.2f}, #queue-req: 0\n"


LOG = "".join(
    log_line(kind, fields, rate, second)
    for second, (kind, fields, rate) in enumerate(
        [
            ("Prefill", "#new-seq: 1, #new-token: 8192, #cached-token: 0, token usage: 0.00, #running-req: 0", 0.1),
            ("Prefill", "#new-seq: 1, #new-token: 8192, #cached-token: 0, token usage: 0.05, #running-req: 0", 8192),
            ("Prefill", "#new-seq: 1, #new-token: 100, #cached-token: 0, token usage: 0.05, #running-req: 0", 4096),
            ("Decode", "#running-req: 4, #token: 40000, token usage: 0.10", 1),
            ("Decode", "#running-req: 4, #token: 40160, token usage: 0.10", 200),
            ("Decode", "#running-req: 3, #token: 30160, token usage: 0.10", 170),
        ]
    )
)


def test_a_server_log_gives_the_steps_whose_interval_holds_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(LOG)
    found = read_observations([path])
    rows = [(r.kind, r.seconds, r.new_tokens, r.cached_tokens, r.batch, r.sum_context) for r in found.rows]
    assert rows == [
        ("prefill", 1.0, 8192, 0, 0, 0),
        ("prefill", 2.0, 8192, 8192, 0, 0),
        ("decode", 0.02, 0, 0, 4, 40_080),
    ]
    assert sum(found.skipped.values()) == 3


BENCH = {
    "backend": "sglang",
    "max_concurrency": 1,
    "completed": 10,
    "total_input_tokens": 20_480,
    "total_output_tokens": 1280,
    "mean_ttft_ms": 300.0,
    "mean_tpot_ms": 14.0,
    "accept_length": None,
}


def test_benchmark_results_give_ttft_of_one_user_and_tpot_of_a_closed_loop(tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    open_loop = {**BENCH, "max_concurrency": None}
    path.write_text("\n".join(json.dumps(run) for run in (BENCH, {**BENCH, "max_concurrency": 8, "completed": 80}, open_loop)))
    found = read_observations([path])
    assert [(r.kind, r.batch) for r in found.rows] == [("prefill", 0), ("tpot", 1), ("tpot", 8)]
    assert found.rows[0].new_tokens == 2048
    assert "open loop" in next(iter(found.skipped))


def test_tpot_of_many_users_includes_the_prompts_of_the_others() -> None:
    model = model_on(LLAMA, "h100")
    row = Observation("tpot", 1, "", "", new_tokens=4096, batch=8, sum_context=8 * 4200, output_tokens=200)
    prompt = model.prefill_s(4096, 4096 * 4097, 0, 1)
    assert predict(model, row, 8192) == pytest.approx(model.decode_s(8, 8 * 4200) + 7 * prompt / 200)


def test_prometheus_gauges_and_counters_give_decode_steps(tmp_path: Path) -> None:
    gauges = tmp_path / "sglang.prom"
    values = (("num_running_reqs", 4), ("num_used_tokens", 8000), ("gen_throughput", 200))
    scrape = "".join(f'sglang:{name}{{model="m"}} {value}\n' for name, value in values)
    gauges.write_text(scrape + scrape.replace(" 4\n", " 0\n"))
    assert [(r.seconds, r.batch, r.sum_context) for r in read_observations([gauges]).rows] == [(0.02, 4, 8000)]
    counters = tmp_path / "vllm.prom"
    names = (
        "inter_token_latency_seconds_sum",
        "inter_token_latency_seconds_count",
        "num_requests_running",
        "prompt_tokens_total",
        "generation_tokens_total",
        "request_success_total",
    )
    counters.write_text(
        "".join(
            f"vllm:{n} {v}\n" for values in ((1, 100, 3, 0, 0, 0), (3, 200, 4, 8000, 800, 8)) for n, v in zip(names, values, strict=True)
        )
    )
    (row,) = read_observations([counters]).rows
    assert (row.kind, row.seconds, row.batch, row.new_tokens, row.output_tokens) == ("tpot", 0.02, 4, 1000, 100)


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\x00\x01", b"\xff\xfe", b'{"a": ', b'{"a": 1}', b"kind,latency_ms\n"])
def test_a_file_that_holds_no_measurement_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data"
    path.write_bytes(content)
    with pytest.raises(TraceError, match="data"):
        read_observations([path])


class FakeServer(BaseHTTPRequestHandler):
    """Streams completions: 1 us per prompt token, 5 ms per output token."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        time.sleep(len(body["prompt"]) * 1e-6)
        for _ in range(body["max_tokens"]):
            self.wfile.write(b'data: {"choices": []}\n\n')
            self.wfile.flush()
            time.sleep(0.005)
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *args: object) -> None:
        pass


def test_the_probe_measures_a_server_and_its_result_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibrate_probe, "OUTPUT_TOKENS", 60)
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeServer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        code = calibrate_probe.main([f"http://127.0.0.1:{server.server_address[1]}", "--seed", "1"])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert code == 0
    path = tmp_path / "probe.json"
    path.write_text(capsys.readouterr().out)
    found = read_observations([path])
    assert [r.kind for r in found.rows] == ["prefill"] * 6 + ["decode"] * 4
    assert found.rows[4].cached_tokens == 32_768
    assert found.rows[9].batch == 8
    assert found.rows[9].sum_context > 8 * 2048
    assert not found.skipped


def test_the_probe_says_when_a_server_does_not_answer() -> None:
    with pytest.raises(SystemExit, match="does not answer"):
        calibrate_probe.main(["http://127.0.0.1:9", "--timeout", "2"])


def test_the_probe_needs_the_standard_library_only() -> None:
    import ast
    import sys

    tree = ast.parse(Path(calibrate_probe.__file__).read_text())
    names = {alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    assert names <= set(sys.stdlib_module_names)
