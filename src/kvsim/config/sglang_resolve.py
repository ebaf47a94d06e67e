"""Resolves an SGLang engine block: capacities as the engine derives them, and the scheduler's parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim import rules
from kvsim.config import sglang_memory as memory
from kvsim.config.resolved import Capacity, Line
from kvsim.config.weights import weight_parts, weights_on_gpu
from kvsim.errors import ConfigError
from kvsim.rules.sglang import SglangParams, SglangRules
from kvsim.units import gb, gib

if TYPE_CHECKING:
    from kvsim.config.hardware import HardwareProfile
    from kvsim.config.model import ModelProfile
    from kvsim.config.schema import Scenario
    from kvsim.config.schema.engine import SglangEngine

#: What the CUDA context and communication buffers take of a card before weights are loaded: an assumption where T is not given.
CONTEXT_BYTES = int(1.6 * memory.GIB)


def resolve_sglang(scenario: Scenario, hardware: HardwareProfile, model: ModelProfile) -> tuple[SglangParams, Capacity, list[str]]:
    """Return the scheduler's parameters, the capacity with its arithmetic, and warnings."""
    return _SglangResolver(scenario, hardware, model).result()


class _SglangResolver:
    """Derives one number after another, keeping a line of text for each."""

    def __init__(self, scenario: Scenario, hardware: HardwareProfile, model: ModelProfile) -> None:
        self.engine: SglangEngine = scenario.engine  # type: ignore[assignment]
        self.scenario, self.hardware, self.model = scenario, hardware, model
        self.lines: list[Line] = []
        self.infeasible: list[str] = []
        self.assumptions: list[str] = list(hardware.assumptions)
        self.warnings: list[str] = []
        self.extra: dict[str, Any] = {}
        self.rules = _rules_of(self.engine)
        self.newer = self.rules.reserve_extra_page
        self.tp = self.engine.tp or hardware.gpus
        self.dp = self.engine.dp_size if self.engine.enable_dp_attention else 1
        if self.tp % self.dp:
            raise ConfigError(f"engine.dp_size: {self.dp} does not divide tp {self.tp}")
        self.attention_tp = self.tp // self.dp
        if self.tp * self.engine.pp > hardware.gpus:
            self.infeasible.append(
                f"tp {self.tp} x pp {self.engine.pp} needs {self.tp * self.engine.pp} GPUs, the machine has {hardware.gpus}"
            )

    def line(self, what: str, value: float | str | None, unit: str, formula: str, source: str = "derived") -> None:
        """Keep one line of arithmetic."""
        self.lines.append(Line(what, value, unit, formula, source))

    def result(self) -> tuple[SglangParams, Capacity, list[str]]:
        """Derive everything."""
        engine, card = self.engine, self.hardware.card
        self.page = engine.page_size or 1
        chunk = self._chunk()
        graph_max = engine.cuda_graph_max_bs or (
            max(engine.cuda_graph_bs) if engine.cuda_graph_bs else memory.default_graph_max(card.memory_mib, self.tp)
        )
        sizes = (
            tuple(sorted(engine.cuda_graph_bs))
            if engine.cuda_graph_bs
            else memory.graph_sizes(graph_max, bool(engine.speculative_algorithm))
        )
        cell = self._cell()
        given = engine.device_tokens is not None
        free_before, weights = (0, 0) if given else self._before_and_weights()
        fraction = None if given else self._fraction(chunk, graph_max)
        tokens = self._device_tokens(free_before, weights, fraction, cell)
        context = engine.context_length or self.model.context_length
        limits = memory.request_limits(max(tokens, 2), context, self._running_flag(), self.dp, self.newer)
        if not given and engine.speculative_algorithm and engine.speculative_algorithm not in DRAFTLESS:
            self._draft(tokens, cell, free_before, weights)
        host = self._host(tokens, cell)
        self._assume()
        longest = limits.longest_prompt if engine.length_limits else tokens
        params = SglangParams(
            rules=self.rules,
            page_size=self.page,
            device_tokens=max(tokens, self.page),
            host_tokens=host,
            write_policy=engine.hicache.write_policy,
            eviction=engine.radix_eviction_policy,
            load_back_threshold=engine.hicache.load_back_threshold,
            radix_cache=not engine.disable_radix_cache,
            schedule_policy=engine.schedule_policy,
            schedule_conservativeness=engine.schedule_conservativeness * (0.3 if self.dp > 1 else 1.0),
            chunked_prefill_size=chunk,
            max_prefill_tokens=engine.max_prefill_tokens,
            max_running_requests=limits.running,
            mixed_chunk=engine.enable_mixed_chunk,
            overlap=self._overlap(),
            clip_max_new_tokens=engine.clip_max_new_tokens,
            retract_decode_steps=engine.retract_decode_steps,
            init_new_token_ratio=engine.init_new_token_ratio,
            min_new_token_ratio_factor=engine.min_new_token_ratio_factor,
            new_token_ratio_decay_steps=engine.new_token_ratio_decay_steps,
            max_input_tokens=limits.refuse_from if engine.length_limits else None,
            max_total_len=limits.max_len if engine.length_limits else None,
            lpm_fallback_length=None if engine.lpm_fallback_length == "off" else engine.lpm_fallback_length,
            priority_scheduling=engine.enable_priority_scheduling,
            low_priority_values_first=engine.schedule_low_priority_values_first,
            priority_preemption_threshold=engine.priority_scheduling_preemption_threshold,
            max_queued_requests=engine.max_queued_requests,
            seed=self.scenario.run.seed,
        )
        copies = 1 if engine.hicache.host_copies == "shared" else self.tp
        self.extra.update(
            attention_tp=self.attention_tp,
            dp=self.dp,
            tp=self.tp,
            context_length=context,
            mem_fraction_static=fraction,
            chunked_prefill_size=chunk,
            cuda_graph_max_bs=graph_max,
            cuda_graph_sizes=list(sizes),
            request_rows=limits.rows,
            kv_dtype=engine.kv_cache_dtype,
            attention_backend=engine.attention_backend or "flashinfer",
        )
        capacity = Capacity(
            device_tokens=tokens,
            host_tokens=host,
            page_size=self.page,
            kv_bytes_per_token=cell,
            ranks=self.tp,
            host_copies=copies,
            device_pool_bytes=tokens * cell,
            host_bytes_per_rank=host * cell,
            host_bytes_total=host * cell * copies,
            longest_prompt=longest,
            max_running_requests=limits.running,
            weight_bytes=weights,
            card_bytes=card.memory_bytes,
            free_before_bytes=free_before,
            lines=tuple(self.lines),
            infeasible=tuple(self.infeasible),
            assumptions=tuple(dict.fromkeys(self.assumptions)),
            extra=self.extra,
        )
        return params, capacity, self.warnings

    def _chunk(self) -> int | None:
        engine = self.engine
        chunk = engine.chunked_prefill_size
        if chunk is None:
            chunk = memory.default_chunk(self.hardware.card.memory_mib) // self.dp
        return None if chunk <= 0 else chunk

    def _running_flag(self) -> int | None:
        if self.engine.max_running_requests is not None:
            return self.engine.max_running_requests
        return 48 if self.engine.speculative_algorithm else None

    def _overlap(self) -> bool:
        """Whether the overlap loop runs: off with the flag, pipeline stages, and speculation without its second version."""
        return not (self.engine.disable_overlap_schedule or self.engine.pp > 1 or (self.engine.speculative_algorithm and not self.newer))

    def _cell(self) -> int:
        engine = self.engine
        if engine.kv_bytes_per_token is not None:
            self.line("KV bytes per token and rank", engine.kv_bytes_per_token, "B", "given", "given")
            return engine.kv_bytes_per_token
        line = self.model.kv_line(self.attention_tp, engine.kv_cache_dtype)
        cell = int(line.value or 0)
        self.lines.append(line)
        if self.newer and engine.speculative_algorithm and engine.speculative_algorithm not in DRAFTLESS:
            cell += -(-cell * _draft_layers(self.model) // self.model.layers)
            self.line("... with the draft model's layers", cell, "B", f"+ {_draft_layers(self.model)} draft layer(s) (0.5.23)")
        return cell

    def _draft(self, tokens: int, cell: int, free_before: int, weights: int) -> None:
        """Account for the draft model: as many slots as the target's pool, its own layers' KV and weights."""
        layers, drafted = self.model.layers, _draft_layers(self.model)
        kv = 0 if self.newer else -(-tokens * cell * drafted // layers)
        if not self.newer:
            what = f"{tokens:,} slots x {cell:,} B x {drafted}/{layers} layers; from what is left over ({self.rules.name} does not charge it to the pool)"
            self.line("draft model's KV", kv, "B", what)
        parts = weight_parts(self.model)
        body = sum(part.on_gpu(self.tp * self.engine.pp) for part in parts if not part.name.startswith("embedding"))
        own = round(body * drafted / layers)
        self.line("draft model's weights", own, "B", f"{drafted}/{layers} of the layers' {gib(round(body))}; embedding and head are shared", "assumption")
        self.extra.update(draft_kv_bytes=kv, draft_weight_bytes=own, draft_layers=drafted)
        left = free_before - weights - max(tokens, 0) * cell
        if tokens > 0 and kv + own > left:
            self.infeasible.append(
                f"the draft model needs {gib(kv + own)} and {gib(left)} are left beside weights and pool: a smaller mem_fraction_static leaves more"
            )

    def _before_and_weights(self) -> tuple[int, int]:
        engine, card = self.engine, self.hardware.card
        source = engine.memory_source or "given"
        free = engine.free_before_weights
        if free is None:
            free = card.memory_bytes - CONTEXT_BYTES
            self.line(
                "free before weights (T)",
                free,
                "B",
                f"{gib(card.memory_bytes)} of the card - {gib(CONTEXT_BYTES)} context and communication",
                "assumption",
            )
            if engine.device_tokens is None and engine.max_total_num_tokens is None:
                self.assumptions.append(f"{gib(CONTEXT_BYTES)} per GPU for CUDA context and communication before weights")
        else:
            self.line("free before weights (T)", free, "B", gib(free), source)
        derived = weights_on_gpu(self.model, self.tp * engine.pp)
        self.extra["derived_weight_bytes"] = derived
        self.extra["weight_parts"] = [[p.name, round(p.on_gpu(self.tp * engine.pp)), p.replicated] for p in weight_parts(self.model)]
        if engine.weights_resident is None:
            self.line(
                "weights resident (W)",
                derived,
                "B",
                f"{gib(derived)} from the dimensions and quantisation, replicated parts counted once per GPU",
            )
            return free, derived
        weights = engine.weights_resident
        self.line(
            "weights resident (W)",
            weights,
            "B",
            f"{gib(weights)}; derived from the dimensions: {gib(derived)}, difference {gib(weights - derived)}",
            source,
        )
        return free, weights

    def _fraction(self, chunk: int | None, graph_max: int) -> float:
        engine, card = self.engine, self.hardware.card
        if engine.mem_fraction_static is not None:
            self.line("mem_fraction_static", engine.mem_fraction_static, "", "given", "given")
            return engine.mem_fraction_static
        fraction = memory.auto_mem_fraction(
            card.memory_mib,
            chunk,
            graph_max,
            self.tp,
            engine.pp,
            engine.max_prefill_tokens,
            dp=self.dp,
            speculative=None if self.newer else engine.speculative_algorithm,
        )
        self.line("mem_fraction_static", fraction, "", "chosen as the engine would, from the card's memory, chunk and graph sizes")
        return fraction

    def _device_tokens(self, free: int, weights: int, fraction: float | None, cell: int) -> int:
        engine = self.engine
        if engine.device_tokens is not None:
            tokens = engine.device_tokens - engine.device_tokens % self.page
            self.line("device tokens", tokens, "tokens", "given", "given")
            return tokens
        assert fraction is not None
        derived = memory.kv_tokens(free, weights, fraction, cell, self.page, engine.max_total_tokens)
        rest = memory.weights_rest(free, weights, fraction)
        words = f"({fraction:g} x {gib(free)} - {gib(weights)}) = {gib(rest)} / {cell:,} B, whole pages of {self.page}"
        if engine.max_total_num_tokens is not None:
            printed = engine.max_total_num_tokens
            self.line(
                "device tokens",
                printed,
                "tokens",
                f"printed by the engine; derived {derived:,} ({100 * (derived / printed - 1):+.2f} %)",
                "printed by the engine",
            )
            return printed
        self.line("device tokens", derived, "tokens", words)
        if derived <= 0:
            self._explain_no_pool(free, weights, fraction)
        return derived

    def _explain_no_pool(self, free: int, weights: int, fraction: float) -> None:
        gpus = self.tp * self.engine.pp
        if weights >= free:
            total = weights * gpus
            needed = -(-total // int(free * fraction))
            self.infeasible.append(
                f"weights of {gb(total)} need more than {gpus} x {gb(free)}: at mem_fraction_static {fraction:g} at least {needed} GPUs "
                f"({1 << (needed - 1).bit_length()} if TP must be a power of two), or fewer bytes per weight"
            )
        else:
            self.infeasible.append(
                f"no memory for KV: {fraction:g} x {gib(free)} is not above the weights' {gib(weights)}: raise mem_fraction_static above {weights / free:.3f}"
            )

    def _host(self, tokens: int, cell: int) -> int:
        hicache = self.engine.hicache
        if hicache.host_tokens is not None:
            self.line("host tokens", hicache.host_tokens, "tokens", "given", "given")
            return hicache.host_tokens
        ratio = 0.0 if hicache.ratio is None else hicache.ratio
        if ratio == 0 and not hicache.size:
            self.line("host tokens", 0, "tokens", "HiCache is off")
            return 0
        host = memory.host_tokens(tokens, ratio, hicache.size, cell, self.page)
        words = f"{hicache.size:g} x 1e9 B / {cell:,} B" if hicache.size else f"{ratio:g} x {tokens:,}"
        self.line("host tokens", host, "tokens", f"{words}, whole pages and one more")
        copies = 1 if hicache.host_copies == "shared" else self.tp
        per_rank, total = host * cell, host * cell * copies
        self.line("host pool per rank", per_rank, "B", f"{host:,} x {cell:,} B = {gb(per_rank)}")
        self.line("host pool in total", total, "B", f"{copies} x {gb(per_rank)} = {gb(total)}")
        self._check_host(tokens, host, per_rank, total, copies, ratio)
        return host

    def _check_host(self, tokens: int, host: int, per_rank: int, total: int, copies: int, ratio: float) -> None:
        if host <= tokens and not self.newer:
            self.infeasible.append(
                f"host pool of {host:,} tokens is not larger than the device pool of {tokens:,}: {self.rules.name} refuses to start; a ratio of at least 1 is needed"
            )
        usable = self.hardware.usable_host_bytes
        if usable is None:
            return
        free = usable - memory.HOST_RESERVE_BYTES
        largest = max(free, 0) / copies
        self.extra["largest_ratio"] = largest / (tokens * (per_rank // host)) if tokens > 0 else None
        self.extra["largest_size_gb"] = largest / 1e9
        if total > free:
            later = (
                "the engine checks each rank alone and would start, then run out of RAM" if per_rank <= free else "the engine refuses it"
            )
            best = f"largest size that fits: {self.extra['largest_size_gb']:.1f} GB per rank"
            if not self.engine.hicache.size and tokens > 0:
                best = f"largest ratio that fits: {self.extra['largest_ratio']:.4f}"
            self.infeasible.append(
                f"host pool of {gb(total)} ({copies} x {gb(per_rank)}) does not fit: {gb(usable)} usable less 10 GiB kept free = {gb(free)}; {later}; {best}"
            )

    def _assume(self) -> None:
        engine = self.engine
        if engine.memory_source:
            self.assumptions.append(f"T and W: {engine.memory_source}")
        if self.scenario.costs.kind == "analytic":
            self.assumptions.append(f"attention backend {engine.attention_backend or 'flashinfer'}")
            self.assumptions.append(
                f"decode kernels of SGLang {self.scenario.costs.decode_kernels}, all-reduce {self.scenario.costs.allreduce or self.hardware.allreduce}"
            )


def _rules_of(engine: SglangEngine) -> SglangRules:
    given = engine.rules
    if isinstance(given, dict):
        changes = {key: value for key, value in given.items() if key != "base"}
        base = given.get("base")
        if not isinstance(base, str):
            raise ConfigError("engine.rules: a mapping needs base: the name of a rule set")
        found = rules.get(base, changes)
    else:
        found = rules.get(given)
    if not isinstance(found, SglangRules):
        raise ConfigError(f"engine.rules: {given} is no SGLang rule set")
    return found


#: Speculation without a draft model.
DRAFTLESS = ("NGRAM",)


def _draft_layers(model: ModelProfile) -> int:
    value = model.config.get("num_nextn_predict_layers")
    return value if isinstance(value, int) and value > 0 else 1
