"""A small world to step through: the real scheduler and cache of one server, looked at after each of its decisions.

The machine is the same that ``simulate`` runs, with constant times and step by step; only its recorder is replaced by
one that takes a frame at every fact. Frames are plain data, so going back is an index.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvsim.errors import InputError
from kvsim.record.recorder import Recorder
from kvsim.web.script import Script, ScriptClient, parse

if TYPE_CHECKING:
    from kvsim.kv.cache import KvCache
    from kvsim.kv.tree import Node
    from kvsim.record.recording import Recording
    from kvsim.serving.port import Request

PS = 1e-12
MOST_FRAMES = 5_000
PLANNED = "the scheduler plans"

EVENTS = {
    "demote": "leaves the device, its host copy stays",
    "drop": "leaves the device and is lost",
    "host_drop": "leaves the host and is lost",
    "host_duplicate": "gives up its host copy",
    "restore": "is loaded back from the host",
    "backup": "is backed up to the host",
}


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node of the radix tree: ``start``: tokens before it on its path; ``where``: "device", "device and host",
    "host".
    """

    id: int
    parent: int
    start: int
    tokens: int
    label: str
    where: str
    locked: bool


@dataclass(frozen=True, slots=True)
class RequestView:
    """One request at one moment: ``state``: waiting, running, finished, refused, ..."""

    id: str
    state: str
    prompt_tokens: int
    device_hit: int
    host_hit: int
    output_done: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Frame:
    """The world at one moment: what just happened, and everything that can be seen."""

    number: int
    clock_s: float
    title: str
    events: tuple[str, ...]
    nodes: tuple[NodeView, ...]
    requests: tuple[RequestView, ...]
    device_used: int
    device_tokens: int
    host_used: int
    host_tokens: int


@dataclass(frozen=True, slots=True)
class Settings:
    """The knobs of a small world. Tokens and tokens per second; everything comes out even."""

    device_tokens: int = 1000
    host_tokens: int = 2000
    page_size: int = 1
    write_policy: str = "write_through"
    eviction: str = "lru"
    schedule_policy: str = "fcfs"
    max_running_requests: int = 4
    chunked_prefill_size: int | None = None
    prefill_tokens_per_s: float = 1000.0
    decode_step_s: float = 0.01
    link_tokens_per_s: float = 4000.0
    rules: str = "sglang-0.5.9"

    def scenario(self) -> dict[str, Any]:
        """Return the same world as a scenario (plain data): one rank, 1,000 bytes per token."""
        per_token = 1000
        rate = self.link_tokens_per_s * per_token
        return {
            "hardware": "8x-rtx-pro-6000",
            "model": "kimi-k2.5-int4",
            "engine": {
                "rules": self.rules,
                "tp": 1,
                "device_tokens": self.device_tokens,
                "kv_bytes_per_token": per_token,
                "page_size": self.page_size,
                "chunked_prefill_size": self.chunked_prefill_size or -1,
                "max_running_requests": self.max_running_requests,
                "schedule_policy": self.schedule_policy,
                "radix_eviction_policy": self.eviction,
                "disable_overlap_schedule": True,
                "length_limits": False,
                "hicache": {"host_tokens": self.host_tokens, "ratio": 0, "write_policy": self.write_policy},
            },
            "costs": {
                "kind": "constant",
                "prefill_tokens_per_s": self.prefill_tokens_per_s,
                "decode_step": self.decode_step_s,
            },
            "links": {"kind": "constant", "h2d": rate, "d2h": rate, "layerwise_overlap": False},
            "run": {"exact_steps": True},
        }


@dataclass
class World:
    """All frames of a small world, first to last, and its recording."""

    script: Script
    frames: list[Frame]
    recording: Recording

    def frame(self, number: int) -> Frame:
        """Return a frame by number; numbers beyond the ends give the first or last one."""
        return self.frames[max(0, min(number, len(self.frames) - 1))]


def build_world(text: str, settings: Settings | None = None) -> World:
    """Play a script in a small world and return its frames.

    Raises InputError for a bad script or one that runs too long, and what the engine itself refuses to start with.
    """
    from kvsim.config.load import load_data
    from kvsim.config.resolve import resolve
    from kvsim.sim.simulate import Machine

    script = parse(text)
    resolved = resolve(load_data((settings or Settings()).scenario(), [], "small world"))
    machine = Machine(resolved, _Announcer(script))
    watcher = Watcher(machine, script)
    machine.client.tell = watcher.note  # type: ignore[attr-defined]
    machine.run(None)
    watcher.take("the end")
    return World(script, watcher.frames, machine.seal())


class _Announcer(ScriptClient):
    """A script's client that tells of every request it sends."""

    def __init__(self, script: Script) -> None:
        super().__init__(script.specs)
        self._script = script
        self.tell: Any = lambda text: None

    def send(self, now: int) -> list[Any]:
        """Return what is due, announced."""
        specs = super().send(now)
        for spec in specs:
            self.tell(f"request {spec.id} arrives: {self._script.label(spec.prompt)}")
        return specs


@dataclass
class _Seen:
    events: list[str] = field(default_factory=list)
    ended: dict[str, RequestView] = field(default_factory=dict)


class Watcher(Recorder):
    """A recorder that also takes a frame of the world at each fact."""

    def __init__(self, machine: Any, script: Script) -> None:
        super().__init__(machine.resolved.data)
        self.script, self.machine = script, machine
        self.engine = machine.engines[0]
        self.cache_of: KvCache = self.engine.scheduler.cache
        self.frames: list[Frame] = []
        self._seen = _Seen()
        machine.recorder = self.engine.recorder = self
        self.cache_of.on_event = self._on_event
        self.take("the beginning")

    def note(self, text: str) -> None:
        """Remember something that happened, for the next frame."""
        self._seen.events.append(text)

    def _on_event(self, kind: str, tokens: int, first: int) -> None:
        if kind in EVENTS:
            self.note(f"{tokens} tokens of {self.script.name_of(first)}: the node {EVENTS[kind]}")

    def request(self, request: Request, status: str | None = None, reason: str = "") -> None:
        """Record the end of a request, and note it."""
        super().request(request, status, reason)
        state = status or request.status
        self._seen.ended[request.spec.id] = _view(request, state)
        self.note(f"request {request.spec.id} {state}" + (f": {reason or request.reason}" if reason or request.reason else ""))

    def cache(self, replica: int, now: int, occupancy: Any) -> None:
        """Record the cache counters; take a frame if something happened while the next step was planned."""
        super().cache(replica, now, occupancy)
        if self._seen.events:
            self.take(PLANNED)

    def step(self, row: tuple[Any, ...]) -> None:
        """Record a step and take a frame after it."""
        super().step(row)
        clock = int(self.machine.env.now) * PS
        if self.frames[-1].title == PLANNED and self.frames[-1].clock_s == round(clock, 12):  # seen while settling this step
            self._seen.events[:0] = self.frames.pop().events
        kind, prefills, new, cached, batch, load = row[1], row[7], row[8], row[9], row[5], row[10]
        parts = [f"{kind} step ended"]
        if prefills:
            parts.append(f"{prefills} prompt{'s' if prefills > 1 else ''}, {new} tokens computed, {cached} found in the cache")
        if load:
            parts.append(f"{load} of them loaded back")
        if batch:
            parts.append(f"{batch} request{'s' if batch > 1 else ''} got a token")
        self.take("; ".join(parts))

    def take(self, title: str) -> None:
        """Take a frame of the world as it is now."""
        if len(self.frames) >= MOST_FRAMES:
            raise InputError(f"the script runs for more than {MOST_FRAMES:,} frames: make outputs shorter")
        cache, events = self.cache_of, tuple(self._seen.events)
        self._seen.events.clear()
        views = [
            *self._seen.ended.values(),
            *(_view(r, "waiting" if r.status == "queued" else r.status) for r in self.engine.live.values()),
        ]
        self.frames.append(
            Frame(
                number=len(self.frames),
                clock_s=round(int(self.machine.env.now) * PS, 12),
                title=title,
                events=events,
                nodes=tuple(walk(cache, self.script)),
                requests=tuple(sorted(views, key=lambda view: int(view.id))),
                device_used=cache.device_used,
                device_tokens=cache.device_tokens,
                host_used=cache.host_used,
                host_tokens=cache.host_tokens,
            )
        )


def _view(request: Request, state: str) -> RequestView:
    spec = request.spec
    return RequestView(
        spec.id,
        state,
        spec.prompt_tokens,
        request.device_hit,
        request.host_hit,
        request.output_done,
        spec.output_tokens,
    )


def walk(cache: KvCache, script: Script) -> list[NodeView]:
    """Return the tree's nodes depth first, children in order of their content."""
    out: list[NodeView] = []
    stack: list[tuple[Node, int]] = [(cache.root, 0)]
    while stack:
        node, start = stack.pop()
        if node.parent is not None:
            where = ("device and host" if node.host else "device") if node.device else "host"
            out.append(NodeView(node.id, node.parent.id, start, node.size, script.label(node.key), where, node.locked > 0))
        stack += [(child, start + node.size) for child in sorted(node.children.values(), key=lambda n: n.key, reverse=True)]
    return out
