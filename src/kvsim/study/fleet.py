"""Fleets of equal cost: more machines, or more RAM for each? Points for a sweep, with what each costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvsim.errors import ConfigError
from kvsim.study.design import Point
from kvsim.study.point import resolve_task
from kvsim.study.sweep import Study

MOST_MACHINES = 64


@dataclass(frozen=True, slots=True)
class Fleet:
    """So many machines with so much HiCache each: ``ratio`` (0: off), ``ram_gb`` per machine, ``per_hour`` for all of them."""

    replicas: int
    ratio: float
    ram_gb: float
    per_hour: float

    @property
    def point(self) -> Point:
        """The point of a sweep."""
        return {"replicas": self.replicas, "engine.hicache.ratio": self.ratio}


def fleets(base: dict[str, Any], per_hour: float) -> list[Fleet]:
    """Return, for every number of machines the money buys, the fleet that spends the rest on HiCache RAM (as far as a machine takes it).

    Needs ``cost: {per_gpu_hour, per_gb_ram_hour}`` in the scenario (plain data). RAM is bought for the host pool only; a machine is never given
    more than its RAM allows. Raises ConfigError.
    """
    cost = base.get("cost") or {}
    if cost.get("per_gpu_hour") is None or cost.get("per_gb_ram_hour") is None:
        raise ConfigError(
            "cost: needs per_gpu_hour and per_gb_ram_hour, for example --set cost.per_gpu_hour=2 --set cost.per_gb_ram_hour=0.005"
        )
    gpu, ram = float(cost["per_gpu_hour"]), float(cost["per_gb_ram_hour"])
    plain = resolve_task((base, ["engine.hicache.ratio=0", "engine.hicache.size=0"], 0))
    machine = plain.hardware.gpus * gpu
    per_ratio_gb = plain.capacity.device_tokens * plain.capacity.kv_bytes_per_token * plain.capacity.ranks / 1e9
    out = []
    for replicas in range(1, MOST_MACHINES + 1):
        left = per_hour / replicas - machine
        if left < 0:
            break
        ratio = _largest(base, left / ram / per_ratio_gb)
        out.append(Fleet(replicas, ratio, ratio * per_ratio_gb, replicas * (machine + ratio * per_ratio_gb * ram)))
    if not out:
        raise ConfigError(f"--budget {per_hour:g}: one machine alone costs {machine:g} per hour")
    return out


def _largest(base: dict[str, Any], affordable: float) -> float:
    """Return the largest ratio, to one digit behind the point, that is affordable and fits the machine."""
    high = int(affordable * 10)
    low = 0
    if _fits(base, high):
        return high / 10
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _fits(base, middle) else (low, middle)
    return low / 10


def _fits(base: dict[str, Any], tenths: int) -> bool:
    return not resolve_task((base, [f"engine.hicache.ratio={tenths / 10}", "engine.hicache.size=0"], 0)).capacity.infeasible


def fleet_sentence(study: Study, found: list[Fleet]) -> str:
    """Return which fleet serves best for the money, and whether it can be told from the next one (paired by batches)."""
    from kvsim.measure.compare import pooled

    by_point = {repr(fleet.point): fleet for fleet in found}
    rows = [(by_point[repr(point)], results) for point, results in study.points() if all(r.summary is not None for r in results)]
    if not rows:
        return "None of these fleets can run."
    summaries = [r.summary for _, results in rows for r in results if r.summary is not None]
    figure = "good" if all(summary["slo"] is not None for summary in summaries) else "ttft_s"
    sign = -1.0 if figure == "good" else 1.0

    def mean(results: list[Any]) -> float:
        values = [value for r in results if r.summary for value in r.summary["batches"][figure] if value is not None]
        return sum(values) / len(values) if values else 0.0

    rows.sort(key=lambda row: (sign * mean(row[1]), row[0].replicas))
    best, results = rows[0]
    what = f"{100 * mean(results):.1f} % of requests within the SLO" if figure == "good" else f"mean TTFT {mean(results):.3g} s"
    text = f"Best for the money: {_name(best)}, {best.per_hour:.4g} per hour: {what}."
    if len(rows) > 1:
        other, theirs = rows[1]
        lists = [
            [b - a for a, b in zip(x, y, strict=False) if a is not None and b is not None]
            for x, y in zip(_batches(theirs, figure), _batches(results, figure), strict=False)
        ]
        difference = pooled(lists)
        told = "clearly better than" if difference is not None and difference.clear else "not told apart from"
        text += f" It is {told} {_name(other)} ({other.per_hour:.4g} per hour)."
    return text


def _batches(results: list[Any], figure: str) -> list[list[float | None]]:
    return [result.summary["batches"][figure] for result in results]


def _name(fleet: Fleet) -> str:
    machines = "1 machine" if fleet.replicas == 1 else f"{fleet.replicas} machines"
    return f"{machines} with " + (f"HiCache ratio {fleet.ratio:g} ({fleet.ram_gb:,.0f} GB each)" if fleet.ratio else "no host tier")
