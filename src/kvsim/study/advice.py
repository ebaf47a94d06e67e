"""The sentence under a sweep: which value of an axis is worth it, and why; computed from paired results."""

from __future__ import annotations

from typing import Any

from kvsim.study.sweep import Result, Study
from kvsim.units import gb

WORTH = 0.05  # a gain below five percent of the figure is not worth RAM


def ratio_advice(study: Study, key: str = "engine.hicache.ratio") -> str:
    """Return one plain sentence on the HiCache ratio: the smallest value after which nothing gains more, or why none is worth it."""
    rows = [(point[key], results) for point, results in study.points() if key in point]
    feasible = [(value, results) for value, results in rows if all(result.summary is not None for result in results)]
    infeasible = [value for value, results in rows if any(result.summary is None for result in results)]
    tail = f" Ratio {_list(infeasible)} cannot run on this machine." if infeasible else ""
    if len(feasible) < 2:
        return "There are not two ratios that can run, so nothing can be compared." + tail
    base_value, base = feasible[0]
    goal, unit = _goal(base)
    scores = [(value, _mean(results, goal)) for value, results in feasible]
    base_score = scores[0][1]
    best = min(score for _, score in scores)
    if base_score <= 0 or best > base_score * (1 - WORTH):
        return (
            f"No ratio is worth its RAM here: {unit} {_show(base_score)} with {_name(base_value)} and at best {_show(best)}; {_why_none(feasible)}."
            + tail
        )
    chosen, score, results = next(
        (value, score, results)
        for (value, score), (_, results) in zip(scores, feasible, strict=True)
        if score <= best + WORTH * (base_score - best)
    )
    ram = results[0].capacity
    cost = f"{gb(ram['host_bytes_total'])} of host RAM in total ({ram['ranks']} x {gb(ram['host_bytes_per_rank'])})"
    beyond = [value for value, other in scores if other < score and _number(value) > _number(chosen)]
    more = f"; more ({_list(beyond)}) gains less than {100 * WORTH:.0f} % of that again" if beyond else ""
    return (
        f"Ratio {_plain(chosen)} is worth it: {unit} falls from {_show(base_score)} ({_name(base_value)}) to {_show(score)}, hit rate rises from "
        f"{100 * _mean(base, ('hits', 'hit_rate')):.1f} to {100 * _mean(results, ('hits', 'hit_rate')):.1f} %, for {cost}{more}." + tail
    )


def _goal(base: list[Result]) -> tuple[tuple[str, str], str]:
    return ("ttft_s", "mean"), "mean TTFT"


def _mean(results: list[Result], path: tuple[str, str]) -> float:
    values = [(result.summary or {})[path[0]][path[1]] or 0.0 for result in results if result.summary]
    return sum(values) / len(values)


def _why_none(feasible: list[tuple[Any, list[Result]]]) -> str:
    last = feasible[-1][1][0].summary or {}
    if not last["hits"]["host_tokens"]:
        if not last["hits"]["device_tokens"]:
            return "no prompt shares a prefix that is still cached (no reuse), so there is nothing to load back"
        return "no host hits: what is reused still is on the device"
    if last["overload"]["overloaded"]:
        return "the machine is overloaded with every ratio: queueing, not memory, decides"
    return "the host hits are too few or too slow to load to change it"


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


def _plain(value: Any) -> str:
    return "off" if value in (False, 0, "off") else f"{value:g}" if isinstance(value, float) else str(value)


def _name(value: Any) -> str:
    return "HiCache off" if value in (False, 0, "off") else f"ratio {_plain(value)}"


def _list(values: list[Any]) -> str:
    return ", ".join(_plain(value) for value in values)


def _show(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
