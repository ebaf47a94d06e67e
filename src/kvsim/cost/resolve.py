"""From a resolved scenario to the numbers of the time model and of the links: the only place here that knows a
scenario."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvsim.cost.adapt import EngineShape, analytic_inputs, with_overrides
from kvsim.cost.analytic import AnalyticTime
from kvsim.cost.inputs import AnalyticInputs, Card
from kvsim.cost.links import CopyMode, Links
from kvsim.cost.modes import CopyCosts, Layout, mode_rates
from kvsim.cost.shape import MLA, ModelShape, shape_of
from kvsim.cost.speculation import Speculation, SpeculativeTime, rates_for_mean
from kvsim.cost.topology import Shared, Topology, check_possible
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from kvsim.config.resolved import Resolved
    from kvsim.cost.port import StepTime

PS_PER_S = 10**12
#: Captured decode sizes of vLLM (config/compilation.py, 0.24.0): 1, 2, 4, then steps of 8, from 256 on of 16, up to
#: 512.
VLLM_GRAPHS = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
#: SGLang's (0.5.9, model_executor/cuda_graph_runner.py), without speculation.
SGLANG_GRAPHS = (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 497, 16), *range(512, 1025, 32))
#: Largest captured batch by card memory below MiB: (tp < 4, tp >= 4) (0.5.9, server_args.py).
GRAPH_DEFAULTS = ((20 << 10, 8, 8), (35 << 10, 24, 80), (60 << 10, 32, 160), (160 << 10, 256, 512))
#: Tokens kept per step with MTP 3 where a scenario gives no acceptance: (1 + 3 x 0.35), the public Kimi-K2.6 runs.
ASSUMED_ACCEPTANCE = 0.35


def analytic_time(resolved: Resolved) -> StepTime:
    """Return the analytic model of a scenario, with speculation if the engine speculates."""
    time = AnalyticTime(analytic_inputs_of(resolved))
    speculation = speculation_of(resolved)
    return time if speculation is None else SpeculativeTime(time, speculation)


def analytic_inputs_of(resolved: Resolved) -> AnalyticInputs:
    """Return the numbers of the analytic model for a scenario, its ``costs.constants`` applied. Raises ConfigError,
    UnknownName."""
    costs, card = resolved.scenario.costs, resolved.hardware.card
    shape, engine = model_shape(resolved), engine_shape(resolved)
    peak = Card(card.name, card.flops.bf16, card.mem_bw, card.l2_bytes)
    inputs = analytic_inputs(peak, shape, engine, key=card.kernels, generation=card.architecture)
    return with_overrides(inputs, dict(getattr(costs, "constants", {})))


def model_shape(resolved: Resolved) -> ModelShape:
    """Return the model's dimensions from its config.json."""
    config = getattr(resolved.model, "config", resolved.model)
    if not isinstance(config, Mapping):
        raise ConfigError("model: the step-time model needs the model's config.json; use costs: {kind: constant} without it")
    shape = shape_of(config)
    full = getattr(resolved.model, "kv_layers", 0)
    return replace(shape, full_attention_layers=full) if full else shape


def engine_shape(resolved: Resolved) -> EngineShape:
    """Return what of the engine costs time."""
    engine, costs = resolved.scenario.engine, resolved.scenario.costs
    vllm = resolved.family == "vllm"
    extra = getattr(resolved.capacity, "extra", {})
    tp = extra.get("tp") or max(1, resolved.capacity.ranks // getattr(engine, "pipeline_parallel_size", 1))
    dp = extra.get("dp", 1)
    if vllm:  # its data-parallel engines have tp GPUs each; experts, and only they, are spread over all of them
        dp = dp if model_shape(resolved).experts else 1
        tp *= dp
    expert = getattr(engine, "ep_size", None) or (tp if getattr(engine, "enable_expert_parallel", False) else 1)
    return EngineShape(
        tp=tp,
        ep=expert,
        family=resolved.family,
        backend=attention_backend(resolved)[0],
        kernels=getattr(costs, "decode_kernels", "0.5.14"),
        kv_element_bytes=_kv_bytes(engine.kv_cache_dtype),
        allreduce=getattr(costs, "allreduce", None) or resolved.hardware.allreduce,
        graph_sizes=vllm_graphs(resolved) if vllm else sglang_graphs(resolved, tp),
        routing_dispersion=getattr(costs, "routing_dispersion", 1.0),
        dp=dp,
    )


def _kv_bytes(dtype: str) -> float:
    """Return bytes per KV element; four-bit types have a scale of one byte per 16 elements."""
    return 1.0 if "fp8" in dtype else 0.5625 if "fp4" in dtype else 2.0


def attention_backend(resolved: Resolved) -> tuple[str, str]:
    """Return the attention kernels' name and a note where a default or a stand-in was taken (else "")."""
    if resolved.family == "vllm":
        return "flash_attn", ""
    given = resolved.scenario.engine.attention_backend
    if given in {"flashinfer", "triton", "fa3"}:
        return given, ""
    default = "fa3" if resolved.hardware.card.architecture == "hopper" else "flashinfer"
    if given is None:
        return (
            default,
            f"attention backend: {default} (not given; with triton, SGLang's own choice for MLA on SM120, long prefixes cost 5x as much)",
        )
    return default, f"attention backend {given} has no coefficients: those of {default} stand in"


def sglang_graphs(resolved: Resolved, tp: int) -> tuple[int, ...]:
    """Return the captured decode batches under SGLang's flags, empty if graphs are off."""
    engine = resolved.scenario.engine
    if engine.disable_cuda_graph:
        return ()
    if engine.cuda_graph_bs:
        return tuple(sorted(engine.cuda_graph_bs))
    limit = engine.cuda_graph_max_bs or _graph_default(resolved.hardware.card.memory_mib, tp)
    if engine.disable_cuda_graph_padding:
        return tuple(range(1, limit + 1))
    return tuple(size for size in SGLANG_GRAPHS if size <= limit)


def _graph_default(memory_mib: int, tp: int) -> int:
    for below, small, large in GRAPH_DEFAULTS:
        if memory_mib < below:
            return small if tp < 4 else large
    return 512


def vllm_graphs(resolved: Resolved) -> tuple[int, ...]:
    """Return the captured decode batches under vLLM's flags, empty if eager."""
    engine = resolved.scenario.engine
    if engine.enforce_eager:
        return ()
    limit = min(512, 2 * (engine.max_num_seqs or 256))
    return tuple(size for size in VLLM_GRAPHS if size <= limit)


def chunk_of(resolved: Resolved) -> int | None:
    """Return the engine's prefill chunk in tokens, None if prompts are not cut."""
    engine = resolved.engine
    if resolved.family == "vllm":
        return int(engine.max_num_batched_tokens) if engine.enable_chunked_prefill else None
    return None if engine.chunked_prefill_size is None else int(engine.chunked_prefill_size)


# ---------------------------------------------------------------------- speculation
def speculation_of(resolved: Resolved) -> Speculation | None:
    """Return speculative decoding as the engine's flags and the ``speculation`` block set it up, None if off. Raises
    ConfigError."""
    engine, block = resolved.scenario.engine, resolved.scenario.speculation
    if getattr(engine, "speculative_algorithm", None) is None:
        if block is not None:
            raise ConfigError(
                "speculation: the engine does not speculate; set engine.speculative_algorithm (EAGLE, NEXTN, ...) or drop the block"
            )
        return None
    steps = engine.speculative_num_steps or 3
    topk = engine.speculative_eagle_topk or 1
    drafted = engine.speculative_num_draft_tokens or steps + 1
    overlap = "0.5.23" in str(engine.rules) and topk == 1
    rates = _rates(block, steps)
    return Speculation(
        steps,
        topk,
        drafted,
        rates,
        block.draft_layers if block else 1,
        block.off_above if block else None,
        overlap,
        resolved.scenario.run.seed,
    )


def _rates(block: Any, steps: int) -> tuple[float, ...]:
    if block is None or (block.accept_length is None and block.accept_rates is None):
        return rates_for_mean(1 + steps * ASSUMED_ACCEPTANCE, steps)
    if block.accept_length is not None and block.accept_rates is not None:
        raise ConfigError("speculation: give accept_length or accept_rates, not both")
    return rates_for_mean(block.accept_length, steps) if block.accept_length is not None else tuple(block.accept_rates)


# ---------------------------------------------------------------------- links
def topology_links(resolved: Resolved) -> Links:
    """Return the engine's copies over its machine's links. Raises ConfigError where a rate is physically impossible."""
    links, hardware = resolved.scenario.links, resolved.hardware
    layout = copy_layout(resolved)
    name = copy_mode(resolved)
    caps = _mode_caps(resolved, name, layout)
    pcie, duplex = hardware.card.pcie, links.duplex if links.duplex is not None else hardware.card.pcie.duplex
    for what, rate in (
        ("links.h2d", links.h2d),
        ("links.d2h", links.d2h),
        ("pcie.h2d", pcie.h2d),
        ("pcie.d2h", pcie.d2h),
    ):
        if rate is not None:
            check_possible(what, rate, pcie.generation, pcie.lanes)
    ranks = resolved.capacity.ranks
    if resolved.family == "vllm":  # its data-parallel engines have ``ranks`` GPUs each, and all of them copy over the same machine
        ranks *= resolved.capacity.extra.get("dp", 1)
    shared = shared_limits(hardware, ranks, links.topology or hardware.topology, one_copy=_one_host_copy(resolved))
    topology = Topology(ranks, pcie.h2d, pcie.d2h, (duplex, duplex), shared, caps)
    return Links(topology, _mode(resolved, name, layout))


def copy_mode(resolved: Resolved) -> str:
    """Return the copy mode: the scenario's, else the engine's I/O backend, else the hardware profile's."""
    links, engine = resolved.scenario.links, resolved.scenario.engine
    if links.mode is not None:
        return str(links.mode)
    if resolved.family == "vllm":
        return "page_contig"  # vLLM's CPU blocks hold all layers of a block in one piece
    return "direct" if engine.hicache.io_backend == "direct" else str(resolved.hardware.transfer.mode)


def copy_layout(resolved: Resolved) -> Layout:
    """Return how one GPU's KV lies in memory: page, layers, bytes of a row; K and V apart unless latents are stored."""
    shape = model_shape(resolved)
    page = getattr(resolved.engine, "page_size", None) or resolved.engine.block_size
    parts = 1 if shape.kind == MLA else 2
    return Layout(int(page), shape.layers, resolved.capacity.kv_bytes_per_token / shape.layers / parts, parts)


def _mode_caps(resolved: Resolved, name: str, layout: Layout) -> tuple[float, float]:
    links, transfer = resolved.scenario.links, resolved.hardware.transfer
    costs = CopyCosts(transfer.kernel_h2d, transfer.kernel_d2h, transfer.kernel_d2h_page_first)
    engine = resolved.scenario.engine
    page_first = resolved.family == "sglang" and "page_first" in (engine.hicache.mem_layout or "")
    h2d, d2h = mode_rates(name, layout, costs, page_first=page_first)
    return links.h2d or h2d, links.d2h or d2h


def _mode(resolved: Resolved, name: str, layout: Layout) -> CopyMode:
    links, per_token = resolved.scenario.links, resolved.capacity.kv_bytes_per_token
    stored = -(-per_token // resolved.capacity.ranks) if _one_host_copy(resolved) else per_token
    interference = links.interference if links.interference is not None else resolved.hardware.transfer.interference
    command_ps = layout.commands_per_token("direct") * CopyCosts().command_s * PS_PER_S
    return CopyMode(
        bytes_per_token=(per_token, stored),
        setup_ps=round(links.latency * PS_PER_S),
        floor_ps=round(links.layer_latency * layout.layers * PS_PER_S) if name == "kernel" else 0,
        layerwise=links.layerwise_overlap and name != "page_contig",
        cpu_ps_per_token=round(command_ps) if name == "direct" else 0,
        interference=interference if name == "kernel" else 0.0,
        name=name,
    )


def _one_host_copy(resolved: Resolved) -> bool:
    """Tell whether all ranks share one host copy of a replicated latent: each then stores its share and reads all."""
    hicache = getattr(resolved.scenario.engine, "hicache", None)
    return getattr(hicache, "host_copies", "per_rank") == "shared" and resolved.capacity.ranks > 1 and model_shape(resolved).kind == MLA


def shared_limits(hardware: Any, ranks: int, topology: str, *, one_copy: bool = False) -> tuple[Shared, ...]:
    """Return the limits that several GPUs of an engine share: x16 uplinks, the root, host memory by socket (or all,
    one copy)."""
    per_uplink = {"direct": 1, "uplink2": 2, "uplink4": 4}[topology]
    limits = []
    if per_uplink > 1:
        limits += [
            Shared(f"uplink{i}", tuple(range(at, min(at + per_uplink, ranks))), hardware.uplink_bw)
            for i, at in enumerate(range(0, ranks, per_uplink))
        ]
    if hardware.root_bw is not None:
        limits.append(Shared("root", tuple(range(ranks)), hardware.root_bw))
    if hardware.dram_bw_per_socket is not None:
        limits += _host_memory(ranks, hardware.gpus, hardware.sockets, hardware.dram_bw_per_socket, one_copy)
    return tuple(limits)


def _host_memory(ranks: int, gpus: int, sockets: int, bw: float, one_copy: bool) -> list[Shared]:
    if one_copy or sockets == 1:
        return [Shared("host memory", tuple(range(ranks)), bw * sockets, both_ways=True)]
    per_socket = -(-gpus // sockets)
    cuts = [tuple(range(at, min(at + per_socket, ranks))) for at in range(0, ranks, per_socket)]
    return [Shared(f"host memory {i}", members, bw, both_ways=True) for i, members in enumerate(cuts)]


# ---------------------------------------------------------------------- what must be said
def cost_notes(resolved: Resolved) -> list[str]:
    """Return what a reader must know about the time model under this scenario: stand-ins, assumptions, what is not
    modelled."""
    costs, links, notes = resolved.scenario.costs, resolved.scenario.links, []
    if costs.kind == "analytic":
        notes += [note for note in (attention_backend(resolved)[1],) if note]
        notes += analytic_inputs_of(resolved).notes
    block = resolved.scenario.speculation
    if speculation_of(resolved) is not None and (block is None or (block.accept_length is None and block.accept_rates is None)):
        notes.append(f"speculation: {ASSUMED_ACCEPTANCE:.0%} of drafted tokens accepted (assumption: public Kimi-K2.6 runs with MTP 3)")
    if speculation_of(resolved) is not None:
        notes.append("speculation: decode steps are simulated one by one while drafts are on")
    overlap = "layer by layer" if links.layerwise_overlap else "load, then compute"
    mode = "constant rate" if links.kind == "constant" else f"{copy_mode(resolved)} copies"
    notes.append(f"loads: {mode}, {overlap}")
    return notes


def with_cost_notes(resolved: Resolved) -> Resolved:
    """Return the scenario with the time model's notes among its assumptions, so that every surface prints them."""
    known = resolved.capacity.assumptions
    named = any(text.startswith("attention backend") for text in known)
    notes = [note for note in cost_notes(resolved) if not (named and note.startswith("attention backend"))]
    fresh = tuple(note for note in notes if note not in known)
    return replace(resolved, capacity=replace(resolved.capacity, assumptions=(*known, *fresh)))


def break_even_rate(kv_bytes_per_token: int, prefill_tokens_per_s: float) -> float:
    """Return the host-to-device B/s at which loading a token takes as long as computing it: bytes per token x prefill
    rate."""
    return kv_bytes_per_token * prefill_tokens_per_s
