from __future__ import annotations

from types import SimpleNamespace

import pytest
from cost_models import KIMI, LLAMA

from kvsim.config.hardware import load_hardware
from kvsim.config.schema import Scenario
from kvsim.cost.adapt import with_overrides
from kvsim.cost.aiconfigurator import CONTEXTS, EstimatedTime, known_errors
from kvsim.cost.analytic import AnalyticTime
from kvsim.cost.build import build_links, build_step_time
from kvsim.cost.resolve import analytic_inputs_of, break_even_rate, copy_mode, cost_notes, sglang_graphs, speculation_of
from kvsim.cost.speculation import SpeculativeTime
from kvsim.errors import ConfigError, MissingExtra

MS = 10**9


def resolved(
    model: dict[str, object] | None = None,
    hardware: str = "8x-rtx-pro-6000",
    kv: int = 70_272,
    ranks: int = 8,
    **blocks: object,
) -> SimpleNamespace:
    """A resolved scenario as far as the cost layer looks at it."""
    scenario = Scenario.model_validate({"hardware": hardware, "model": "m", **blocks})
    vllm = "max_num_seqs" in type(scenario.engine).model_fields
    engine = SimpleNamespace(page_size=getattr(scenario.engine, "page_size", None) or 1, block_size=16, chunked_prefill_size=8192)
    return SimpleNamespace(
        scenario=scenario,
        hardware=load_hardware(hardware),
        model=SimpleNamespace(config=model or KIMI),
        engine=engine,
        family="vllm" if vllm else "sglang",
        capacity=SimpleNamespace(ranks=ranks, kv_bytes_per_token=kv),
    )


def test_the_anchor_gives_the_published_step_times() -> None:
    time = build_step_time(resolved(engine={"attention_backend": "flashinfer", "cuda_graph_max_bs": 128}))
    assert time.decode_ps(32, 32 * 16_384) / MS == pytest.approx(61.7, rel=0.01)
    assert time.prefill_ps(8192, 8192 * (2 * 102_400 + 8193), 102_400, 1, 0, 0, 0) / MS == pytest.approx(2091, rel=0.01)


def test_toy_constants_and_links_are_arithmetic() -> None:
    toy = resolved(
        kv=100_000,
        ranks=1,
        costs={"kind": "constant", "prefill_tokens_per_s": 10_000, "decode_step": "10ms"},
        links={"kind": "constant", "h2d": "50GB/s", "d2h": "50GB/s", "layerwise_overlap": False},
    )
    time, links = build_step_time(toy), build_links(toy)
    load = links.load(4900, 0)
    compute = time.prefill_ps(100, 0, 4900, 1, 0, 0, 0)
    assert links.finish_with_load(load, 0, compute, time.layers) == 19_800_000_000


@pytest.mark.parametrize(("rate", "seconds"), [("0.5GB/s", 1.59), ("1GB/s", 0.80), ("2GB/s", 0.405), ("50GB/s", 0.0258)])
def test_o11_reload_beats_recompute_only_above_the_break_even_rate(rate: str, seconds: float) -> None:
    toy = resolved(
        kv=100_000,
        ranks=1,
        costs={"kind": "constant"},
        links={"kind": "constant", "h2d": rate, "d2h": "50GB/s", "layerwise_overlap": False},
    )
    time, links = build_step_time(toy), build_links(toy)
    end = links.finish_with_load(links.load(7900, 0), 0, time.prefill_ps(100, 0, 7900, 1, 0, 0, 0), 1)
    assert end / 1e12 == pytest.approx(seconds, abs=0.0005)
    assert (end / 1e12 > 0.80) == (float(rate.removesuffix("GB/s")) * 1e9 < break_even_rate(100_000, 10_000))


def test_anchor_loads_run_at_the_kernel_rate_on_every_rank() -> None:
    links = build_links(resolved())
    assert links.finish_time(links.load(32_768, 0), 0) / MS == pytest.approx(76.78, rel=0.01)
    assert links.finish_time(links.write(32_768, 0), 0) / MS == pytest.approx(82.3, rel=0.01)


@pytest.mark.parametrize(("topology", "ms"), [("direct", 76.78), ("uplink2", 80.82), ("uplink4", 161.61)])
def test_shared_uplinks_slow_all_ranks_as_in_the_worked_examples(topology: str, ms: float) -> None:
    links = build_links(resolved(links={"topology": topology}))
    assert links.finish_time(links.load(32_768, 0), 0) / MS == pytest.approx(ms, rel=0.01)


def test_page_size_decides_batch_copies() -> None:
    times = []
    for page in (16, 64):
        links = build_links(resolved(engine={"page_size": page}, links={"mode": "batch"}))
        times.append(links.finish_time(links.load(32_768, 0), 0))
    assert times[0] / times[1] == pytest.approx(8, rel=0.05)


def test_the_direct_backend_blocks_the_launch_and_kernel_copies_slow_compute() -> None:
    direct = build_links(resolved(engine={"page_size": 64, "hicache": {"io_backend": "direct"}}))
    assert direct.mode.cpu_ps_per_token == round(61 / 64 * 3e6)
    kernel = build_links(resolved())
    assert (direct.mode.interference, kernel.mode.interference) == (0.0, 0.05)


def test_one_shared_host_copy_is_stored_once_and_read_by_every_rank() -> None:
    links = build_links(resolved(engine={"hicache": {"host_copies": "shared"}}))
    assert links.mode.bytes_per_token == (70_272, 8784)
    memory = [limit for limit in links.topology.shared if limit.both_ways]
    assert [limit.gpus for limit in memory] == [tuple(range(8))]


def test_a_page_first_host_pool_stores_slower() -> None:
    links = build_links(resolved(engine={"hicache": {"mem_layout": "page_first"}}))
    assert links.topology.mode_caps == (30e9, 20e9)


def test_o15_an_impossible_rate_is_refused_with_the_ceiling() -> None:
    with pytest.raises(ConfigError, match=r"links\.h2d is 200\.0 GB/s.*63\.0 GB/s"):
        build_links(resolved(LLAMA, kv=131_072, ranks=1, links={"h2d": "200GB/s"}))
    links = build_links(resolved(LLAMA, kv=131_072, ranks=1))
    assert links.finish_time(links.load(16, 0), 0) / 1e6 >= 33.28


def test_vllm_moves_whole_blocks_and_has_its_own_graphs() -> None:
    vllm = resolved(LLAMA, kv=131_072, ranks=1, engine={"rules": "vllm-0.24.0", "max_num_seqs": 64})
    assert copy_mode(vllm) == "page_contig"
    time = build_step_time(vllm)
    assert time.inputs.overheads.graph_sizes[-1] == 128


def test_graph_sizes_follow_the_flags_and_the_cards_default() -> None:
    assert sglang_graphs(resolved(), 8)[-1] == 512
    assert sglang_graphs(resolved(engine={"cuda_graph_max_bs": 100}), 8)[-1] == 96
    assert sglang_graphs(resolved(engine={"cuda_graph_bs": [4, 2]}), 8) == (2, 4)
    assert sglang_graphs(resolved(engine={"disable_cuda_graph": True}), 8) == ()


def test_constants_of_an_overlay_change_the_model() -> None:
    base, slow = resolved(), resolved(costs={"kind": "analytic", "constants": {"overheads.m0": 90e-6}})
    assert analytic_inputs_of(slow) == with_overrides(analytic_inputs_of(base), {"overheads.m0": 90e-6})
    assert AnalyticTime(analytic_inputs_of(slow)).decode_ps(1, 1000) > AnalyticTime(analytic_inputs_of(base)).decode_ps(1, 1000)


def test_stand_ins_and_assumptions_are_said() -> None:
    assert any("flashinfer (not given" in note for note in cost_notes(resolved()))
    h20 = cost_notes(resolved(hardware="8x-h20"))
    assert any("not measured on this card" in note for note in h20)
    assert any("35% of drafted tokens" in note for note in cost_notes(resolved(engine={"speculative_algorithm": "EAGLE"})))


def test_speculation_is_built_from_flags_and_the_acceptance_block() -> None:
    spec = resolved(engine={"speculative_algorithm": "EAGLE"}, speculation={"accept_length": 2.5, "off_above": 32})
    time = build_step_time(spec)
    assert isinstance(time, SpeculativeTime)
    assert time.speculation.mean_tokens() == pytest.approx(2.5)
    assert (
        time.speculation.steps,
        time.speculation.topk,
        time.speculation.draft_tokens,
        time.speculation.off_above,
    ) == (3, 1, 4, 32)
    assert speculation_of(resolved()) is None
    with pytest.raises(ConfigError, match="does not speculate"):
        speculation_of(resolved(speculation={"accept_length": 2.5}))
    with pytest.raises(ConfigError, match="not both"):
        speculation_of(resolved(engine={"speculative_algorithm": "EAGLE"}, speculation={"accept_length": 2, "accept_rates": [0.5]}))


class FakeEstimator:
    """Straight lines, and a count of how often each point is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def decode_step_latency(self, batch: int, context: int, osl: int) -> float:
        self.asked.append(("d", batch, context))
        return 5 + batch + context * batch / 1000

    def predict_prefill_latency(self, batch: int, isl: int, prefix: int) -> float:
        self.asked.append(("p", isl, prefix))
        return isl / 100


def test_an_estimator_is_asked_once_per_grid_point_and_interpolated() -> None:
    fake = FakeEstimator()
    time = EstimatedTime(fake, 61)
    assert time.decode_ps(4, 4 * 3000) / MS == pytest.approx(5 + 4 + 12, rel=0.02)
    assert time.decode_ps(3, 3 * 3000) / MS == pytest.approx(5 + 3 + 9, rel=0.02)
    assert time.prefill_ps(3000, 3000 * (2 * 5000 + 3001), 5000, 1, 0, 0, 0) == pytest.approx(80 * MS, rel=0.001)
    for _ in range(3):
        time.decode_run_ps(4, 40_000, 200)
        time.prefill_ps(3000, 3000 * (2 * 5000 + 3001), 5000, 1, 0, 0, 0)
    assert len(fake.asked) == len(set(fake.asked)) <= 2 * len(CONTEXTS) + 4
    assert time.decode_run_ps(4, 40_000, 50) == sum(time.decode_ps(4, 40_000 + 4 * i) for i in range(50))


def test_known_errors_of_the_estimator_are_said() -> None:
    notes = known_errors("moonshotai/Kimi-K2.5", "sglang", "blackwell_pro")
    assert any("128 / tp heads" in note for note in notes)
    assert any("absorbed" in note for note in notes)
    assert len(known_errors("Qwen/Qwen3-32B", "sglang", "hopper")) == 1


def test_the_estimator_needs_its_extra_or_its_own_names() -> None:
    with pytest.raises((MissingExtra, ConfigError), match=r"kvsim\[aiconfigurator\]|costs\.system"):
        build_step_time(resolved(costs={"kind": "aiconfigurator"}))


def test_a_card_without_coefficients_is_said_under_every_result(capsys: pytest.CaptureFixture[str]) -> None:
    from kvsim.cli.app import run_command

    assert run_command(["explain", "--hardware", "8x-h20", "--model", "kimi-k2.5-int4"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "not measured on this card" in text
    assert "loads: kernel copies, layer by layer" in text
