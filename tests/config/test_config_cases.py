"""Field reports of group A (sizing), O15 and O35: capacities with their right values."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.config.load import load, load_data
from kvsim.config.resolve import resolve
from kvsim.config.sglang_memory import host_tokens
from kvsim.errors import ConfigError

M8 = "llama-3.1-8b"
M70 = "llama-3.1-70b"


def machine(gpus: int, ram: str = "unlimited", **more: Any) -> dict[str, Any]:
    return {"base": "8x-h100", "gpus": gpus, "host_ram": ram, "assumptions": [], **more}


def capacity(hardware: dict[str, Any], model: Any, **engine: Any) -> Any:
    return resolve(load_data({"hardware": hardware, "model": model, "engine": engine})).capacity


def test_o01_the_host_pool_is_per_rank_and_the_sum_must_fit() -> None:
    tokens = int(20e9 // 32768)

    def at(ram: str, size: float, **more: Any) -> Any:
        return capacity(machine(4, ram, **more), M8, tp=4, device_tokens=tokens, hicache={"size": size})

    small = at("128GB", 40)
    assert small.host_bytes_per_rank == pytest.approx(40e9, rel=1e-4)
    assert small.host_bytes_total == pytest.approx(160e9, rel=1e-4)
    assert "largest size that fits: 29.3 GB per rank" in small.infeasible[0]
    assert not at("128GB", 29).infeasible
    assert at("128GB", 30).infeasible
    assert not at("256GB", 40).infeasible
    assert at("256GB", 40, pinnable_fraction=0.5).infeasible
    assert not at("256GB", 29, pinnable_fraction=0.5).infeasible


def test_o02_a_ratio_that_does_not_fit_is_refused_with_the_largest_that_does() -> None:
    tokens = int(113e9 // 32768)
    found = {
        r: capacity(machine(4, "1024GB"), M8, tp=4, device_tokens=tokens, hicache={"ratio": r}) for r in (1.0, 1.5, 2.0, 2.24, 2.25, 2.5)
    }
    assert [bool(c.infeasible) for c in found.values()] == [False, False, False, False, True, True]
    assert found[2.5].extra["largest_ratio"] == pytest.approx(2.2417, abs=2e-4)


@pytest.mark.parametrize(
    ("device", "ratio", "page", "rounded", "host"), [(100, 3, 16, 96, 304), (1000, 2, 64, 960, 1984), (1024, 2, 64, 1024, 2112)]
)
def test_o03_host_pages_are_rounded_as_the_engine_does(device: int, ratio: float, page: int, rounded: int, host: int) -> None:
    found = capacity(machine(1), M8, tp=1, device_tokens=device, page_size=page, hicache={"ratio": ratio})
    assert (found.device_tokens, found.host_tokens) == (rounded, host)
    assert host_tokens(rounded, ratio, 0, 1, page) == host


def test_o04_the_refusal_names_the_reserve() -> None:
    tokens = int(10e9 // 131072)
    refused = capacity(machine(1, "44.87GB"), M8, tp=1, device_tokens=tokens, hicache={"size": 40})
    assert "less 10 GiB kept free = 34.13 GB" in refused.infeasible[0]
    assert not capacity(machine(1, "44.87GB"), M8, tp=1, device_tokens=tokens, hicache={"size": 34}).infeasible


@pytest.mark.parametrize("ratio", [0, 2, 4, 10])
def test_o05_host_ram_does_not_make_a_longer_request_fit(ratio: float) -> None:
    found = capacity(machine(1), M8, tp=1, device_tokens=10_000, hicache={"ratio": ratio})
    assert found.device_tokens == 10_000
    assert found.longest_prompt == 9_993


@pytest.mark.parametrize(
    ("model", "tp", "tokens"), [("kimi-k2.5-int4", 4, 569_216), ("kimi-k2.5-int4", 8, 569_216), (M70, 4, 488_281), (M70, 8, 976_562)]
)
def test_o06_more_tp_gives_no_more_mla_kv(model: str, tp: int, tokens: int) -> None:
    cell = resolve(
        load_data({"hardware": machine(8), "model": model, "engine": {"tp": tp, "device_tokens": 1}})
    ).capacity.kv_bytes_per_token
    assert int(40e9 // cell) == tokens
    found = capacity(machine(8), model, tp=tp, device_tokens=tokens, hicache={"ratio": 2})
    assert found.host_bytes_total == pytest.approx(tp * 80e9, rel=1e-4)


def test_o07_bytes_per_token_with_their_factors() -> None:
    model = {
        "num_hidden_layers": 28,
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 152064,
    }
    found = capacity(machine(1), model, tp=1, device_tokens=4096)
    assert found.kv_bytes_per_token == 57_344
    assert "28 layers x 4 KV heads" in found.lines[0].formula
    assert 3072 * found.kv_bytes_per_token == 176_160_768


def test_o08_fp8_kv_doubles_every_derived_number() -> None:
    plain, half = (
        capacity(machine(8), M70, tp=8, device_tokens=1, kv_cache_dtype=dtype).kv_bytes_per_token for dtype in ("auto", "fp8_e4m3")
    )
    assert (int(40e9 // plain), int(40e9 // half)) == (976_562, 1_953_125)


@pytest.mark.parametrize(("fraction", "pool"), [(0.88, 24.48e9), (0.65, 2.40e9)])
def test_o09_the_reserve_is_a_share_of_free_memory(fraction: float, pool: float) -> None:
    found = capacity(machine(1), M8, tp=1, mem_fraction_static=fraction, free_before_weights="96GB", weights_resident="60GB")
    assert found.device_pool_bytes == pytest.approx(pool, rel=1e-4)


def test_o09_a_negative_pool_says_which_way_to_turn() -> None:
    found = capacity(machine(1), M8, tp=1, mem_fraction_static=0.6, free_before_weights="96GB", weights_resident="60GB")
    assert "raise mem_fraction_static above 0.625" in found.infeasible[0]


def test_o15_a_link_cannot_be_faster_than_its_lanes() -> None:
    from kvsim.cost.build import build_links

    def links(**rates: str) -> Any:
        return build_links(
            resolve(
                load_data(
                    {
                        "hardware": "8x-rtx-pro-6000",
                        "model": M8,
                        "engine": {"tp": 1, "device_tokens": 10_000},
                        "links": {"kind": "topology", **rates},
                    }
                )
            )
        )

    default = links()
    assert default.finish_time(default.load(16, 0), 0) >= 33_280_000
    with pytest.raises(ConfigError, match=r"63\.0 GB/s"):
        links(h2d="200GB/s")


def test_o35_a_model_that_does_not_fit_says_what_would() -> None:
    eight = machine(8)
    bf16 = capacity(
        eight, "llama-3.1-405b", tp=8, mem_fraction_static=0.88, free_before_weights="96GB", weights_resident=f"{810e9 / 8:.0f}"
    )
    assert "at least 10 GPUs (16 if TP must be a power of two)" in bf16.infeasible[0]
    fp8 = capacity(eight, "llama-3.1-405b", tp=8, mem_fraction_static=0.88, free_before_weights="96GB", weights_resident=f"{405e9 / 8:.0f}")
    assert fp8.device_tokens == pytest.approx(524_786, abs=8)


def test_the_anchor() -> None:
    from kvsim.config.load import load

    found = resolve(load("hicache-ratio")).capacity
    assert (found.kv_bytes_per_token, found.device_tokens, found.host_tokens, found.longest_prompt) == (70_272, 159_215, 636_861, 159_208)
    assert found.host_bytes_per_rank / 1e9 == pytest.approx(44.75, abs=0.005)
    assert found.host_bytes_total / 1e9 == pytest.approx(358.0, abs=0.05)
    assert found.max_running_requests == 2048
    assert found.extra["chunked_prefill_size"] == 8192
    assert found.extra["cuda_graph_sizes"][-1] == 128
    assert len(found.extra["cuda_graph_sizes"]) == 20


def test_a_48_gb_card_is_infeasible_for_the_anchor_model() -> None:
    found = resolve(load_data({"hardware": "8x-l40s", "model": "kimi-k2.5-int4", "engine": {"tp": 8}})).capacity
    assert "at least" in found.infeasible[0]


def test_every_bundled_model_weighs_what_is_published() -> None:
    from kvsim import bundled
    from kvsim.config.model import load_model
    from kvsim.config.weights import weights_total

    names = bundled.names("models")
    assert len(names) >= 15
    for name in names:
        model = load_model(name)
        assert weights_total(model) == pytest.approx(model.facts["published_weight_bytes"], rel=0.005), name
        assert model.facts["source"]
        assert model.facts["date"]


@pytest.mark.parametrize(
    ("base", "settings", "message"),
    [
        ("toy", ["clients.loop=closed"], "scenario: clients.loop has no effect with workload.kind poisson"),
        ("hicache-ratio", ["clients.think_time=5s"], "clients.think_time has no effect with workload.kind multi_turn"),
        ("hicache-ratio", ["workload.arrivals={process: poisson, cv: 3}"], "arrivals.cv has no effect with process 'poisson'"),
        ("hicache-ratio", ["workload.loop=open", "workload.users=5"], "workload: users has no effect with loop: open"),
    ],
)
def test_a_key_without_effect_is_an_error_that_names_it(base, settings, message):
    with pytest.raises(ConfigError) as fault:
        load(base, settings)
    assert message in str(fault.value)
