"""The anchor under both engines: what docs/guides/two-engines.md says about them holds."""

from __future__ import annotations

import pytest

from kvsim.config.load import load
from kvsim.config.resolve import resolve
from kvsim.errors import ConfigError
from kvsim.sim.simulate import simulate


def simulated(name: str, *overrides: str):
    resolved = resolve(load(name, ["workload.sessions=25", *overrides]))
    return resolved, simulate(resolved)


@pytest.fixture(scope="module")
def both():
    return {name: simulated(name, "workload.sessions_per_s=0.08") for name in ("anchor-sglang", "anchor-vllm")}


def test_both_scenarios_carry_the_same_load_on_the_same_memory(both) -> None:
    sglang, vllm = (both[name][0] for name in ("anchor-sglang", "anchor-vllm"))
    assert sglang.scenario.workload == vllm.scenario.workload
    assert sglang.capacity.host_bytes_total == pytest.approx(vllm.capacity.host_bytes_total, rel=0.001)
    assert vllm.capacity.device_tokens == pytest.approx(sglang.capacity.device_tokens, rel=0.05)


def test_every_request_is_served_by_both(both) -> None:
    for _, recording in both.values():
        assert [row.status for row in recording.requests] == ["finished"] * 200


def test_prompt_tokens_are_split_into_hits_and_misses(both) -> None:
    for _, recording in both.values():
        assert all(0 <= row.device_hit + row.host_hit < row.prompt_tokens for row in recording.requests)
        assert sum(row.host_hit for row in recording.requests) > 0


def test_only_vllm_mixes_prefill_and_decode(both) -> None:
    kinds = {name: {row[1] for row in recording.steps} for name, (_, recording) in both.items()}
    assert kinds["anchor-sglang"] == {"prefill", "decode"}
    assert "mixed" in kinds["anchor-vllm"]


def test_a_load_waits_outside_the_batch_under_vllm(both) -> None:
    for row in both["anchor-vllm"][1].requests:
        assert row.first_token_ps - row.arrival_ps >= row.load_wait_ps >= 0
    waits = [row.load_wait_ps for row in both["anchor-vllm"][1].requests if row.host_hit and not row.retractions]
    assert min(waits) > 0


def test_the_models_context_does_not_fit_and_is_a_finding() -> None:
    resolved = resolve(load("anchor-vllm", ["engine.max_model_len=262144"]))
    assert "largest max_model_len that fits" in resolved.capacity.infeasible[0]
    fitting = resolve(load("anchor-vllm", ["engine.max_model_len=auto"]))
    assert not fitting.capacity.infeasible
    assert fitting.engine.max_model_len == fitting.engine.num_gpu_blocks * 16


def test_keys_of_the_other_engine_are_named() -> None:
    with pytest.raises(ConfigError, match=r"engine\.mem_fraction_static: is a key of sglang's engine block"):
        load("anchor-sglang", ["engine.rules=vllm-0.24.0"])


def test_a_host_pool_beyond_the_ram_is_a_finding() -> None:
    resolved = resolve(load("anchor-vllm", ["engine.kv_offloading_size=2000"]))
    assert "largest kv_offloading_size" in resolved.capacity.infeasible[0]


def test_printed_values_win_over_the_derivation() -> None:
    resolved = resolve(load("anchor-vllm", ["engine.gpu_kv_cache_tokens=163840"]))
    assert resolved.engine.num_gpu_blocks == 10_240
    assert any(line.source == "printed by the engine" for line in resolved.capacity.lines)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("engine.rules=vllm-0.19.0", "connectors of vllm-0.19.0 are not described"),
        ("engine.max_num_batched_tokens=100", "is below max_num_seqs"),
        ("engine.offload.block_size=40", "must be a multiple"),
        ("engine.tp=4", "contradicts tensor_parallel_size"),
    ],
)
def test_impossible_settings_are_errors(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve(load("anchor-vllm", [override, "engine.max_num_seqs=200"]))


def test_the_options_of_a_vllm_scenario_can_all_be_resolved() -> None:
    from kvsim.study.options import variants

    resolved = resolve(load("anchor-vllm"))
    options = variants(resolved)
    assert {"as is", "no CPU tier", "fp8 KV", "synchronous"} <= {option.name for option in options}
    for option in options:
        changed = resolve(load("anchor-vllm", list(option.sets)))
        assert not changed.capacity.infeasible, option.name
