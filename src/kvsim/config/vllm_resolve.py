"""Resolves a vLLM engine block: blocks as the engine derives them, the CPU tier, and the scheduler's parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim import rules
from kvsim.config import vllm_memory as memory
from kvsim.config.resolved import Capacity, Line
from kvsim.config.weights import weights_on_gpu
from kvsim.errors import ConfigError
from kvsim.rules.vllm import OFFLOADING, SIMPLE, VllmParams, VllmRules
from kvsim.units import gb, gib

if TYPE_CHECKING:
    from kvsim.config.hardware import HardwareProfile
    from kvsim.config.model import ModelProfile
    from kvsim.config.schema import Scenario
    from kvsim.config.schema.engine_vllm import VllmEngine

#: Assumptions where an engine's own figures are not given. Together they give the 1.58 GiB that a published
#: 41,408-token pool of Llama-3.1-8B on a 24 GB card leaves unexplained (0.19.0, utilization 0.9, 2,048 batched tokens).
NON_TORCH_BYTES = memory.GIB
ACTIVATION_VALUES = 36  # values of the hidden size per batched token at the peak of a forward pass
GRAPH_BYTES = int(0.6 * memory.GIB)


def resolve_vllm(scenario: Scenario, hardware: HardwareProfile, model: ModelProfile) -> tuple[VllmParams, Capacity, list[str]]:
    """Return the scheduler's parameters, the capacity with its arithmetic, and warnings."""
    return _VllmResolver(scenario, hardware, model).result()


class _VllmResolver:
    """Derives one number after another, keeping a line of text for each."""

    def __init__(self, scenario: Scenario, hardware: HardwareProfile, model: ModelProfile) -> None:
        self.engine: VllmEngine = scenario.engine  # type: ignore[assignment]
        self.hardware, self.model = hardware, model
        self.lines: list[Line] = []
        self.infeasible: list[str] = []
        self.assumptions: list[str] = list(hardware.assumptions)
        self.warnings: list[str] = []
        self.rules = rules_of(self.engine)
        self.dp = self.engine.data_parallel_size
        self.pp = self.engine.pipeline_parallel_size
        self.other = NON_TORCH_BYTES
        self.tp = self._tp()
        self.ranks = self.tp * self.pp
        if self.pp > 1:
            self.warnings.append("pipeline stages: batches in flight deeper than two are not modelled")
        if self.ranks * self.dp > hardware.gpus:
            wanted = f"tp {self.tp} x pp {self.pp} x dp {self.dp}"
            self.infeasible.append(f"{wanted} needs {self.ranks * self.dp} GPUs, the machine has {hardware.gpus}")

    def _tp(self) -> int:
        engine = self.engine
        if engine.tp and engine.tensor_parallel_size and engine.tp != engine.tensor_parallel_size:
            raise ConfigError(f"engine.tp: {engine.tp} contradicts tensor_parallel_size {engine.tensor_parallel_size}")
        return engine.tensor_parallel_size or engine.tp or max(1, self.hardware.gpus // (self.pp * self.dp))

    def line(self, what: str, value: float | str | None, unit: str, formula: str, source: str = "derived") -> None:
        """Keep one line of arithmetic."""
        self.lines.append(Line(what, value, unit, formula, source))

    # ------------------------------------------------------------------ everything in order
    def result(self) -> tuple[VllmParams, Capacity, list[str]]:
        """Derive everything."""
        engine, card = self.engine, self.hardware.card
        self.size, self.backend = memory.default_block_size(engine.attention_backend, self.model.kind == "mla", card.architecture)
        self.size = engine.block_size or self.size
        self.longest = self.model.context_length if engine.max_model_len in (None, "auto") else int(engine.max_model_len or 0)
        batched, seqs = self._batch()
        self.layers = -(-(self.model.kv_layers + self.model.window_layers) // self.pp)
        self.block_bytes = self._block_bytes()
        weights = self._weights()
        kv_bytes = self._kv_bytes(weights, batched)
        blocks = self._blocks(kv_bytes)
        self._check_length(blocks)
        connector, cpu_blocks, factor = self._cpu_tier(blocks, kv_bytes)
        params = self._params(blocks, batched, seqs, connector, cpu_blocks, factor)
        return params, self._capacity(params, weights, connector), self.warnings

    def _batch(self) -> tuple[int, int]:
        """Return (max_num_batched_tokens, max_num_seqs) (engine/arg_utils.py get_batch_defaults)."""
        engine, card = self.engine, self.hardware.card
        tokens, seqs = memory.batch_defaults(card.memory_bytes, card.name)
        if engine.performance_mode == "throughput":
            tokens, seqs = 2 * tokens, 2 * seqs
        if not engine.enable_chunked_prefill:
            tokens = max(tokens, self.longest)
        seqs = engine.max_num_seqs or seqs
        tokens = engine.max_num_batched_tokens or min(tokens, seqs * self.longest)
        if engine.max_num_seqs is None:
            seqs = min(seqs, tokens)
        if tokens < seqs:
            raise ConfigError(f"engine.max_num_batched_tokens: {tokens} is below max_num_seqs {seqs}; the engine refuses to start")
        if not engine.enable_chunked_prefill and tokens < self.longest:
            raise ConfigError(
                f"engine.max_num_batched_tokens: without chunked prefill {tokens} must be at least max_model_len {self.longest}"
            )
        default = f"default of the API server on {card.name}"
        self.line("max_num_batched_tokens", tokens, "tokens", "given" if engine.max_num_batched_tokens else default)
        self.line("max_num_seqs", seqs, "requests", "given" if engine.max_num_seqs else default)
        return tokens, seqs

    def _block_bytes(self) -> int:
        """Return the bytes of one block on one GPU, all its layers."""
        engine, model = self.engine, self.model
        if engine.kv_bytes_per_token is not None:
            self.line("bytes of a block", engine.kv_bytes_per_token * self.size, "B", "given per token", "given")
            return engine.kv_bytes_per_token * self.size
        if model.window_layers:
            self.warnings.append(f"{model.window_layers} sliding-window layers are counted as full ones: hybrid KV groups are not modelled")
        shape = memory.KvShape(model.kv_heads, model.head_dim, model.v_head_dim, model.kv_lora_rank, model.rope_dim)
        dtype = "bfloat16" if engine.kv_cache_dtype == "auto" else engine.kv_cache_dtype
        page = memory.page_bytes(shape, self.size, self.tp, dtype)
        same = "the same on every rank" if shape.mla else f"{max(1, model.kv_heads // self.tp)} KV heads of this rank"
        words = f"{self.layers} layers x {page:,} B ({self.size} tokens, {dtype}, {same})"
        self.line("bytes of a block", page * self.layers, "B", words)
        return page * self.layers

    def _weights(self) -> int:
        given = self.engine.weights_resident
        if given is not None:
            self.line("weights resident", given, "B", gib(given), self.engine.memory_source or "given")
            return given
        weights = weights_on_gpu(self.model, self.ranks)
        self.line("weights resident", weights, "B", f"{gib(weights)} from the dimensions and quantisation")
        return weights

    def _kv_bytes(self, weights: int, batched: int) -> int:
        """Return the line "Available KV cache memory" in bytes (determine_available_memory)."""
        engine, card = self.engine, self.hardware.card
        given = engine.available_kv_cache_memory or engine.kv_cache_memory_bytes
        if given is not None:
            printed = engine.available_kv_cache_memory is not None
            self.line("available KV cache memory", given, "B", gib(given), "printed by the engine" if printed else "given")
            return given
        share = engine.gpu_memory_utilization or self.rules.gpu_memory_utilization
        requested = memory.requested_bytes(card.memory_bytes, share)
        self.other = other = self._non_kv(batched)
        graphs = self._graphs()
        kv_bytes = requested - weights - other - graphs
        words = f"{share:g} x {gib(card.memory_bytes)} of the card - {gib(weights)} - {gib(other)} - {gib(graphs)} = {gib(kv_bytes)}"
        self.line("available KV cache memory", kv_bytes, "B", words)
        if kv_bytes <= 0 and not engine.num_gpu_blocks_override and not engine.gpu_kv_cache_tokens:
            needed = (requested - kv_bytes) / card.memory_bytes
            raise_to = f"raise gpu_memory_utilization above {needed:.3f}" if needed < 1 else "use more GPUs"
            self.infeasible.append(f"no available memory for the cache blocks: {words}; {raise_to}")
        return kv_bytes

    def _non_kv(self, batched: int) -> int:
        given = self.engine.non_kv_memory
        if given is not None:
            self.line("activations and non-torch memory", given, "B", gib(given), self.engine.memory_source or "given")
            return given
        activation = ACTIVATION_VALUES * batched * self.model.hidden * 2
        words = f"{gib(NON_TORCH_BYTES)} + {ACTIVATION_VALUES} x {batched:,} tokens x {self.model.hidden:,} x 2 B"
        self.line("activations and non-torch memory", NON_TORCH_BYTES + activation, "B", words, "assumption")
        if self.engine.num_gpu_blocks_override is None and self.engine.gpu_kv_cache_tokens is None:
            self.assumptions.append(f"activations and non-torch memory: {words} (give engine.non_kv_memory)")
        return NON_TORCH_BYTES + activation

    def _graphs(self) -> int:
        engine = self.engine
        if engine.enforce_eager or not self.rules.graph_estimate:
            return 0
        given = engine.cudagraph_memory
        self.line("CUDA graph estimate", given or GRAPH_BYTES, "B", "", "assumption" if given is None else "given")
        return given if given is not None else GRAPH_BYTES

    def _blocks(self, kv_bytes: int) -> int:
        engine = self.engine
        derived = max(kv_bytes, 0) // self.block_bytes
        if engine.num_gpu_blocks_override is not None:
            blocks, words, source = engine.num_gpu_blocks_override, f"override; derived {derived:,}", "given"
        elif engine.gpu_kv_cache_tokens is not None:
            blocks = memory.blocks_of_printed(engine.gpu_kv_cache_tokens, self.longest, self.size)
            words = f"of {engine.gpu_kv_cache_tokens:,} tokens printed; derived {derived:,}"
            source = "printed by the engine"
        else:
            blocks, words, source = derived, f"{gib(kv_bytes)} / {self.block_bytes:,} B", "derived"
        self.line("GPU blocks", blocks, "blocks", words, source)
        if self.engine.max_model_len == "auto" and blocks:
            self.longest = min(self.longest, blocks * self.size)
        if blocks:
            tokens = memory.printed_tokens(blocks, self.longest, self.size)
            self.line("GPU KV cache size", tokens, "tokens", "as the engine prints it, null block included")
            times = memory.printed_concurrency(blocks, self.longest, self.size)
            self.line("maximum concurrency", round(times, 2), "x", f"for {self.longest:,} tokens per request")
        return blocks

    def _check_length(self, blocks: int) -> None:
        needed = -(-self.longest // self.size)
        if blocks and needed > blocks:
            self.infeasible.append(
                f"one request of max_model_len {self.longest:,} needs {needed:,} blocks, there are {blocks:,}: the engine refuses to "
                f"start; largest max_model_len that fits: {blocks * self.size:,}"
            )

    # ------------------------------------------------------------------ the CPU tier
    def _cpu_tier(self, blocks: int, kv_bytes: int) -> tuple[str, int, int]:
        """Return (connector, CPU blocks, GPU blocks per offloaded block)."""
        engine, offload = self.engine, self.engine.offload
        if not engine.kv_offloading_size and offload.cpu_blocks is None:
            self.line("CPU blocks", 0, "blocks", "kv_offloading_size is 0")
            return "", 0, 1
        if not self.rules.connectors:
            raise ConfigError(f"engine.kv_offloading_size: the connectors of {self.rules.name} are not described; use vllm-0.24.0")
        if offload.connector == "simple":
            return self._simple(blocks, kv_bytes)
        factor, rest = divmod(offload.block_size or self.size, self.size)
        if rest or factor < 1:
            raise ConfigError(f"engine.offload.block_size: {offload.block_size} must be a multiple of the block size {self.size}")
        count = offload.cpu_blocks
        if count is None:
            count = memory.offload_blocks(engine.kv_offloading_size, self.block_bytes, 1, self.ranks, factor)
        words = f"{engine.kv_offloading_size:g} GiB in total / ({self.block_bytes:,} B x {self.ranks} ranks x {factor})"
        self.line("CPU blocks", count, "blocks", words if offload.cpu_blocks is None else "given")
        self._check_host(count * factor, count * factor * self.size)
        return OFFLOADING, count, factor

    def _simple(self, blocks: int, kv_bytes: int) -> tuple[str, int, int]:
        engine = self.engine
        if not engine.enable_prefix_caching:
            self.warnings.append("SimpleCPUOffloadConnector switches itself off without prefix caching")
            return "", 0, 1
        kv_bytes = kv_bytes if kv_bytes > 0 else blocks * self.block_bytes
        count = engine.offload.cpu_blocks
        if count is None:
            count = memory.simple_blocks(engine.kv_offloading_size, blocks, kv_bytes, self.ranks)
        words = f"{blocks:,} x {engine.kv_offloading_size:g} GiB / {self.ranks} ranks / {gib(kv_bytes)}, null block included"
        self.line("CPU blocks", count, "blocks", words)
        self._check_host(count, (count - 1) * self.size)
        return SIMPLE, max(count, 1), 1

    def _check_host(self, blocks: int, tokens: int) -> None:
        """The engine pins its CPU pool at start-up without a check; what does not fit is a finding."""
        per_rank = blocks * self.block_bytes
        total = per_rank * self.ranks * self.dp
        self.line("CPU pool per rank", per_rank, "B", f"{tokens:,} tokens, {gb(per_rank)}")
        self.line("CPU pool in total", total, "B", f"{self.ranks * self.dp} x {gb(per_rank)} = {gb(total)}")
        usable = self.hardware.usable_host_bytes
        if usable is not None and total > usable:
            best = usable / memory.GIB / self.dp
            self.infeasible.append(
                f"CPU pool of {gb(total)} does not fit the {gb(usable)} of RAM that can be used: largest kv_offloading_size {best:.1f}"
            )
        if blocks < 1:
            self.infeasible.append(
                f"kv_offloading_size holds no block: one takes {gib(self.block_bytes * self.ranks)} over {self.ranks} ranks"
            )

    # ------------------------------------------------------------------ what comes out
    def _params(self, blocks: int, batched: int, seqs: int, connector: str, cpu_blocks: int, factor: int) -> VllmParams:
        engine = self.engine
        threshold = engine.long_prefill_token_threshold
        if engine.max_num_partial_prefills > 1 and threshold == 0:
            threshold = int(0.04 * self.longest)
        if engine.watermark and not self.rules.watermark:
            raise ConfigError(f"engine.watermark: {self.rules.name} has no such option")
        prompt_only = engine.offload.offload_prompt_only
        return VllmParams(
            rules=self.rules, num_gpu_blocks=max(blocks, 2), max_model_len=self.longest, block_size=self.size,
            max_num_batched_tokens=batched, max_num_seqs=seqs, long_prefill_token_threshold=threshold,
            enable_chunked_prefill=engine.enable_chunked_prefill, policy=engine.scheduling_policy,
            scheduler_reserve_full_isl=engine.scheduler_reserve_full_isl, watermark=engine.watermark,
            enable_prefix_caching=engine.enable_prefix_caching, async_scheduling=engine.async_scheduling,
            connector=connector, cpu_blocks=cpu_blocks, cpu_policy=engine.offload.eviction_policy,
            offload_prompt_only=self.rules.prompt_only if prompt_only is None else prompt_only,
            offload_factor=factor, store_threshold=engine.offload.store_threshold,
            lazy_offload=engine.offload.lazy_offload, server_limits=engine.length_limits,
        )  # fmt: skip

    def _capacity(self, params: VllmParams, weights: int, connector: str) -> Capacity:
        usable = (params.num_gpu_blocks - 1) * self.size
        host = (params.cpu_blocks - (connector == SIMPLE)) * params.offload_factor * self.size if connector else 0
        token = self.block_bytes // self.size
        extra: dict[str, Any] = {
            "tp": self.tp, "attention_tp": self.tp, "pp": self.pp, "dp": self.dp, "num_gpu_blocks": params.num_gpu_blocks,
            "max_model_len": self.longest, "attention_backend": self.backend, "connector": connector,
            "max_num_batched_tokens": params.max_num_batched_tokens, "cpu_blocks": params.cpu_blocks,
            "cuda_graph_max_bs": None if self.engine.enforce_eager else min(512, 2 * params.max_num_seqs),
        }  # fmt: skip
        return Capacity(
            device_tokens=usable, host_tokens=host, page_size=self.size, kv_bytes_per_token=token, ranks=self.ranks,
            host_copies=self.ranks, device_pool_bytes=params.num_gpu_blocks * self.block_bytes,
            host_bytes_per_rank=host * token, host_bytes_total=host * token * self.ranks * self.dp,
            longest_prompt=self.longest - 1, max_running_requests=params.max_num_seqs, weight_bytes=weights,
            card_bytes=self.hardware.card.memory_bytes, free_before_bytes=self.hardware.card.memory_bytes - self.other, lines=tuple(self.lines),
            infeasible=tuple(self.infeasible), assumptions=tuple(dict.fromkeys(self.assumptions)), extra=extra,
        )  # fmt: skip


def rules_of(engine: VllmEngine) -> VllmRules:
    """Return the rule set an engine block names. Raises UnknownName, ConfigError."""
    given = engine.rules
    if isinstance(given, dict):
        base = given.get("base")
        if not isinstance(base, str):
            raise ConfigError("engine.rules: a mapping needs base: the name of a rule set")
        found = rules.get(base, {key: value for key, value in given.items() if key != "base"})
    else:
        found = rules.get(given)
    if not isinstance(found, VllmRules):
        raise ConfigError(f"engine.rules: {given} is no vLLM rule set")
    return found
