"""vLLM's memory arithmetic against published figures (vllm_scheduler.md 11, V18) and launch commands."""

from __future__ import annotations

import shlex

import pytest

from kvsim.config.command import as_command
from kvsim.config.command_vllm import command_of_vllm, engine_of_vllm, is_vllm
from kvsim.config.load import load
from kvsim.config.resolve import resolve
from kvsim.config.server_log import read_server_log
from kvsim.config.vllm_memory import (
    KvShape,
    batch_defaults,
    blocks_of_printed,
    default_block_size,
    gpu_blocks,
    offload_blocks,
    page_bytes,
    printed_concurrency,
    printed_tokens,
    simple_blocks,
)
from kvsim.errors import ConfigError

LLAMA_8B = KvShape(kv_heads=8, head_dim=128, value_dim=128)
KIMI_K2 = KvShape(lora_rank=512, rope_dim=64)
GIB = 2**30


def test_a_block_of_llama_8b_is_two_mib() -> None:
    assert page_bytes(LLAMA_8B, 16, 1) == 65_536
    assert page_bytes(LLAMA_8B, 16, 1) * 32 == 2 * 2**20
    assert page_bytes(LLAMA_8B, 16, 2) * 32 == 2**20


def test_mla_is_replicated_on_every_rank() -> None:
    assert page_bytes(KIMI_K2, 16, 1) == page_bytes(KIMI_K2, 16, 8) == 18_432
    assert page_bytes(KIMI_K2, 16, 8) * 61 == 1_124_352


def test_published_pools_are_reproduced() -> None:
    assert gpu_blocks(2588 * 2 * 2**20, 65_536, 32) * 16 == 41_408
    assert gpu_blocks(44_692 * 1_124_352, 18_432, 61) * 16 == 715_072


def test_the_offloading_size_is_a_total_over_ranks() -> None:
    assert offload_blocks(358, 18_432, 61, 8) == 42_735
    assert offload_blocks(358, 18_432, 61, 8, 4) == 10_683
    assert offload_blocks(358, 18_432, 61, 1) == 341_885


def test_the_simple_connectors_pool_is_in_proportion_to_the_gpus() -> None:
    assert simple_blocks(80, 1000, 10 * GIB, 8) == 1000
    assert simple_blocks(80, 1000, 10 * GIB, 1) == 8000


@pytest.mark.parametrize(("blocks", "longest", "size"), [(2588, 41_000, 16), (44_692, 131_072, 16), (9_951, 40_960, 64), (7, 100, 16)])
def test_a_printed_pool_gives_its_blocks_back(blocks: int, longest: int, size: int) -> None:
    tokens = printed_tokens(blocks, longest, size)
    found = blocks_of_printed(tokens, longest, size)
    assert printed_tokens(found, longest, size) == tokens
    assert abs(found - blocks) <= 1


def test_concurrency_counts_whole_blocks_of_the_longest_request() -> None:
    assert printed_concurrency(100, 33, 16) == pytest.approx(100 / 3)


def test_fp8_and_nvfp4_shrink_the_block() -> None:
    assert page_bytes(LLAMA_8B, 16, 1, "fp8") == 32_768
    assert page_bytes(LLAMA_8B, 16, 1, "nvfp4") == 16 * 8 * (128 + 16)
    assert page_bytes(KIMI_K2, 64, 1, "fp8_ds_mla") == 64 * 656


def test_batch_defaults_depend_on_the_card() -> None:
    assert batch_defaults(80 * GIB, "H100 SXM") == (8192, 1024)
    assert batch_defaults(80 * GIB, "A100 SXM 80 GB") == (2048, 256)
    assert batch_defaults(24 * GIB, "RTX 4090") == (2048, 256)


def test_block_size_follows_the_attention_backend() -> None:
    assert default_block_size(None, False, "hopper")[0] == 16
    assert default_block_size("FLASHMLA", True, "hopper")[0] == 64
    assert default_block_size(None, True, "blackwell")[0] == 32
    assert default_block_size(None, True, "blackwell_workstation")[0] == 16


def test_a_command_becomes_an_engine_block() -> None:
    command = (
        "vllm serve moonshotai/Kimi-K2 -tp 8 --gpu-memory-utilization=0.9 --max-model-len 128K --no-enable-prefix-caching "
        "--kv-offloading-size 358 --max_num_seqs 64 --no-async-scheduling --trust-remote-code --port 8000"
    )
    engine = engine_of_vllm(shlex.split(command))
    assert engine == {
        "rules": "vllm-0.24.0", "tensor_parallel_size": 8, "gpu_memory_utilization": 0.9, "max_model_len": 131_072,
        "enable_prefix_caching": False, "kv_offloading_size": 358, "max_num_seqs": 64, "async_scheduling": False,
    }  # fmt: skip
    again = engine_of_vllm(shlex.split(command_of_vllm(engine, "moonshotai/Kimi-K2")))
    assert again == engine


def test_the_simple_connector_is_chosen_by_environment_or_json() -> None:
    engine = engine_of_vllm(shlex.split("VLLM_USE_SIMPLE_KV_OFFLOAD=1 vllm serve m --kv-offloading-size 10"))
    assert engine["offload"] == {"connector": "simple"}
    config = '{"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"block_size": 64, "cpu_bytes_to_use": 1073741824}}'
    engine = engine_of_vllm(["vllm", "serve", "m", "--kv-transfer-config", config])
    assert (engine["offload"], engine["kv_offloading_size"]) == ({"connector": "offloading", "block_size": 64}, 1.0)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("vllm serve m --max-num-sequences 3", "did you mean '--max-num-seqs'"),
        ("vllm serve m --block-size", "--block-size needs a value"),
        ("vllm serve m --speculative-config {}", "speculative decoding"),
        ("vllm serve m --kv-transfer-config {", "not JSON"),
        (
            """vllm serve m --kv-transfer-config '{"kv_connector": "LMCacheConnectorV1"}'""",
            "LMCacheConnectorV1 is not modelled",
        ),
    ],
)
def test_what_is_wrong_with_a_command_is_said(command: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        engine_of_vllm(shlex.split(command))


def test_commands_of_other_engines_are_told_apart() -> None:
    assert is_vllm(shlex.split("python -m vllm.entrypoints.openai.api_server --model m"))
    assert not is_vllm(shlex.split("python -m sglang.launch_server --model m"))


LOG = """INFO 10-01 12:00:00 [gpu_model_runner.py] Model loading took 71.80 GiB memory and 45.2 seconds
INFO 10-01 12:00:09 [gpu_worker.py] Available KV cache memory: 10.64 GiB
INFO 10-01 12:00:09 [kv_cache_utils.py] GPU KV cache size: 162,560 tokens
INFO 10-01 12:00:09 [kv_cache_utils.py] Maximum concurrency for 65,536 tokens per request: 2.48x
INFO 10-01 12:00:09 Chunked prefill is enabled with max_num_batched_tokens=8192.
"""


def test_what_a_server_printed_wins(tmp_path) -> None:
    log = tmp_path / "server.log"
    log.write_text(LOG)
    scenario = load("anchor-vllm", read_server_log(str(log)).overrides())
    resolved = resolve(scenario)
    assert resolved.engine.num_gpu_blocks == 10_160
    assert resolved.engine.max_model_len == 65_536
    assert resolved.engine.max_num_batched_tokens == 8192
    assert resolved.capacity.weight_bytes == round(71.80 * GIB)


def test_a_scenario_is_written_back_as_a_command() -> None:
    scenario = load("anchor-vllm")
    command = as_command(scenario.engine.model_dump(exclude_unset=True), "kimi")
    assert command.startswith("vllm serve kimi --tensor-parallel-size 8")
    again = engine_of_vllm(shlex.split(command))
    assert again["kv_offloading_size"] == 333.4
    assert again["max_model_len"] == 131_072
