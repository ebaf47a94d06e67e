"""Fits a recipe to a trace: length laws, burstiness, sharing; and compares what the recipe makes with the trace."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from kvsim.workload.info import TraceInfo, inspect
from kvsim.workload.read import open_trace
from kvsim.workload.spec import RequestSpec


@dataclass(slots=True)
class Fit:
    """A fitted recipe and the comparison: (figure, trace, recipe) rows."""

    recipe: dict[str, Any]
    rows: list[tuple[str, float | None, float | None]]
    claims: str

    def data(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "workload": self.recipe,
            "comparison": [{"figure": a, "trace": b, "recipe": c} for a, b, c in self.rows],
            "claims": self.claims,
        }

    def text(self) -> str:
        """Return the recipe as YAML and the comparison."""
        import textwrap

        import yaml

        lines = [yaml.safe_dump({"workload": self.recipe}, sort_keys=False).rstrip(), "", f"{'':<34}{'trace':>14}{'recipe':>14}"]
        lines += [f"{name:<34}{_cell(a):>14}{_cell(b):>14}" for name, a, b in self.rows]
        return "\n".join([*lines, "", textwrap.fill(self.claims, 80)])


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


Rates = Callable[[list[RequestSpec], list[int]], list[tuple[int, float]]]


def fit_recipe(path: str, *, format: str | None, block_size: int | None, seed: int, reuse: Rates | None = None) -> Fit:
    """Return a recipe of independent requests behind a shared prefix with the trace's lengths, rate, burstiness and (at most) its reuse.

    ``reuse(requests, capacities)``: LRU hit rates by capacity in tokens (no capacities: its own choice of them), compared side by side.
    """
    specs = list(open_trace(path, format, block_size=block_size))
    info = inspect(open_trace(path, format, block_size=block_size))
    recipe = _recipe(specs, info)
    drawn = _drawn(recipe, seed)
    rows = _compare(specs, info, drawn)
    if reuse is not None and info.ceiling is not None:
        of_trace = reuse(specs, [])
        of_recipe = reuse(drawn, [size for size, _ in of_trace])
        rows += [(f"LRU hits with {size:,} tokens", a, b) for (size, a), (_, b) in zip(of_trace, of_recipe, strict=True)]
    claims = (
        "The recipe has the trace's mean rate, the variation of its gaps and its length laws; one prefix is shared by all, so the shape of the reuse "
        "curve is not claimed: compare the rows above, and replay the trace itself where reuse matters."
    )
    return Fit(recipe, rows, claims)


def _law(values: list[int]) -> dict[str, Any]:
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    return {"dist": "lognormal", "mean": round(mean, 1), "cv": round(spread / mean, 3) if mean else 0.0, "low": 1}


def _recipe(specs: list[RequestSpec], info: TraceInfo) -> dict[str, Any]:
    span = info.span_s or 1.0
    shared = round(info.reused_tokens / max(info.requests - 1, 1))
    own = [max(spec.prompt_tokens - shared, 1) for spec in specs]
    burst = _burst(specs)
    arrivals = (
        {} if burst is None or 0.95 <= burst <= 1.05 else {"arrivals": {"process": "gamma", "cv": round(min(max(burst, 0.1), 20.0), 3)}}
    )
    return {
        "kind": "poisson", "rate_per_s": round(info.requests / span, 6), "requests": info.requests, "shared_prefix_tokens": shared,
        "prompt_tokens": _law(own), "output_tokens": _law([spec.output_tokens for spec in specs]), **arrivals,
    }  # fmt: skip


def _drawn(recipe: dict[str, Any], seed: int) -> list[RequestSpec]:
    from kvsim.workload.synthetic import _independent

    laws = {key: SimpleNamespace(**{"high": None, **value}) if isinstance(value, dict) else value for key, value in recipe.items()}
    return list(_independent(SimpleNamespace(**{"duration": None, **laws}), seed))


def _compare(specs: list[RequestSpec], info: TraceInfo, drawn: list[RequestSpec]) -> list[tuple[str, float | None, float | None]]:
    from kvsim.workload.prefixes import PrefixTree

    seen, reused, prompt = PrefixTree(), 0, 0
    for spec in drawn:
        reused += min(seen.match(spec.prompt, ""), spec.prompt_tokens - 1)
        seen.insert(spec.prompt, "")
        prompt += spec.prompt_tokens

    def quantiles(values: list[int]) -> list[float]:
        ordered = sorted(values)
        return [float(ordered[int(share * (len(ordered) - 1))]) for share in (0.5, 0.95)]

    rows: list[tuple[str, float | None, float | None]] = []
    for name, key in (("prompt tokens", "prompt_tokens"), ("output tokens", "output_tokens")):
        a, b = (quantiles([getattr(spec, key) for spec in side]) for side in (specs, drawn))
        rows += [(f"{name} p50", a[0], b[0]), (f"{name} p95", a[1], b[1])]
    rows.append(("requests/s", info.requests / (info.span_s or 1.0), len(drawn) / max(drawn[-1].arrival_ps * 1e-12, 1e-9)))
    rows.append(("gap coefficient of variation", _burst(specs), _burst(drawn)))
    rows.append(("reuse ceiling", info.ceiling, reused / prompt if prompt else None))
    return rows


def _burst(specs: list[RequestSpec]) -> float | None:
    gaps = [(b.arrival_ps - a.arrival_ps) * 1e-12 for a, b in pairwise(specs)]
    mean = sum(gaps) / len(gaps) if gaps else 0.0
    return math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean if mean else None
