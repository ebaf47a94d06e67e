"""The links of data-parallel engines: all of their GPUs copy over one machine."""

from __future__ import annotations

from kvsim.config.load import load_data
from kvsim.config.resolve import resolve
from kvsim.cost.resolve import topology_links


def limits(dp: int, tp: int) -> dict[str, int]:
    resolved = resolve(
        load_data(
            {
                "hardware": {"base": "8x-rtx-pro-6000", "host_ram": "unlimited"},
                "model": "qwen3-30b-a3b",
                "engine": {
                    "rules": "vllm-0.24.0", "tensor_parallel_size": tp, "data_parallel_size": dp, "num_gpu_blocks_override": 4000,
                    "max_model_len": 16384,
                },
                "links": {"topology": "uplink2"},
            }
        )
    )  # fmt: skip
    return {shared.name: len(shared.gpus) for shared in topology_links(resolved).topology.shared}


def test_data_parallel_engines_share_uplinks_as_the_same_gpus_in_one_engine_do() -> None:
    assert limits(dp=4, tp=1) == limits(dp=1, tp=4) == limits(dp=2, tp=2)
    assert sum(name.startswith("uplink") for name in limits(dp=4, tp=1)) == 2
