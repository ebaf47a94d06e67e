"""Seeded recipes: conversations that grow, and independent requests. Lengths and times are drawn from named streams."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterator
from functools import lru_cache
from itertools import repeat
from random import Random
from typing import Any

from kvsim.content import Runs, join, length
from kvsim.rng import stream
from kvsim.workload.arrivals import arrival_times
from kvsim.workload.clients import OpenLoop, Session, Sessions
from kvsim.workload.spec import Client, RequestSpec


def draw(law: Any, rng: Random) -> float:
    """Return one value of a law (a plain number, or a block with dist, mean, cv, low, high)."""
    if isinstance(law, (int, float)):
        return float(law)
    low = law.low if law.low is not None else 0.0
    high = law.high if law.high is not None else math.inf
    return min(max(_raw(law, rng), low), high)


def _raw(law: Any, rng: Random) -> float:
    if law.dist == "empirical":
        values = law.values or trace_lengths(law.trace, law.of)
        weights = law.weights
        return float(values[rng.randrange(len(values))] if weights is None else rng.choices(values, weights)[0])
    mean = law.mean if law.mean is not None else ((law.low or 0.0) + (law.high or 0.0)) / 2
    if law.dist == "constant" or (law.dist in ("lognormal", "gamma", "pareto") and law.cv == 0):
        return float(mean)
    if law.dist == "exponential":
        return rng.expovariate(1 / mean)
    if law.dist == "uniform":
        return rng.uniform(law.low or 0.0, law.high if law.high is not None else 2 * mean)
    if law.dist == "geometric":
        return 1 + math.floor(math.log(1 - rng.random()) / math.log(1 - 1 / max(mean, 1.000001)))
    if law.dist == "gamma":
        shape = 1 / law.cv**2
        return rng.gammavariate(shape, mean / shape)
    if law.dist == "pareto":
        alpha = 1 + math.sqrt(1 + 1 / law.cv**2)
        return mean * (alpha - 1) / alpha * rng.paretovariate(alpha)
    sigma2 = math.log(1 + law.cv**2)
    return rng.lognormvariate(math.log(mean) - sigma2 / 2, math.sqrt(sigma2))


@lru_cache(maxsize=8)
def trace_lengths(trace: str, of: str) -> array[int]:
    """Return the prompt or output tokens of every request of a trace. Raises TraceError."""
    from kvsim.workload.read import open_trace

    return array("q", (spec.prompt_tokens if of == "prompt" else spec.output_tokens for spec in open_trace(trace)))


def count(law: Any, rng: Random, least: int = 1) -> int:
    """Return a whole number of tokens or turns."""
    return max(least, round(draw(law, rng)))


class Tokens:
    """Hands out fresh token runs."""

    def __init__(self) -> None:
        self._next = 1 << 32

    def fresh(self, tokens: int) -> int:
        """Return the first token of a run that nobody else has (a gap keeps neighbours from merging)."""
        first = self._next
        self._next += tokens + 1
        return first


def multi_turn(recipe: Any, seed: int) -> Client:
    """Return conversations behind shared system prompts; closed loop by default, open loop at the recipe's own times."""
    sessions = _conversations(recipe, seed)
    if recipe.loop == "open":
        specs = sorted((spec for session in sessions for spec in session.turns), key=lambda spec: (spec.arrival_ps, spec.id))
        return OpenLoop(specs)
    return Sessions(sessions, users=recipe.users, in_order=True)


def _conversations(recipe: Any, seed: int) -> Iterator[Session]:
    lengths, times = stream(seed, "lengths"), stream(seed, "times")
    tokens = Tokens()
    system = [tokens.fresh(recipe.system_prompt_tokens) for _ in range(recipe.system_prompts)]
    rate = recipe.sessions_per_s
    process = getattr(recipe, "arrivals", None)
    starts = repeat(0.0) if rate is None else arrival_times(process, rate, times)
    thinking = times if process is None else stream(seed, "thinking")  # one stream for both keeps the plain recipe's draws as they were
    shared = None if getattr(recipe, "documents", None) is None else _Shared(recipe, tokens, stream(seed, "content"))
    for number, start in zip(range(recipe.sessions), starts, strict=False):
        prefix: Runs = ((system[number % len(system)], recipe.system_prompt_tokens),) if recipe.system_prompt_tokens else ()
        if shared is not None:
            prefix = join(prefix, shared.prefix(number))
        yield _conversation(recipe, number, prefix, start, lengths, thinking, tokens)


def _conversation(recipe: Any, number: int, prefix: Runs, start: float, lengths: Random, times: Random, tokens: Tokens) -> Session:
    turns: list[RequestSpec] = []
    thinks: list[int] = []
    at, text = start, prefix
    who = _tenant(recipe, number)
    for turn in range(count(recipe.turns, lengths)):
        new = count(recipe.first_tokens if turn == 0 else recipe.turn_tokens, lengths)
        text = join(text, ((tokens.fresh(new), new),))
        output = count(recipe.output_tokens, lengths)
        answer = tokens.fresh(output)
        size = sum(run[1] for run in text)
        turns.append(RequestSpec(f"s{number}t{turn}", round(at * 1e12), text, size, output, answer, session=f"s{number}", turn=turn, **who))
        think = draw(recipe.think_time, times)
        thinks.append(round(think * 1e12))
        at += think
        text = join(text, ((answer, output),))
    return Session(turns, thinks)


def _tenant(recipe: Any, number: int) -> dict[str, Any]:
    """Return the tenant of a session or request, and its own prefix space if tenants are isolated."""
    if getattr(recipe, "tenants", 1) == 1:
        return {}
    name = f"tenant{number % recipe.tenants}"
    return {"tenant": name, "namespace": name} if recipe.isolated else {"tenant": name}


def poisson(recipe: Any, seed: int) -> Client:
    """Return independent requests at exponential gaps or the recipe's own arrivals."""
    return OpenLoop(_independent(recipe, seed))


def _independent(recipe: Any, seed: int) -> Iterator[RequestSpec]:
    lengths, times = stream(seed, "lengths"), stream(seed, "times")
    tokens = Tokens()
    shared = _Shared(recipe, tokens, stream(seed, "content"))
    limit = recipe.requests if recipe.requests is not None or recipe.duration is not None else 1000
    numbers = itertools.count() if limit is None else range(limit)
    for number, at in zip(numbers, arrival_times(getattr(recipe, "arrivals", None), recipe.rate_per_s, times), strict=False):
        if recipe.duration is not None and at > recipe.duration:
            return
        prompt, output = count(recipe.prompt_tokens, lengths), count(recipe.output_tokens, lengths)
        prefix = shared.prefix(number)
        text = join(prefix, ((tokens.fresh(prompt), prompt),))
        size = prompt + length(prefix)
        yield RequestSpec(f"r{number}", round(at * 1e12), text, size, output, tokens.fresh(output), **_tenant(recipe, number))


class _Shared:
    """What independent requests have in common: their tenant's prefix, a way through the tree, documents by popularity."""

    def __init__(self, recipe: Any, tokens: Tokens, rng: Random) -> None:
        self._tokens, self._rng = tokens, rng
        self._tree: Any = getattr(recipe, "tree", None)
        self._documents: Any = getattr(recipe, "documents", None)
        size = getattr(recipe, "shared_prefix_tokens", 0)
        self._prefixes: list[Runs] = [((tokens.fresh(size), size),) if size else () for _ in range(getattr(recipe, "tenants", 1))]
        self._nodes: dict[tuple[int, ...], int] = {}
        self._texts: list[Runs] = []
        if self._documents is not None:
            for _ in range(self._documents.count):
                tokens_of_it = count(self._documents.tokens, rng)
                self._texts.append(((tokens.fresh(tokens_of_it), tokens_of_it),))
            weights = [1 / rank**self._documents.zipf for rank in range(1, self._documents.count + 1)]
            self._popularity = list(itertools.accumulate(weights))

    def prefix(self, number: int) -> Runs:
        """Return what request ``number`` begins with."""
        out = self._prefixes[number % len(self._prefixes)]
        if self._tree is not None:
            out = self._way(out)
        if self._documents is not None and (self._documents.share == 1 or self._rng.random() < self._documents.share):
            for text in self._rng.choices(self._texts, cum_weights=self._popularity, k=self._documents.per_request):
                out = join(out, text)
        return out

    def _way(self, out: Runs) -> Runs:
        way: tuple[int, ...] = ()
        for _ in range(self._tree.depth):
            way = (*way, self._rng.randrange(self._tree.branching))
            first = self._nodes.get(way)
            if first is None:
                first = self._nodes[way] = self._tokens.fresh(self._tree.tokens)
            out = join(out, ((first, self._tree.tokens),))
        return out
