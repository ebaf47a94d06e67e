"""Replay of cache-level recordings (``kvsim-oracle/1``) on the very ``KvCache`` that the simulation uses.

A recording lists operations and what the real engine's cache answered. Everything it holds is compared: hits, tokens
moved, counters, occupancy after each op, the order of evictions and the tree where they were recorded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvsim.content import canonical, length
from kvsim.errors import TraceError
from kvsim.kv.cache import Holding, KvCache
from kvsim.kv.tiers import EngineFailure
from kvsim.rules.sglang import RULES, SglangParams, SglangRules
from kvsim.verify.clock import Delays

FORMAT = "kvsim-oracle/1"
COUNTERS = {
    "dem": "demoted", "drop": "dropped", "hev": "host_evicted", "hdup": "host_duplicates",
    "wt": "backed_up", "wfail": "write_failures", "lfail": "load_failures",
}
INPUTS = frozenset({"op", "r", "rs", "k", "chk", "chunk"})


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first difference: ``row`` (index of op or iteration, -1: the final tree), field, values, what was around."""

    row: int
    field: str
    expected: Any
    got: Any
    around: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What one replay compared: ``rows`` compared, ``of`` rows in the file, ``differing`` rows, the first mismatch.

    ``finding``: why the unrepaired engine fails at row ``rows`` (rule ``defects: keep``), else empty.
    """

    file: str
    rules: str
    rows: int
    of: int
    differing: int
    mismatch: Mismatch | None = None
    finding: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing differed."""
        return self.differing == 0


def rules_of(meta: dict[str, Any]) -> SglangRules:
    """Return the rule set of the engine version that a recording's ``meta`` names (absent: 0.5.9)."""
    engine = str(meta.get("engine", "sglang 0.5.9")).replace(" ", "-")
    if engine not in RULES:
        raise TraceError("meta.engine", None, f"no rules for '{meta['engine']}'; known: {', '.join(sorted(RULES))}")
    return RULES[engine]


def params_of(meta: dict[str, Any], rules: SglangRules | None = None) -> SglangParams:
    """Return the cache's parameters that a recording's ``meta`` states."""
    plain = meta.get("hicache_ratio") is None
    return SglangParams(
        rules=rules or rules_of(meta), page_size=meta["page_size"], device_tokens=meta["device_tokens"],
        host_tokens=0 if plain else meta["host_tokens"], eviction=meta["eviction"],
        write_policy="write_through" if plain else meta["write_policy"],
        radix_cache=not meta.get("radix_disabled", False),
    )


class CacheReplay:
    """One cache-level recording being replayed: the recording driver's rules, and the cache under them."""

    def __init__(self, recording: dict[str, Any], rules: SglangRules | None = None, **changes: Any) -> None:
        meta = recording["meta"]
        self.params = replace(params_of(meta, rules), **changes)
        self.cache = KvCache.from_params(self.params, Delays.of(meta))
        self.now = 0
        self.events: list[list[Any]] = []
        self.holdings = {int(key): _holding(request) for key, request in recording["requests"].items()}
        self._ops: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "check": self._check, "peek": self._peek, "admit": self._admit, "chunk": self._chunk,
            "prefilled": self._prefilled, "decode": self._decode, "finish": self._finish, "retract": self._retract,
            "evict": self._evict, "evict_host": self._evict_host,
        }

    def step(self, op: dict[str, Any]) -> dict[str, Any]:
        """Carry one operation out and return the fields the recording would hold."""
        self.now += 1
        self.events.clear()
        cache = self.cache
        before = [getattr(cache, name) for name in COUNTERS.values()]
        cache.on_event = self._note if "ev" in op else None
        got = self._ops[op["op"]](op)
        cache.stall_until = 0
        for (key, name), old in zip(COUNTERS.items(), before, strict=True):
            if change := getattr(cache, name) - old:
                got[key] = change
        got["s"] = [
            cache.device_used, cache.evictable, cache.protected, cache.host_used,
            cache.in_flight_writes, cache.in_flight_loads,
        ]
        if "ev" in op:
            got["ev"] = [list(event) for event in self.events]
        if "tree" in op:
            got["tree"] = cache.dump()
        return got

    def _note(self, kind: str, tokens: int, first: int) -> None:
        if kind == "demote":
            self.events.append(["dem", tokens, first])
        elif kind == "drop":
            self.events.append(["drop", tokens, first])
        elif kind == "host_evicted":
            self.events.append(["host", tokens, None])

    def _check(self, op: dict[str, Any]) -> dict[str, Any]:
        self.cache.poll(self.now)
        return {}

    def _peek(self, op: dict[str, Any]) -> dict[str, Any]:
        holding = self.holdings[op["r"]]
        match = self.cache.match(holding, holding.total - 1)
        return {"dev": match.device, "host": match.host}

    def _admit(self, op: dict[str, Any]) -> dict[str, Any]:
        cache, holding = self.cache, self.holdings[op["r"]]
        if op.get("chk"):
            cache.poll(self.now)
        match = cache.match(holding, holding.total - 1)
        got: dict[str, Any] = {"dev": match.device, "host": match.host}
        cache.lock(match.device_node)
        if holding.total - match.device + cache.page > cache.free + cache.evictable:
            cache.unlock(match.device_node)
            return got | {"adm": 0}
        loaded = 0
        if match.host:
            loaded = got["load"] = cache.load_back(match, holding, self.now)
        prefix = cache.hold(holding, match, loaded)
        cache.unlock(match.device_node)
        cache.start_loads(self.now)
        rest = holding.total - prefix
        chunk = op.get("chunk")
        if chunk and rest > chunk:
            rest = min(rest, max(chunk - chunk % cache.page, cache.page))
        self._extend(holding, prefix + rest)
        return got | {"adm": 1, "n": rest}

    def _extend(self, holding: Holding, end: int) -> None:
        cache = self.cache
        cache.make_room(end - holding.committed + (cache.page if cache.page > 1 else 0), self.now)
        cache.extend(holding, end)

    def _chunk(self, op: dict[str, Any]) -> dict[str, Any]:
        holding, size = self.holdings[op["r"]], op.get("n", 0)
        self.cache.checkpoint(holding, holding.committed, self.now, chunked=True)
        if size:
            self._extend(holding, holding.committed + size)
        return {"n": size, "prefix": holding.owned}

    def _prefilled(self, op: dict[str, Any]) -> dict[str, Any]:
        holding = self.holdings[op["r"]]
        self.cache.checkpoint(holding, holding.total, self.now, chunked=False)
        holding.outputs += 1
        self.cache.flush(self.now)
        return {"prefix": holding.owned}

    def _decode(self, op: dict[str, Any]) -> dict[str, Any]:
        cache, page = self.cache, self.cache.page
        batch = [self.holdings[r] for r in op["rs"]]
        done = 0
        while done < op["k"]:
            need = page * sum(holding.committed % page == 0 for holding in batch)
            cache.make_room(need, self.now)
            if cache.free < need:
                break
            cache.make_room(page * len(batch), self.now)
            for holding in batch:
                cache.extend(holding, holding.committed + 1)
                holding.outputs += 1
            done += 1
        if done:
            cache.flush(self.now)
        return {"done": done}

    def _finish(self, op: dict[str, Any]) -> dict[str, Any]:
        holding = self.holdings[op["r"]]
        committed = holding.committed
        self.cache.finish(holding, min(committed, holding.total), self.now)
        self.cache.flush(self.now)
        return {"kv": committed}

    def _retract(self, op: dict[str, Any]) -> dict[str, Any]:
        holding = self.holdings[op["r"]]
        committed = holding.committed
        self.cache.retract(holding, self.now)
        return {"kv": committed}

    def _evict(self, op: dict[str, Any]) -> dict[str, Any]:
        return {"ret": self.cache.evict(op["n"], self.now)}

    def _evict_host(self, op: dict[str, Any]) -> dict[str, Any]:
        freed = self.cache.evict_host(op["n"])
        return {"ret": freed} if "ret" in op else {}


def _holding(request: dict[str, Any]) -> Holding:
    prompt = canonical(request["in"])
    return Holding(prompt, length(prompt), request["out"], priority=request.get("priority", 0))


def differences(op: dict[str, Any], got: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (field, expected, got) of every field that differs; counters absent from an op are 0."""
    inputs = INPUTS | {"n"} if op["op"] in ("evict", "evict_host") else INPUTS
    names = [name for name in op if name not in inputs] + [name for name in got if name not in op]
    default = 0
    return [(n, op.get(n, default), got.get(n, default)) for n in names if op.get(n, default) != got.get(n, default)]


def replay_cache(
    recording: dict[str, Any], file: str = "", rules: SglangRules | None = None, **changes: Any
) -> ReplayResult:
    """Replay a cache-level recording and compare every field of every op and the final tree.

    The final tree of a ``truncated`` file was dumped inside the failing op and is not compared. Stops at the first
    differing op: what follows a difference says nothing.
    """
    player = CacheReplay(recording, rules, **changes)
    ops = recording["ops"]
    name = player.params.rules.name
    for index, op in enumerate(ops):
        try:
            got = player.step(op)
        except EngineFailure as failure:
            return ReplayResult(file, name, index, len(ops), 0, finding=str(failure))
        if found := differences(op, got):
            around = {"op": op, "got": got, "before": ops[max(0, index - 3):index], "tree": player.cache.dump()}
            return ReplayResult(file, name, index + 1, len(ops), 1, Mismatch(index, *found[0], around))
    if not recording["meta"].get("truncated"):
        tree = player.cache.dump()
        if tree != recording["final_tree"]:
            mismatch = Mismatch(-1, "final_tree", recording["final_tree"], tree)
            return ReplayResult(file, name, len(ops), len(ops), 1, mismatch)
    return ReplayResult(file, name, len(ops), len(ops), 0)


def replay_cache_file(path: Path, rules: SglangRules | None = None, **changes: Any) -> ReplayResult:
    """Replay the cache-level recording in ``path``; TraceError if it is none."""
    return replay_cache(load_recording(path, FORMAT), str(path), rules, **changes)


def load_recording(path: Path, *formats: str) -> dict[str, Any]:
    """Read a recording and check its format; TraceError names the file and what is wrong with it."""
    import msgspec

    try:
        recording = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(str(path), None, f"is not a readable recording: {error}") from None
    if not isinstance(recording, dict) or recording.get("format") not in formats:
        shown = recording.get("format") if isinstance(recording, dict) else type(recording).__name__
        raise TraceError(str(path), None, f"format is {shown!r}; expected {' or '.join(formats)}")
    return recording
