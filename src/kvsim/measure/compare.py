"""Differences between two runs of the same workload, paired: what common random numbers are for.

Requests of one run are not independent, so pairs are not either: differences are averaged over batches of neighbouring requests, which
are merged until they no longer correlate, as for a single mean (``steady``).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsim.measure.latency import PS, meets, tpot_ps, ttft_ps
from kvsim.measure.steady import BATCHES, batch_half_width, t_975
from kvsim.measure.summary import slo_of

if TYPE_CHECKING:
    from kvsim.record.recording import Recording, RequestRow

#: Per-request figures that are compared: name -> unit.
FIGURES = {"ttft_s": "s", "tpot_s": "s", "e2e_s": "s", "hit_tokens": "tokens", "good": ""}


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of paired differences with its 95 % half-width (None: too few pairs); ``clear``: zero lies outside."""

    mean: float
    half_width: float | None
    count: int
    method: str

    @property
    def clear(self) -> bool:
        """Tell whether the difference is more than its uncertainty."""
        return self.half_width is not None and abs(self.mean) > self.half_width


def in_order(rows: Sequence[RequestRow]) -> list[RequestRow]:
    """Return requests in the order of their names (numbers as numbers): the same order in every run of a workload."""
    return sorted(rows, key=lambda row: _natural(row.id))


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part)


def figures_of(row: RequestRow, slo: Any) -> dict[str, float | None]:
    """Return the compared figures of one request; None where it has none (not served, one token)."""
    started = row.first_token_ps is not None
    tpot = tpot_ps(row) if row.status == "finished" else None
    return {
        "ttft_s": ttft_ps(row) * PS if started else None,
        "tpot_s": None if tpot is None else tpot * PS,
        "e2e_s": (row.end_ps - row.arrival_ps) * PS if row.status == "finished" and row.end_ps is not None else None,
        "hit_tokens": float(row.device_hit + row.host_hit) if row.admitted_ps is not None else None,
        "good": float(meets(row, slo)) if slo is not None else None,
    }


def batch_means(recording: Recording, batches: int = BATCHES) -> dict[str, list[float | None]]:
    """Return the mean of each figure over ``batches`` runs of neighbouring requests: a small stand-in for all of them.

    A batch holds the same requests in every run of the same workload, so batches of two runs are pairs.
    """
    slo = slo_of(recording)
    rows = [figures_of(row, slo) for row in in_order(recording.requests)]
    count = min(batches, len(rows))
    edges = [len(rows) * i // count for i in range(count + 1)] if count else [0]
    out: dict[str, list[float | None]] = {name: [] for name in FIGURES}
    for low, high in itertools.pairwise(edges):
        for name in FIGURES:
            values = [value for row in rows[low:high] if (value := row[name]) is not None]
            out[name].append(math.fsum(values) / len(values) if values else None)
    return out


def paired(before: Sequence[float | None], after: Sequence[float | None]) -> Difference | None:
    """Return the mean of ``after - before`` over pairs in which both are known, or None without any.

    Neighbours are merged while they correlate.
    """
    differences = [b - a for a, b in zip(before, after, strict=True) if a is not None and b is not None]
    return difference_of(differences)


def difference_of(differences: Sequence[float]) -> Difference | None:
    """Return the mean of differences in order of time with its half-width."""
    count = len(differences)
    if not count:
        return None
    mean = math.fsum(differences) / count
    if count < 2:
        return Difference(mean, None, count, "one pair")
    half, method = batch_half_width(differences)
    return Difference(mean, half, count, method)


def pooled(differences: Sequence[Sequence[float]]) -> Difference | None:
    """Return the mean difference over replications, each a list of batch differences in order of time.

    The half-width is the t interval over replications if there are at least ten; else it is that of the batches of all replications, whose
    correlation is looked for inside each replication only.
    """
    parts = [part for part in (difference_of(list(d)) for d in differences) if part is not None]
    if not parts:
        return None
    mean = math.fsum(part.mean for part in parts) / len(parts)
    count = sum(part.count for part in parts)
    if len(parts) >= 10:
        spread = math.fsum((part.mean - mean) ** 2 for part in parts) / (len(parts) - 1)
        return Difference(mean, t_975(len(parts) - 1) * math.sqrt(spread / len(parts)), count, f"{len(parts)} replications")
    if any(part.half_width is None for part in parts):
        return Difference(mean, None, count, "too few pairs")
    half = math.sqrt(math.fsum((part.half_width or 0.0) ** 2 for part in parts)) / len(parts)
    return Difference(mean, half, count, f"{len(parts)} x {parts[0].method}")


def compare(before: Recording, after: Recording) -> dict[str, Any]:
    """Return the paired comparison of two recordings of the same workload: per figure both means, difference, who got better."""
    slo = slo_of(before)
    first = {row.id: row for row in before.requests}
    second = {row.id: row for row in after.requests}
    both = [row for row in in_order(before.requests) if row.id in second]
    out: dict[str, Any] = {
        "requests": {"first": len(first), "second": len(second), "paired": len(both)},
        "same_lengths": all(row.prompt_tokens == second[row.id].prompt_tokens for row in both),
        "figures": {},
    }
    pairs = [(figures_of(row, slo), figures_of(second[row.id], slo)) for row in both]
    for name in FIGURES:
        known = [(a[name], b[name]) for a, b in pairs if a[name] is not None and b[name] is not None]
        out["figures"][name] = _figure([float(a or 0) for a, _ in known], [float(b or 0) for _, b in known])
    return out


def _figure(before: list[float], after: list[float]) -> dict[str, Any] | None:
    if not before:
        return None
    difference = paired(before, after)
    assert difference is not None
    return {
        "first_mean": math.fsum(before) / len(before),
        "second_mean": math.fsum(after) / len(after),
        "difference": difference.mean,
        "half_width": difference.half_width,
        "clear": difference.clear,
        "pairs": difference.count,
        "method": difference.method,
        "smaller": sum(1 for a, b in zip(before, after, strict=True) if b < a),
        "larger": sum(1 for a, b in zip(before, after, strict=True) if b > a),
    }
