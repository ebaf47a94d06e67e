"""Why prompt tokens missed the cache: every missed token has exactly one cause, and the causes add up to the misses.

A *ghost* of each engine's tree remembers all content ever computed and how it was lost. At a request's first admission the part behind
its hit is looked up there:

====================  ==========================================================================================================
never seen            nobody computed this content behind this prefix before (compulsory)
rounding              the last token of a prompt is always computed, and matches end on whole pages
evicted               it left the device without a host copy
dropped from host     its host copy was evicted, and with it the content
load-back refused     it was in host RAM, but too short to load or no room could be made on the device
in progress           somebody is computing (or copying) it right now
on another rank       never seen here, but another replica or rank of DP attention has computed it
====================  ==========================================================================================================

The ghost sees the real cache's losses through ``KvCache.on_lost`` and admissions through the planned steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kvsim.content import Runs, common, cut, join
from kvsim.errors import ConfigError, InvariantError
from kvsim.workload.warm import TAG, first_of

if TYPE_CHECKING:
    from kvsim.config.resolved import Resolved

NEVER, ROUNDING, EVICTED, DROPPED, REFUSED, PROGRESS, ELSEWHERE = (
    "never_seen",
    "rounding",
    "evicted_without_copy",
    "dropped_from_host",
    "load_back_refused",
    "in_progress",
    "on_another_rank",
)
CAUSES = (NEVER, ROUNDING, EVICTED, DROPPED, REFUSED, PROGRESS, ELSEWHERE)
WORDS = {
    NEVER: "never seen before",
    ROUNDING: "last token or page rounding",
    EVICTED: "evicted without a copy",
    DROPPED: "dropped from host",
    REFUSED: "load-back refused",
    PROGRESS: "still being computed or copied",
    ELSEWHERE: "computed on another replica or rank",
}
LOSS = {"drop": EVICTED, "host_drop": DROPPED}
END = 1 << 62

REMEDIES = {
    EVICTED: "the device pool is too small and nothing keeps a copy: enable HiCache (engine.hicache.ratio) or copy earlier (write_through)",
    DROPPED: "host RAM is too small for what is used again: raise engine.hicache.ratio; `kvsim curve` shows how far it helps",
    REFUSED: "no device room for the load-back, or the hit is short: admit fewer requests (max_running_requests) or enlarge the pool",
    PROGRESS: "requests with the same prefix arrive before it is computed: let one go first (warm up shared prompts, schedule_policy lpm)",
    ELSEWHERE: "the turns of a session go to different caches: a router that follows them (router sticky or cache_aware), or fewer ranks",
    ROUNDING: "matches end on whole pages: use a smaller page_size",
}
UNAVOIDABLE = "most missed tokens were never seen before: no cache can help"


class _Node:
    __slots__ = ("cause", "children", "key", "size")

    def __init__(self, key: Runs, size: int, cause: str) -> None:
        self.key, self.size, self.cause = key, size, cause
        self.children: dict[int, _Node] = {}


class Ghost:
    """A radix tree without a limit; each node's ``cause`` says why its content would be missed now (in progress: present or coming)."""

    def __init__(self) -> None:
        self._roots: dict[str, _Node] = {}

    def _root(self, namespace: str) -> _Node:
        return self._roots.setdefault(namespace, _Node((), 0, PROGRESS))

    def mark(self, text: Runs, start: int, cause: str, namespace: str, *, only_new: bool = False) -> None:
        """Give the tokens of ``text`` from ``start`` on a cause; unknown ones are added. ``only_new``: known ones keep theirs."""
        node, at = self._root(namespace), 0
        while text:
            child = node.children.get(text[0][0])
            if child is None:
                size = sum(count for _, count in text)
                node.children[text[0][0]] = child = _Node(text, size, cause)
                return
            same = common(child.key, text)
            wanted = start - at if at < start < at + same else same
            if wanted < child.size:
                child = self._split(node, child, wanted)
            if at >= start and not only_new:
                child.cause = cause
            node, at = child, at + child.size
            text = cut(text, child.size, END)

    def _split(self, parent: _Node, child: _Node, at: int) -> _Node:
        upper = _Node(cut(child.key, 0, at), at, child.cause)
        child.key, child.size = cut(child.key, at, child.size), child.size - at
        upper.children[child.key[0][0]] = child
        parent.children[upper.key[0][0]] = upper
        return upper

    def look(self, text: Runs, namespace: str) -> Iterator[tuple[int, int, str]]:
        """Yield (from, to, cause) of the known part of ``text``, in order."""
        node, at = self._root(namespace), 0
        while text:
            child = node.children.get(text[0][0])
            if child is None:
                return
            same = common(child.key, text)
            yield at, at + same, child.cause
            if same < child.size:
                return
            node, at = child, at + same
            text = cut(text, same, END)


class _Watch:
    """The ghost of one cache, fed by its losses."""

    def __init__(self, cache: Any) -> None:
        self.ghost, self.page = Ghost(), cache.page
        self._cache = cache
        cache.on_lost = self.lost

    def lost(self, node: Any, kind: str) -> None:
        """Note that a node's last copy goes, with everything below it."""
        path = []
        step = node
        while step.parent is not None:
            path.append(step)
            step = step.parent
        if step is not self._cache.root:
            return  # below a node that was noted already
        prefix: Runs = ()
        for above in reversed(path[1:]):
            prefix = join(prefix, above.key)
        self._note(node, prefix, LOSS[kind], _namespace_of(path[-1]))

    def _note(self, node: Any, prefix: Runs, cause: str, namespace: str) -> None:
        stack = [(node, prefix)]
        while stack:
            lost, before = stack.pop()
            text = join(before, lost.key)
            self.ghost.mark(text, sum(count for _, count in before), cause, namespace)
            stack.extend((child, text) for child in lost.children.values())

    def admitted(self, request: Any, hit: int, refused: int) -> dict[str, int]:
        """Return the causes of a first admission's misses, and remember what it will compute."""
        spec = request.spec
        causes = dict.fromkeys(CAUSES, 0)
        causes[REFUSED] = refused
        self._classify(spec, hit + refused, causes)
        self._claim(spec, getattr(request, "length", spec.output_tokens))
        return causes

    def _classify(self, spec: Any, start: int, causes: dict[str, int]) -> None:
        known = list(self.ghost.look(spec.prompt, spec.namespace))
        end = known[-1][1] if known else 0
        limit = min(end, spec.prompt_tokens - 1)
        limit -= limit % self.page
        for low, high, cause in known:
            low = max(low, start)
            if high <= low:
                continue
            if cause != PROGRESS:
                causes[cause] += high - low
                continue
            inside = max(min(high, limit) - low, 0)
            causes[PROGRESS] += inside
            causes[ROUNDING] += high - low - inside
        causes[NEVER] += spec.prompt_tokens - max(end, start)

    def _claim(self, spec: Any, output: int) -> None:
        """Mark what this request will leave in the tree: whole pages of its prompt and its answer without the last token."""
        text = join(spec.prompt, ((spec.output_first, output - 1),)) if output > 1 else spec.prompt
        size = sum(count for _, count in text)
        whole = size - size % self.page
        if whole:
            self.ghost.mark(cut(text, 0, whole), 0, PROGRESS, spec.namespace)
        if whole < size:
            self.ghost.mark(text, whole, ROUNDING, spec.namespace, only_new=True)


def _namespace_of(top: Any) -> str:
    edge = top.edge
    return edge[0] if isinstance(edge, tuple) and edge and isinstance(edge[0], str) else ""


class MissObserver:
    """Watches one simulation; pass it to ``simulate(..., observer=...)`` and read ``summary()`` afterwards."""

    def __init__(self, resolved: Resolved) -> None:
        if resolved.family != "sglang":
            raise ConfigError(f"--misses: causes of misses are known for SGLang rules only, not for family '{resolved.family}'")
        self._capacity = resolved.capacity
        self._measured_from = first_of(resolved.scenario.run.warm_start or "") or 0
        self._watches: dict[tuple[int, int], _Watch] = {}
        self._anywhere = Ghost()  # what any replica or rank has computed
        self.causes: dict[str, dict[str, int]] = {}
        self._prompt: dict[str, int] = {}

    def attach(self, replica: int, scheduler: Any) -> None:
        """Watch the cache (or caches of ranks in lockstep) of one engine."""
        for rank, own in enumerate(getattr(scheduler, "ranks", None) or [scheduler]):
            self._watches[replica, rank] = _Watch(own.cache)

    def planned(self, replica: int, step: Any) -> None:
        """Look at the first admissions of a planned step."""
        for rank, own in enumerate(getattr(step, "ranks", None) or [step]):
            if own is None:
                continue
            watch = self._watches[replica, rank]
            for (request, prefix, _), hits in zip(own.prefills, own.hits, strict=True):
                if hits is None or request.spec.id in self.causes:
                    continue
                loaded = prefix - hits[0]
                causes = watch.admitted(request, prefix, hits[1] - loaded)
                if len(self._watches) > 1:
                    self._split_never(request.spec, causes)
                if sum(causes.values()) != request.spec.prompt_tokens - prefix:
                    raise InvariantError(f"causes of misses of {request.spec.id} do not add up: {causes}, prefix {prefix}")
                if request.spec.id.startswith(TAG) or request.arrival_ps < self._measured_from:
                    causes = dict.fromkeys(CAUSES, 0)  # a warm start is not counted
                self.causes[request.spec.id] = causes
                self._prompt[request.spec.id] = request.spec.prompt_tokens

    def _split_never(self, spec: Any, causes: dict[str, int]) -> None:
        """Tell what nobody has seen from what only another replica or rank has, and remember this prompt and its answer."""
        known = max((end for _, end, _ in self._anywhere.look(spec.prompt, spec.namespace)), default=0)
        elsewhere = max(0, known - (spec.prompt_tokens - causes[NEVER]))
        causes[ELSEWHERE] += elsewhere
        causes[NEVER] -= elsewhere
        text = join(spec.prompt, ((spec.output_first, spec.output_tokens - 1),)) if spec.output_tokens > 1 else spec.prompt
        self._anywhere.mark(text, 0, PROGRESS, spec.namespace)

    def summary(self) -> dict[str, Any]:
        """Return missed tokens by cause (in words, largest first, with remedies), the largest avoidable one and its remedy."""
        totals = {cause: sum(causes[cause] for causes in self.causes.values()) for cause in CAUSES}
        missed = sum(totals.values())
        ordered = sorted(CAUSES, key=lambda cause: (-totals[cause], CAUSES.index(cause)))
        avoidable = next((cause for cause in ordered if cause != NEVER and totals[cause] >= max(1, missed // 100)), None)
        return {
            "missed_tokens": missed,
            "prompt_tokens": sum(self._prompt.values()),
            "causes": [
                {"cause": WORDS[cause], "tokens": totals[cause], "remedy": self._remedy(cause) if cause == avoidable else ""}
                for cause in ordered
            ],
            "largest_avoidable": None if avoidable is None else WORDS[avoidable],
            "remedy": UNAVOIDABLE if avoidable is None else self._remedy(avoidable),
        }

    def _remedy(self, cause: str) -> str:
        if cause == EVICTED and self._capacity.host_tokens:
            return "content leaves the device before it is copied: write_policy write_through copies at first touch; or enlarge host RAM"
        return REMEDIES[cause]
