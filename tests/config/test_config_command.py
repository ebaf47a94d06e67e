"""Launch commands as people write them, and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvsim.config import flags_sglang as flags
from kvsim.config.command import as_command, parse_sglang, remarks_of_command, split_command
from kvsim.config.load import load, load_data
from kvsim.config.resolve import resolve
from kvsim.errors import ConfigError
from kvsim.report.explain import explain_text

L = "python -m sglang.launch_server"
GOOD: list[tuple[str, dict[str, Any]]] = [
    (f"{L} --model-path m --tp 8", {"tp": 8}),
    (f"{L} --model-path m --tp-size 4", {"tp": 4}),
    (f"{L} --model-path m --tensor-parallel-size=2", {"tp": 2}),
    ("python3 -m sglang.launch_server --model m --tp 8 --mem-fraction-static 0.88", {"mem_fraction_static": 0.88}),
    ("sglang serve --model-path m --tp 8", {"tp": 8}),
    ("sglang serve m --tp 8 --host 0.0.0.0 --port 30000", {"tp": 8}),
    (f"CUDA_VISIBLE_DEVICES=0,1 SGLANG_X=1 {L} --model-path m --tp 2", {"tp": 2}),
    (f"env HF_HUB_OFFLINE=1 {L} --model-path m --page-size 64", {"page_size": 64}),
    (f"docker run --gpus all --shm-size 32g -p 30000:30000 -v /data:/data lmsysorg/sglang:v0.5.9 {L} --model-path m --tp 4", {"tp": 4}),
    (f"nohup {L} --model-path m --chunked-prefill-size 4096", {"chunked_prefill_size": 4096}),
    (f"{L} --model-path m \\\n  --tp 8 \\\n  --page-size 32", {"tp": 8, "page_size": 32}),
    (f"{L} --model-path 'my model' --tp \"8\"", {"tp": 8}),
    (f"{L} --model_path m --mem_fraction_static 0.9", {"mem_fraction_static": 0.9}),
    (f"{L} --model-path m --enable-hierarchical-cache --hicache-ratio 4.0", {"hicache": {"ratio": 4.0}}),
    (f"{L} --model-path m --enable-hierarchical-cache", {"hicache": {"ratio": 2.0}}),
    (f"{L} --model-path m --hicache-ratio 4.0", {"hicache": {"ratio": 0.0}}),
    (f"{L} --model-path m --enable-hierarchical-cache --hicache-size 40", {"hicache": {"size": 40.0}}),
    (f"{L} --model-path m --enable-hierarchical-cache --hicache-write-policy write_back", {"hicache": {"write_policy": "write_back"}}),
    (f"{L} --model-path m --enable-hierarchical-cache --hicache-io-backend direct --hicache-mem-layout page_first_direct", {"hicache": {"io_backend": "direct"}}),
    (f"{L} --model-path m --cuda-graph-max-bs 128 --max-running-requests 48", {"cuda_graph_max_bs": 128, "max_running_requests": 48}),
    (f"{L} --model-path m --cuda-graph-bs 1 2 4 8 --tp 1", {"cuda_graph_bs": [1, 2, 4, 8], "tp": 1}),
    (f"{L} --model-path m --kv-cache-dtype fp8_e4m3 --attention-backend flashinfer", {"kv_cache_dtype": "fp8_e4m3", "attention_backend": "flashinfer"}),
    (f"{L} --model-path m --schedule-policy lpm --schedule-conservativeness 0.3", {"schedule_policy": "lpm", "schedule_conservativeness": 0.3}),
    (f"{L} --model-path m --disable-radix-cache --disable-overlap-schedule", {"disable_radix_cache": True, "disable_overlap_schedule": True}),
    (f"{L} --model-path m --enable-mixed-chunk --max-prefill-tokens 8192", {"enable_mixed_chunk": True, "max_prefill_tokens": 8192}),
    (f"{L} --model-path m --tp 8 --dp 8 --enable-dp-attention", {"tp": 8, "dp_size": 8, "enable_dp_attention": True}),
    (f"{L} --model-path m --tp 8 --ep-size 8 --moe-a2a-backend deepep", {"ep_size": 8}),
    (f"{L} --model-path m --speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4", {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3}),
    (f"{L} --model-path m --context-length 131072 --max-total-tokens 100000", {"context_length": 131072, "max_total_tokens": 100000}),
    (f"{L} --model-path m --radix-eviction-policy lfu --trust-remote-code --reasoning-parser kimi_k2", {"radix_eviction_policy": "lfu"}),
    (f"{L} --model-path m --enable-priority-scheduling --priority-scheduling-preemption-threshold 5", {"enable_priority_scheduling": True, "priority_scheduling_preemption_threshold": 5}),
    (f"{L} --model-path m --cuda-graph-max-bs-decode 64 --chunked-prefill-size -1", {"cuda_graph_max_bs": 64, "chunked_prefill_size": -1}),
]  # fmt: skip


def engine_of(command: str) -> Any:
    return load_data({"hardware": "8x-rtx-pro-6000", "model": "llama-3.1-8b", "engine": {"command": command}}).engine


@pytest.mark.parametrize(("command", "expected"), GOOD, ids=range(len(GOOD)))
def test_a_launch_command_is_read(command: str, expected: dict[str, Any]) -> None:
    engine = engine_of(command)
    for key, value in expected.items():
        found = getattr(engine, key)
        if isinstance(value, dict):
            assert {inner: getattr(found, inner) for inner in value} == value
        else:
            assert found == value


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"{L} --model-path m --mem-fracton-static 0.9", "did you mean '--mem-fraction-static'"),
        (f"{L} --model-path m --tp", "--tp needs a value"),
        (f"{L} --model-path m --tp 8 --tp-size 4", "given before as 8"),
        (f"{L} --model-path 'm", "quotes do not close"),
        (f"{L} --model-path m --disaggregation-mode prefill", "not modelled"),
        ("ls -la", "no launch command found"),
        (f"{L} --model-path m --tp eight", "a number"),
    ],
)
def test_a_wrong_flag_is_named(command: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        engine_of(command)


def test_flags_without_effect_are_listed() -> None:
    parsed = parse_sglang(split_command(f"A=1 {L} --model-path m --host 0.0.0.0 --trust-remote-code --tp 2"))
    assert parsed.without_effect == ["--host", "--trust-remote-code"]
    assert parsed.model == "m"
    assert parsed.environment == {"A": "1"}


def test_what_is_said_but_not_derived_is_noted_and_explain_shows_both() -> None:
    command = f"{L} --model-path m --tp 8 --host 0.0.0.0 --quantization fp8 --bucket-e2e-request-latency 1 2 3 --disaggregation-mode null"
    ignored, note = remarks_of_command(command)
    assert ignored == "flags without effect on the simulation: --host, --bucket-e2e-request-latency, --disaggregation-mode"
    assert note.startswith("--quantization fp8: weights are derived from the model's own config")
    page = explain_text(resolve(load_data({"hardware": "8x-h100", "model": "llama-3.1-8b", "engine": {"command": command}})))
    assert "flags without effect on the simulation: --host" in page
    assert "--quantization fp8" in page


def test_the_flags_vllm_ignores_are_listed_too() -> None:
    assert remarks_of_command("vllm serve m --tensor-parallel-size 8 --trust-remote-code --port=80") == [
        "flags without effect on the simulation: --trust-remote-code, --port"
    ]


def test_environment_settings_reach_the_engine_and_come_back() -> None:
    engine = engine_of(f"SGLANG_RETRACT_DECODE_STEPS=40 SGLANG_INIT_NEW_TOKEN_RATIO=0.5 {L} --model-path m")
    assert (engine.retract_decode_steps, engine.init_new_token_ratio) == (40, 0.5)
    written = as_command(engine.model_dump(exclude_unset=True), "m")
    assert written.startswith("SGLANG_RETRACT_DECODE_STEPS=40 SGLANG_INIT_NEW_TOKEN_RATIO=0.5 python -m sglang.launch_server")
    params = resolve(load_data({"hardware": "8x-h100", "model": "llama-3.1-8b", "engine": {"retract_decode_steps": 40}})).engine
    assert params.retract_decode_steps == 40


def test_every_flag_is_in_one_table() -> None:
    tables = (
        flags.VALUES, flags.SWITCHES, flags.LISTS, flags.IGNORED_VALUES, flags.IGNORED_LISTS, flags.IGNORED_SWITCHES,
        flags.NOTED_VALUES, flags.NOTED_SWITCHES, flags.NOT_MODELLED,
    )  # fmt: skip
    names = [flag for table in tables for flag in table]
    assert sorted(names) == sorted(set(names))
    assert all(flag.startswith("--") and flag == flag.lower() and "_" not in flag for flag in names)


@pytest.mark.parametrize("told", [{"tp_size": 8, "enable_two_batch_overlap": True}, {"tp_size": 8, "num_continuous_decode_steps": 4}])
def test_a_servers_arguments_whose_effect_is_not_modelled_are_an_error(told: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="not modelled"):
        engine_of(json.dumps(told))


def test_a_servers_arguments_at_their_defaults_are_no_error() -> None:
    told = {"tp_size": 8, "enable_lora": None, "num_continuous_decode_steps": 1, "disaggregation_mode": "null", "enable_pdmux": False}
    assert engine_of(json.dumps(told)).tp == 8


@pytest.mark.parametrize("command", [command for command, _ in GOOD[:31] if "hicache-ratio 4.0" not in command or "enable" in command], ids=range(30))
def test_command_to_scenario_to_command_keeps_every_relevant_flag(command: str) -> None:
    first = engine_of(command)
    again = engine_of(as_command(first.model_dump(exclude_unset=True), "m"))
    dropped = {"command"}
    assert again.model_dump(exclude=dropped) == first.model_dump(exclude=dropped)


def test_the_engine_blocks_own_keys_win_over_the_command() -> None:
    data = {"hardware": "8x-rtx-pro-6000", "model": "llama-3.1-8b", "engine": {"command": f"{L} --model-path m --tp 4", "tp": 2}}
    assert load_data(data).engine.tp == 2


def test_the_anchors_command_gives_the_anchors_numbers() -> None:
    command = f"{L} --model-path kimi --tp 8 --mem-fraction-static 0.88 --cuda-graph-max-bs 128 --enable-hierarchical-cache --hicache-ratio 4.0"
    data = {"hardware": "8x-rtx-pro-6000", "model": "kimi-k2.5-int4", "engine": {"command": command, "free_before_weights": "94.0GiB", "weights_resident": "72.3GiB"}}
    capacity = resolve(load_data(data)).capacity
    assert (capacity.device_tokens, capacity.host_tokens) == (159_215, 636_861)
    assert resolve(load("hicache-ratio")).capacity.device_tokens == 159_215


@pytest.mark.parametrize(
    "config",
    [
        {}, {"num_hidden_layers": "many"}, {"num_hidden_layers": 10**30}, {"num_attention_heads": 0}, {"hidden_size": 5, "num_attention_heads": 10},
        {"num_hidden_layers": True}, {"num_hidden_layers": -4}, {"vocab_size": 1.5}, {"layer_types": ["full_attention"]},
    ],
)  # fmt: skip
def test_a_hostile_model_config_is_a_clear_error(config: dict[str, Any]) -> None:
    good = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
    model = {**good, **config} if config else {"nothing": 1}
    with pytest.raises(ConfigError):
        resolve(load_data({"hardware": "8x-h100", "model": model, "engine": {"tp": 1}}))


def test_a_server_log_wins_over_the_derivation(tmp_path: Any) -> None:
    from kvsim.config.server_log import read_server_log

    log = tmp_path / "server.log"
    log.write_text(
        "[2026-02-01 10:00:00 TP0] Load weight begin. avail mem=94.00 GB\n"
        "[2026-02-01 10:03:00 TP0] Load weight end. type=X, dtype=torch.bfloat16, avail mem=21.70 GB, mem usage=72.30 GB.\n"
        "[2026-02-01 10:03:01 TP0] KV Cache is allocated. #tokens: 159000, KV size: 10.41 GB\n"
        "[2026-02-01 10:03:01 TP0] max_total_num_tokens=159000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, context_len=262144\n"
    )
    found = read_server_log(str(log))
    assert (found.tokens, found.weights_gib, found.free_before_gib) == (159000, 72.3, 94.0)
    capacity = resolve(load("hicache-ratio", found.overrides())).capacity
    assert capacity.device_tokens == 159_000
    assert any("printed by the engine" in line.source for line in capacity.lines)


def test_a_running_servers_own_json_is_read(tmp_path: Any) -> None:
    import json

    told = {"model_path": "m", "tp_size": 4, "mem_fraction_static": 0.87, "enable_hierarchical_cache": True, "hicache_ratio": 3.0, "port": 30000, "max_total_num_tokens": 123456}
    engine = engine_of(json.dumps(told))
    assert (engine.tp, engine.mem_fraction_static, engine.hicache.ratio, engine.max_total_num_tokens) == (4, 0.87, 3.0, 123456)
    file = tmp_path / "server.yaml"
    file.write_text("tp-size: 2\npage-size: 64\nenable-hierarchical-cache: false\nhicache-ratio: 4\n")
    again = engine_of(str(file))
    assert (again.tp, again.page_size, again.hicache.ratio) == (2, 64, 0.0)
    with pytest.raises(ConfigError, match="no argument of a server"):
        engine_of('{"nothing": 1}')


def test_explain_says_how_many_requests_fit_and_when_loading_pays() -> None:
    from kvsim.report.explain import break_even, explain_text, fits_at_once

    resolved = resolve(load("hicache-ratio"))
    fits = fits_at_once(resolved)
    assert fits is not None
    assert fits["p50"]["at_once"] == 159_215 // fits["p50"]["tokens"]
    even = break_even(resolved)
    assert even is not None
    assert even["load_s"] < even["recompute_s"]
    assert even["load_one_rank_s"] <= even["load_s"] * 1.001
    assert even["shortest_prefix_tokens"] is not None
    assert max(len(line) for line in explain_text(resolved).splitlines()) <= 100
