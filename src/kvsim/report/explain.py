"""Where the memory went, in words and numbers: a page that fits 100 columns, and the same as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.units import gb, gib

if TYPE_CHECKING:
    from kvsim.config.resolved import Capacity, Resolved

WIDTH = 72


def explain_data(resolved: Resolved) -> dict[str, Any]:
    """Return every number of the page as plain data."""
    capacity = resolved.capacity
    names = (
        "device_tokens",
        "host_tokens",
        "page_size",
        "kv_bytes_per_token",
        "ranks",
        "host_copies",
        "device_pool_bytes",
        "host_bytes_per_rank",
        "host_bytes_total",
        "longest_prompt",
        "max_running_requests",
        "weight_bytes",
        "card_bytes",
        "free_before_bytes",
    )
    return {
        "hardware": resolved.hardware.name,
        "model": resolved.model.name,
        "rules": _rules_name(resolved),
        **{name: getattr(capacity, name) for name in names},
        "reach_tokens": max(capacity.device_tokens, capacity.host_tokens),
        "bar": dict(memory_bar(capacity)),
        "lines": [
            {"what": line.what, "value": line.value, "unit": line.unit, "formula": line.formula, "source": line.source}
            for line in capacity.lines
        ],
        "infeasible": list(capacity.infeasible),
        "assumptions": list(capacity.assumptions),
        "warnings": list(resolved.warnings),
        "break_even": break_even(resolved),
        "fits_at_once": fits_at_once(resolved),
        **capacity.extra,
    }


def _rules_name(resolved: Resolved) -> str:
    return str(getattr(resolved.engine.rules, "name", resolved.engine.rules))


def memory_bar(capacity: Capacity) -> list[tuple[str, int]]:
    """Return the parts of one GPU's memory in bytes: context, weights, KV pool, and what is left for graphs and
    activations.
    """
    if not capacity.free_before_bytes:
        return [("KV pool", capacity.device_pool_bytes)]
    context = max(capacity.card_bytes - capacity.free_before_bytes, 0)
    rest = capacity.card_bytes - context - capacity.weight_bytes - capacity.device_pool_bytes
    return [
        ("context and communication", context),
        ("weights", capacity.weight_bytes),
        ("KV pool", max(capacity.device_pool_bytes, 0)),
        ("graphs, activations, tables", max(rest, 0)),
    ]


def explain_text(resolved: Resolved, width: int = 100) -> str:
    """Return the page, at most ``width`` (80 or more) columns wide."""
    capacity = resolved.capacity
    lines = [
        f"{resolved.model.name} on {resolved.hardware.name}, {_rules_name(resolved)}, "
        f"tp {capacity.extra.get('tp', capacity.ranks)}",
        "",
    ]
    lines += _bar(capacity)
    lines += ["", "the arithmetic, per rank"]
    for line in capacity.lines:
        how = line.formula + ("" if line.source in ("derived", "given") else f" [{line.source}]")
        lines += _arithmetic(f"  {line.what:<28} {_shown(line.value, line.unit):>20}   ", how, width)
    for title, texts in (
        ("what it means", _answers(resolved)),
        ("DOES NOT WORK", capacity.infeasible),
        ("assumptions", capacity.assumptions),
        ("notes", resolved.warnings),
    ):
        if texts:
            lines += ["", title, *(part for text in texts for part in _wrapped("  - ", text, width))]
    return "\n".join(lines)


def _bar(capacity: Capacity) -> list[str]:
    parts = memory_bar(capacity)
    total = sum(size for _, size in parts) or 1
    marks = "#=+."
    cells = "".join(mark * max(round(WIDTH * size / total), 1 if size else 0) for mark, (_, size) in zip(marks, parts, strict=False))
    out = [f"one GPU: {gib(capacity.card_bytes)} = {gb(capacity.card_bytes)}", f"  [{cells[: WIDTH + 4]}]"]
    for mark, (name, size) in zip(marks, parts, strict=False):
        out.append(f"   {mark} {name:<30} {gib(size):>12}   {100 * size / total:5.1f} %")
    return out


def _answers(resolved: Resolved) -> list[str]:
    """Return what the arithmetic means, a sentence each."""
    capacity = resolved.capacity
    out = []
    out.append(
        f"device: {capacity.device_tokens:,} tokens ({gb(capacity.device_pool_bytes)} on each of "
        f"{capacity.ranks} GPUs), longest accepted prompt {capacity.longest_prompt:,} tokens; host RAM changes neither",
    )
    if resolved.model.kind == "mla" and capacity.ranks > 1 and capacity.extra.get("attention_tp", 1) > 1:
        copies = capacity.extra["attention_tp"]
        out.append(
            f"the latent KV of this model is the same on every rank of an attention group: {copies} "
            f"x {gb(capacity.device_pool_bytes)} hold {capacity.device_tokens:,} distinct tokens; more TP adds none",
        )
    if capacity.host_tokens:
        reach = max(capacity.device_tokens, capacity.host_tokens)
        gain = reach - capacity.device_tokens
        out.append(
            f"host: {capacity.host_tokens:,} tokens, {gb(capacity.host_bytes_per_rank)} per rank, "
            f"{gb(capacity.host_bytes_total)} in total, and 10 GiB of RAM must stay free once; the "
            f"tiers overlap (inclusive), so reach is the larger one: {reach:,} tokens, {gain:,} more than the device alone"
            + ("" if gain > capacity.page_size else ": a ratio of 1 buys nothing"),
        )
    largest = capacity.extra.get("largest_ratio")
    if largest is not None:
        out.append(f"largest ratio that fits this machine's RAM: {largest:.2f}")
    out.append(
        f"at most {capacity.max_running_requests:,} requests at once; decode above batch "
        f"{capacity.extra.get('cuda_graph_max_bs', '-')} runs without a CUDA graph (slower), it is not refused",
    )
    fits = fits_at_once(resolved)
    if fits:
        counts = ", ".join(f"{entry['at_once']:,} of its {name} length ({entry['tokens']:,})" for name, entry in fits.items())
        out.append(f"requests of this workload that fit the device at once: {counts}; prompt and output together, nothing shared")
    even = break_even(resolved)
    if even:
        out.append(even["text"])
    return out


def break_even(resolved: Resolved) -> dict[str, Any] | None:
    """Return when loading back beats recomputing: bytes per token x prefill rate, against the links; None without a
    step time.
    """
    from kvsim.cost.build import build_links, build_step_time
    from kvsim.errors import KvsimError

    capacity = resolved.capacity
    if capacity.infeasible or not capacity.device_tokens:
        return None
    try:
        time, links = build_step_time(resolved), build_links(resolved)
    except KvsimError:
        return None
    tokens = min(8192, max(capacity.device_tokens // 2, 1))
    prefill_s = _recompute_s(time, tokens)
    load_s = _load_s(links, tokens)
    if prefill_s <= 0 or load_s <= 0:
        return None
    needed = tokens * capacity.kv_bytes_per_token / prefill_s
    have = tokens * capacity.kv_bytes_per_token / load_s
    shortest = _shortest_worth(resolved, time)
    verdict = "beats" if load_s < prefill_s else "is slower than"
    from_length = "no prefix is worth loading" if shortest is None else f"worth it from {shortest:,} tokens on"
    alone = _alone_s(resolved, tokens)
    text = (
        f"break-even: recomputing {tokens:,} tokens takes {prefill_s:.3g} s, loading them back on all ranks at once {load_s:.3g} s "
        f"(one rank alone: {alone:.3g} s): loading {verdict} recomputing, {from_length}; the link needs {needed / 1e9:.3g} GB/s per GPU to break even "
        f"and gives {have / 1e9:.3g} GB/s; layer by layer a load hides behind the step that needs it"
    )
    return {
        "tokens": tokens,
        "recompute_s": prefill_s,
        "load_s": load_s,
        "load_one_rank_s": alone,
        "shortest_prefix_tokens": shortest,
        "break_even_bytes_per_s": needed,
        "link_bytes_per_s": have,
        "text": text,
    }


def _recompute_s(time: Any, tokens: int) -> float:
    return float(time.prefill_ps(tokens, tokens * (tokens + 1), 0, 1, 0, 0, 0) * 1e-12)


def _load_s(links: Any, tokens: int) -> float:
    return float(links.finish_time(links.load(tokens, 0), 0) * 1e-12)


def _alone_s(resolved: Resolved, tokens: int) -> float:
    """Return the time of a load when only one rank copies: its own link, nobody on the shared paths."""
    from kvsim.cost.build import build_links

    links = build_links(resolved)
    topology = links.topology
    rate = topology.rates((0,), ())[0][0]
    return tokens * resolved.capacity.kv_bytes_per_token / rate


def _shortest_worth(resolved: Resolved, time: Any) -> int | None:
    """Return the shortest prefix (a power of two of tokens) whose load is faster than computing it; the copies start at once."""
    from kvsim.cost.build import build_links

    for exponent in range(4, 18):
        tokens = 1 << exponent
        if tokens > resolved.capacity.device_tokens:
            break
        if _load_s(build_links(resolved), tokens) < _recompute_s(time, tokens):
            return tokens
    return None


def fits_at_once(resolved: Resolved) -> dict[str, Any] | None:
    """Return how many requests of the workload's mean, p50 and p95 length fit the device at once; None without a recipe."""
    from kvsim.workload.lengths import sampled_lengths

    scenario = resolved.scenario
    lengths = sampled_lengths(scenario.workload, seed=scenario.run.seed, clients=scenario.clients)
    if not lengths:
        return None
    picks = {"mean": sum(lengths) / len(lengths), "p50": lengths[len(lengths) // 2], "p95": lengths[int(0.95 * (len(lengths) - 1))]}
    return {name: {"tokens": round(size), "at_once": int(resolved.capacity.device_tokens // max(size, 1))} for name, size in picks.items()}


def _shown(value: float | int | str | None, unit: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if unit == "B":
        return f"{value:,} B" if value < 10**7 else gb(value)
    return f"{value:,}" + (f" {unit}" if unit else "") if isinstance(value, int) else f"{value:g} {unit}".strip()


def _arithmetic(head: str, how: str, width: int) -> list[str]:
    """Return a value and how it comes about: beside each other, or below where that would be too narrow."""
    if width >= 100:
        return _wrapped(head, how, width)
    return [head.rstrip(), *_wrapped(" " * 8, how, width)]


def _wrapped(head: str, text: str, width: int) -> list[str]:
    import textwrap

    indent = " " * len(head)
    return textwrap.wrap(text, width, initial_indent=head, subsequent_indent=indent) or [head]
