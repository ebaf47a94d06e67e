"""The operator's options by arithmetic alone: what each does to memory, what it costs, what is not known. Nothing is simulated.

A value that needs a measured factor (a kernel's speed, a draft's acceptance) is left blank and named.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kvsim.errors import ConfigError
from kvsim.study.options import Option, capacity_of_all, variants
from kvsim.study.point import resolve_task

if TYPE_CHECKING:
    from kvsim.config.resolved import Resolved

#: Option name (or its beginning) -> what it costs, in words.
COSTS = (
    ("HiCache", "host RAM, copies on the links"),
    ("write_through_selective", "fewer stores, fewer hits"),
    ("write_back", "waits for copies at eviction"),
    ("one shared host copy", "a what-if: not in stock SGLang"),
    ("fp8 KV", "accuracy; unknown: its kernel's speed"),
    ("batch cap", "a longer queue, faster tokens"),
    ("CUDA graphs", "above it decode is slower, not refused"),
    ("speculation off", "slower tokens at small batches"),
    ("speculation on", "draft memory; unknown: acceptance"),
    ("page size", "hits rounded down to pages"),
    ("DP attention", "a cache and a queue per rank"),
    ("CPU tier", "host RAM, copies on the links"),
    ("batched tokens", "longer steps hold up decoding"),
)


def static_options(resolved: Resolved) -> list[Option]:
    """Return the rows: the options that are simulated too, and those that only arithmetic can answer."""
    out = variants(resolved)
    if resolved.family != "sglang":
        return out
    engine, extra = resolved.scenario.engine, resolved.capacity.extra
    largest = _largest_ratio(resolved)
    if largest is not None:
        at = 1 + max((i for i, option in enumerate(out) if option.name.startswith("HiCache")), default=0)
        out.insert(at, Option(f"HiCache ratio {largest:g}", (f"engine.hicache.ratio={largest}", "engine.hicache.size=0"), "the largest that fits"))
    graphs = extra.get("cuda_graph_max_bs")
    if graphs and graphs > 1 and not engine.disable_cuda_graph:
        lower = max(1, graphs // 4)
        out.append(Option(f"CUDA graphs to {lower}", (f"engine.cuda_graph_max_bs={lower}", "engine.cuda_graph_bs=null")))
    if engine.speculative_algorithm is None and engine.device_tokens is None:
        for rules in ("sglang-0.5.9", "sglang-0.5.23"):
            name = f"speculation on ({rules.removeprefix('sglang-')})"
            out.append(Option(name, ("engine.speculative_algorithm=EAGLE", f"engine.rules={rules}")))
    return out


def _largest_ratio(resolved: Resolved) -> float | None:
    """Return the largest ratio that fits the machine's RAM, two decimals, rounded down; None if it has no limit or none fits."""
    from kvsim.config.load import load_data
    from kvsim.config.resolve import resolve
    from kvsim.study.point import plain_scenario

    found = resolved.capacity.extra.get("largest_ratio")
    if found is None:
        on = resolve(load_data(plain_scenario(resolved.scenario), ["engine.hicache.ratio=2", "engine.hicache.size=0"]))
        found = on.capacity.extra.get("largest_ratio")
    if found is None or found <= 1:
        return None
    return math.floor(float(found) * 100) / 100


def static_rows(base: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the memory of every option as plain data, from the capacity arithmetic alone (no workload or SLO is needed).

    ``at_once``: requests of the workload's mean length that fit at once (None without a recipe). ``link_bytes``: what one reloaded token
    moves over all links. ``infeasible``: why not, or None.
    """
    from kvsim.workload.lengths import sampled_lengths

    first = resolve_task((base, [], 0))
    lengths = sampled_lengths(first.scenario.workload, seed=first.scenario.run.seed, clients=first.scenario.clients)
    length = sum(lengths) / len(lengths) if lengths else None
    rows = []
    for option in static_options(first):
        row: dict[str, Any] = {
            "option": option.name, "remark": option.remark, "cost": _cost_of(option), "set": list(option.sets), "infeasible": None,
        }  # fmt: skip
        try:
            resolved = resolve_task((base, list(option.sets), 0))
        except ConfigError as problem:
            rows.append({**row, "infeasible": str(problem).split("\n", 1)[0]})
            continue
        rows.append({**row, **_facts(resolved, length), "infeasible": "; ".join(resolved.capacity.infeasible) or None})
    return rows


def _facts(resolved: Resolved, length: float | None) -> dict[str, Any]:
    facts = capacity_of_all(resolved)
    extra = resolved.capacity.extra
    facts["reach_tokens"] = max(facts["device_tokens"], facts["host_tokens"])
    facts["link_bytes"] = facts["kv_bytes_per_token"] * extra.get("attention_tp", resolved.capacity.ranks)
    facts["at_once"] = None if length is None else min(facts["max_running_requests"], int(facts["device_tokens"] // max(length, 1)))
    facts["draft_bytes"] = extra.get("draft_kv_bytes", 0) + extra.get("draft_weight_bytes", 0)
    return facts


def _cost_of(option: Option) -> str:
    words = next((words for name, words in COSTS if option.name.startswith(name)), "")
    if option.name in ("HiCache off", "no CPU tier"):
        return ""
    return words


