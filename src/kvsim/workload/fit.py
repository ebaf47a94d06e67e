"""Fits a recipe to a trace: length laws, arrivals, sharing, turns and gaps; and compares what the recipe makes with the trace.

Up to four recipes are tried: one shared beginning; several by popularity; conversations whose turns come after gaps, without and with
documents that several begin with. The one whose reuse curve is nearest to the trace's is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from kvsim.workload.fit_laws import fitted_law, quantiles, zipf_exponent
from kvsim.workload.fit_sharing import Sharing, sharing_of
from kvsim.workload.info import Reuse, TraceInfo, inspect
from kvsim.workload.read import open_trace
from kvsim.workload.spec import RequestSpec

Rates = Callable[[list[RequestSpec], list[int]], list[tuple[int, float]]]
Rows = list[tuple[str, float | None, float | None]]
FEW = 0.01  # turns or documents of fewer than this share of the requests are not modelled


@dataclass(slots=True)
class Fit:
    """A fitted recipe and the comparison: (figure, trace, recipe) rows. ``tried``: distance of the reuse curves by kind of recipe."""

    recipe: dict[str, Any]
    rows: Rows
    claims: str
    tried: list[tuple[str, float]]

    def data(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "workload": self.recipe,
            "comparison": [{"figure": a, "trace": b, "recipe": c} for a, b, c in self.rows],
            "tried": [{"recipe": name, "mean_distance_of_reuse": distance} for name, distance in self.tried],
            "claims": self.claims,
        }

    def text(self) -> str:
        """Return the recipe as YAML and the comparison."""
        import yaml

        lines = [yaml.safe_dump({"workload": self.recipe}, sort_keys=False, width=76, default_flow_style=None).rstrip()]
        lines += ["", f"{'':<34}{'trace':>14}{'recipe':>14}"]
        lines += [f"{name:<34}{_cell(a):>14}{_cell(b):>14}" for name, a, b in self.rows]
        tried = "; ".join(f"{name} {100 * distance:.1f}" for name, distance in self.tried)
        return "\n".join([*lines, "", f"mean distance of the reuse curves, in points: {tried}", self.claims])


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def fit_recipe(path: str, *, format: str | None, block_size: int | None, seed: int, reuse: Rates | None = None, columns: dict[str, str] | None = None) -> Fit:
    """Return the recipe whose reuse is nearest to the trace's, with the trace's lengths, rate and burstiness.

    ``reuse(requests, capacities)``: LRU hit rates by capacity in tokens (no capacities: its own choice of them), compared side by side.
    """
    reader = open_trace(path, format, block_size=block_size, columns=columns)
    specs = list(reader)
    info = inspect(reader, specs)
    known = info.ceiling is not None
    curve = reuse(specs, []) if reuse is not None and known else []
    found = []
    for name, recipe in _recipes(specs, info, reader.block):
        drawn = _drawn(recipe, seed)
        other = reuse(drawn, [size for size, _ in curve]) if reuse is not None and curve else []
        ceilings = abs(_ceiling(drawn) - (info.ceiling or 0.0))
        gaps = [ceilings, *(abs(a - b) for (_, a), (_, b) in zip(curve, other, strict=True))]
        found.append((sum(gaps) / len(gaps), name, recipe, drawn, other))
    distance, name, recipe, drawn, other = min(found, key=lambda one: one[0])
    rows = _compare(specs, info, drawn)
    rows += [(f"LRU hits with {size:,} tokens", a, b) for (size, a), (_, b) in zip(curve, other, strict=True)]
    return Fit(recipe, rows, _claims(known, distance, name), [(name, distance) for distance, name, *_ in found])


def _claims(known: bool, distance: float, name: str) -> str:
    if not known:
        return "The trace has no prefixes, so the recipe shares nothing: rate, burstiness and lengths are the trace's, reuse is not known and not claimed."
    return (
        f"The recipe ({name}) has the trace's mean rate, the variation of its gaps and its length laws, each drawn by itself. Its reuse curve is "
        f"{100 * distance:.1f} points from the trace's on average over the rows above; more than these rows is not claimed, and where reuse matters the "
        "trace itself should be replayed."
    )


def _recipes(specs: list[RequestSpec], info: TraceInfo, block: int) -> list[tuple[str, dict[str, Any]]]:
    """Return the recipes to try, by name."""
    if info.ceiling is None:
        return [("nothing shared", _independent(specs, info, Sharing([[spec] for spec in specs])))]
    shared = round(info.reused_tokens / max(info.requests - 1, 1))
    out = [("one beginning", _independent(specs, info, Sharing([[spec] for spec in specs], shared)))]
    apart = sharing_of(specs, block, apart=True)
    if apart.with_document > FEW * len(specs):
        out.append(("beginnings by popularity", _independent(specs, info, apart)))
    talks = sharing_of(specs, block)
    if len(specs) - len(talks.conversations) > FEW * len(specs):
        out.append(("conversations", _conversations(replace(talks, documents=[], taken=[]))))
        if talks.with_document > FEW * len(talks.conversations):
            out.append(("conversations with documents", _conversations(talks)))
    return out


def _independent(specs: list[RequestSpec], info: TraceInfo, sharing: Sharing) -> dict[str, Any]:
    """Return requests that share a beginning, and documents behind it."""
    taken = _document_tokens(sharing)
    own = [max(spec.prompt_tokens - sharing.common - tokens, 1) for spec, tokens in zip(specs, taken, strict=True)]
    return {
        "kind": "poisson", "rate_per_s": round(info.requests / (info.span_s or 1.0), 6), "requests": info.requests, "shared_prefix_tokens": sharing.common,
        "prompt_tokens": fitted_law(own), "output_tokens": fitted_law([spec.output_tokens for spec in specs]),
        **_documents(sharing), **_arrivals(specs),
    }  # fmt: skip


def _conversations(sharing: Sharing) -> dict[str, Any]:
    """Return conversations in an open loop: turns, new text per turn, gaps from start to start."""
    talks = sharing.conversations
    first = [max(turns[0].prompt_tokens - sharing.common - taken, 1) for turns, taken in zip(talks, _document_tokens(sharing), strict=True)]
    steps = [pair for turns in talks for pair in pairwise(turns)]
    new = [max(after.prompt_tokens - before.prompt_tokens - before.output_tokens, 1) for before, after in steps]
    gaps = [(after.arrival_ps - before.arrival_ps) * 1e-12 for before, after in steps]
    starts = [turns[0] for turns in talks]
    spread = (starts[-1].arrival_ps - starts[0].arrival_ps) * 1e-12
    return {
        "kind": "multi_turn", "loop": "open", "sessions": len(talks), "sessions_per_s": round(len(talks) / (spread or 1.0), 6),
        "turns": fitted_law([len(turns) for turns in talks]), "system_prompt_tokens": sharing.common, "first_tokens": fitted_law(first),
        "turn_tokens": fitted_law(new), "output_tokens": fitted_law([spec.output_tokens for turns in talks for spec in turns]),
        "think_time": fitted_law(gaps, low=None), **_documents(sharing), **_arrivals(starts),
    }  # fmt: skip


def _document_tokens(sharing: Sharing) -> list[int]:
    """Return, per conversation, the tokens of the document it begins with (0: none)."""
    return sharing.taken or [0] * len(sharing.conversations)


def _documents(sharing: Sharing) -> dict[str, Any]:
    if sharing.with_document <= FEW * len(sharing.conversations):
        return {}
    tokens = fitted_law([tokens for tokens, _ in sharing.documents])
    exponent = zipf_exponent([count for _, count in sharing.documents])
    share = sharing.with_document / len(sharing.conversations)
    return {"documents": {"count": len(sharing.documents), "tokens": tokens, "zipf": round(exponent, 3), "share": round(min(share, 1.0), 4)}}


def _arrivals(specs: Sequence[RequestSpec]) -> dict[str, Any]:
    burst = _burst(specs)
    if burst is None or 0.95 <= burst <= 1.05:
        return {}
    return {"arrivals": {"process": "gamma", "cv": round(min(max(burst, 0.1), 20.0), 3)}}


LAW = {"mean": None, "cv": 0.5, "low": None, "high": None, "values": (), "weights": None, "trace": None, "of": "prompt"}


def _block(value: Any) -> Any:
    """Return a recipe's part with attributes, as the generators take it."""
    if not isinstance(value, dict):
        return value
    return SimpleNamespace(**{**(LAW if "dist" in value else {"per_request": 1}), **{key: _block(inner) for key, inner in value.items()}})


def _drawn(recipe: dict[str, Any], seed: int) -> list[RequestSpec]:
    from kvsim.workload import synthetic

    parts = {key: _block(value) for key, value in recipe.items()}
    if recipe["kind"] == "poisson":
        return list(synthetic._independent(SimpleNamespace(**{"duration": None, **parts}), seed))
    talks = synthetic._conversations(SimpleNamespace(**{"system_prompts": 1, **parts}), seed)
    return sorted((spec for talk in talks for spec in talk.turns), key=lambda spec: (spec.arrival_ps, spec.id))


def _ceiling(specs: list[RequestSpec]) -> float:
    reuse = Reuse(stated=True)
    hits = sum(reuse.add(spec) for spec in specs)
    return hits / max(sum(spec.prompt_tokens for spec in specs), 1)


def _compare(specs: list[RequestSpec], info: TraceInfo, drawn: list[RequestSpec]) -> Rows:
    rows: Rows = []
    for name, key in (("prompt tokens", "prompt_tokens"), ("output tokens", "output_tokens")):
        sides = [[getattr(spec, key) for spec in side] for side in (specs, drawn)]
        a, b = (quantiles(sorted(side), (0.5, 0.95, 0.99)) for side in sides)
        rows.append((f"{name} mean", *(sum(side) / len(side) for side in sides)))
        rows += [(f"{name} {label}", x, y) for label, x, y in zip(("p50", "p95", "p99"), a, b, strict=True)]
    rows.append(("requests", float(info.requests), float(len(drawn))))
    inside = [spec for spec in drawn if spec.arrival_ps * 1e-12 <= info.span_s]  # turns of the last conversations come later
    rows.append(("requests/s in the trace's span", info.requests / (info.span_s or 1.0), len(inside) / (info.span_s or 1.0)))
    rows.append(("... gap coefficient of variation", _burst(specs), _burst(inside)))
    rows.append(("reuse ceiling", info.ceiling, _ceiling(drawn)))
    return rows


def _burst(specs: Sequence[RequestSpec]) -> float | None:
    gaps = [(b.arrival_ps - a.arrival_ps) * 1e-12 for a, b in pairwise(specs)]
    mean = sum(gaps) / len(gaps) if gaps else 0.0
    return math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean if mean else None
