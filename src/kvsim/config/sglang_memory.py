"""SGLang's memory arithmetic: numbers in, numbers out. Files are inside the ``sglang`` package (sglang_scheduler.md 1, 6)."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
MIB = 2**20
HOST_RESERVE_BYTES = 10 * GIB  # srt/mem_cache/memory_pool_host.py: kept free once per host


def kv_tokens(free_before: int, weights: int, fraction: float, cell: int, page: int, cap: int | None = None) -> int:
    """Return max_total_num_tokens: int((fraction x T - W)) // cell, capped, floored to pages (profile_max_num_token)."""
    rest_gib = weights_rest(free_before, weights, fraction) / GIB
    tokens = int(rest_gib * GIB) // cell if rest_gib > 0 else 0
    if cap is not None:
        tokens = min(tokens, cap)
    return tokens - tokens % page


def weights_rest(free_before: int, weights: int, fraction: float) -> float:
    """Return bytes left for KV: F - T (1 - fraction), F = T - W."""
    return free_before - weights - free_before * (1 - fraction)


def host_tokens(device_tokens: int, ratio: float, size_gb: float, cell: int, page: int) -> int:
    """Return usable host tokens: from ``size_gb`` (1e9 bytes per rank) or the ratio, always one page more (HostKVCache.__init__)."""
    tokens = int(size_gb * 1e9 // cell) if size_gb > 0 else int(device_tokens * ratio)
    return (tokens // page + 1) * page


def auto_ratio_0523(budget_per_rank: float, device_bytes: int, default: float = 2.0) -> float:
    """Return the ratio 0.5.23 chooses when neither ratio nor size is given (hicache_auto_size.py)."""
    return min(default, int(0.8 * budget_per_rank) * 0.95 / device_bytes) if device_bytes else default


def default_chunk(memory_mib: int) -> int:
    """Return chunked_prefill_size by GPU memory (server_args.py: _handle_gpu_memory_settings)."""
    if memory_mib < 35 * 1024:
        return 2048
    if memory_mib < 60 * 1024:
        return 4096
    return 8192 if memory_mib < 160 * 1024 else 16384


def default_graph_max(memory_mib: int, tp: int) -> int:
    """Return cuda_graph_max_bs by GPU memory and TP."""
    for limit, small, large in ((20, 8, 8), (35, 24, 80), (60, 32, 160), (90, 256, 512), (160, 256, 512)):
        if memory_mib < limit * 1024:
            return small if tp < 4 else large
    return 512


def auto_mem_fraction(
    memory_mib: int, chunk: int | None, graph_max: int, tp: int, pp: int, max_prefill: int, *, dp: int = 1, speculative: str | None = None
) -> float:
    """Return mem_fraction_static as 0.5.9 chooses it, to three digits (units MiB)."""
    reserved = 512 + 1.5 * (max(chunk, 2048) if chunk else max_prefill) + 2 * graph_max + tp * pp / 8 * 1024
    if dp > 1:
        reserved += graph_max * dp * 3 + (graph_max * dp * 1.5 if graph_max > 300 else 0)
    if memory_mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    if speculative:
        reserved += 6 * 1024 if speculative == "STANDALONE" else 2 * 1024
    return round((memory_mib - reserved) / memory_mib, 3)


def vision_factor(layers: int, hidden: int) -> float:
    """Return the factor multimodal models multiply the automatic fraction by."""
    share = layers * hidden**2 / (24 * 1024**2)
    return 0.95 * min(max(1 - 0.1 * (share - 1), 0.8), 1.05)


def graph_sizes(maximum: int, speculative: bool = False) -> tuple[int, ...]:
    """Return the captured decode batch sizes up to ``maximum`` (_generate_cuda_graph_batch_sizes)."""
    if speculative:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, maximum + 1, 16)]
    else:
        sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 497, 16), *range(512, maximum + 1, 32)]
    return tuple(size for size in sizes if size <= maximum)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """``rows`` of the request table, ``running`` requests at once, lengths: ``max_len`` of a request, prompts of ``refuse_from`` are refused."""

    rows: int
    running: int
    max_len: int
    refuse_from: int

    @property
    def longest_prompt(self) -> int:
        """The longest accepted prompt."""
        return self.refuse_from - 1


def request_limits(tokens: int, context: int, flag: int | None, dp: int, newer: bool) -> RequestLimits:
    """Return the limits of a pool (init_memory_pool, tp_worker.py; 0.5.23: resolve_max_num_reqs)."""
    auto = min(max(int(tokens / context * 512), 2048), 4096)
    if newer:
        running = rows = min(max(flag // dp, 1) if flag else auto, tokens // 2)
    else:
        rows = flag or auto
        running = min(flag // dp if flag else tokens // 2, rows)
    max_len = min(context - 1, tokens - 1)
    return RequestLimits(rows, max(running, 1), max_len, max_len - 5)
