"""Closed-loop clients: recorded sessions with think times, a limit of requests in flight, SGLang's multi-turn benchmark client."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any

from kvsim.content import Runs, common, cut, join
from kvsim.rng import stream
from kvsim.workload.clients import Session, Sessions
from kvsim.workload.spec import Client, RequestSpec

if TYPE_CHECKING:
    from kvsim.workload.agents import Agents
    from kvsim.workload.streamed import Scan, StreamedSessions


#: Longer traces are streamed where they can be read twice.
MOST_HELD = 50_000


def recorded_sessions(
    specs: Iterable[RequestSpec], rate_scale: float, *, outputs_cached: bool = True, think_ps: int | None = None,
    again: Callable[[], Iterable[RequestSpec]] | None = None, most: int = MOST_HELD,
) -> tuple[Sessions | StreamedSessions | Agents, str]:
    """Return a closed loop over a trace's sessions, and which think times it keeps.

    ``Agents`` if requests wait for other sessions' requests. With ``again`` (which reads the trace once more), one of more than ``most``
    requests is streamed.

    A turn leaves when the *simulated* answer before it has ended and its think time has passed: the recorded one (next start - recorded
    end, or the trace's own think_time), else ``think_ps``; a trace with neither keeps start-to-start gaps, which count service twice.
    First turns keep their recorded times (divided by ``rate_scale``). The simulated output stands in the next prompt where it fits.
    """
    specs, scan = _held(specs, think_ps, again, most)
    if scan is not None and again is not None:
        from kvsim.workload.streamed import StreamedSessions

        streamed = StreamedSessions(again(), scan, rate_scale, outputs_cached=outputs_cached, think_ps=think_ps)
        return streamed, streamed.kept
    if any(spec.after for spec in specs):
        from kvsim.workload.agents import Agents

        agents = Agents(specs, rate_scale, outputs_cached=outputs_cached, think_ps=think_ps)
        return agents, agents.kept
    grouped: dict[str, list[RequestSpec]] = {}
    for spec in specs:
        grouped.setdefault(spec.session or f"\0{spec.id}", []).append(spec)
    sources = set()
    sessions = []
    for turns in grouped.values():
        thinks = []
        for before, after in pairwise(turns):
            think, source = think_of(before.arrival_ps, before.recorded_end_ps, after, think_ps)
            thinks.append(think)
            sources.add(source)
            if outputs_cached:
                after.prompt = with_answer(before, after)
        turns[0].arrival_ps = round(turns[0].arrival_ps / rate_scale)
        sessions.append(Session(turns, thinks))
    sessions.sort(key=lambda session: session.turns[0].arrival_ps)
    return Sessions(sessions), ", ".join(sorted(sources)) or "no second turns"


def _held(
    specs: Iterable[RequestSpec], think_ps: int | None, again: Callable[[], Iterable[RequestSpec]] | None, most: int
) -> tuple[list[RequestSpec], Scan | None]:
    """Return all requests, or a scan of them if they are more than ``most``, can be read again and wait for their own sessions only."""
    if again is None:
        return list(specs), None
    rows = iter(specs)
    held = list(islice(rows, most + 1))
    if len(held) <= most:
        return held, None
    from kvsim.workload.streamed import Scan

    scan = Scan(think_ps)
    for spec in chain(held, rows):
        scan.add(spec)
    return (list(again()), None) if scan.agents else ([], scan)


def think_of(began: int, ended: int | None, after: RequestSpec, given: int | None) -> tuple[int, str]:
    """Return the think time (ps) before a turn, and where it comes from. ``began``, ``ended``: when the turn before it did, as recorded."""
    if given is not None:
        return given, "clients.think_time"
    if after.think_ps is not None:
        return after.think_ps, "the trace's think times"
    if ended is not None:
        return max(after.arrival_ps - ended, 0), "recorded: next start - recorded end"
    return max(after.arrival_ps - began, 0), "start-to-start gaps (no recorded ends: service is counted twice)"


def with_answer(before: RequestSpec, after: RequestSpec) -> Runs:
    """Return the later prompt with the earlier answer's own tokens in their place, if the earlier prompt is its beginning and there is room."""
    size = before.prompt_tokens
    if after.prompt_tokens < size + before.output_tokens or common(before.prompt, after.prompt) < size:
        return after.prompt
    rest = cut(after.prompt, size + before.output_tokens, after.prompt_tokens)
    return join(join(cut(after.prompt, 0, size), ((before.output_first, before.output_tokens),)), rest)


class Limited:
    """At most ``limit`` requests in flight: a late one is sent as soon as one ends, and its latency counts from then."""

    def __init__(self, inner: Client, limit: int) -> None:
        self.inner, self.limit, self.in_flight = inner, limit, 0
        self._now = 0  # when a place was last freed: a late request leaves then, not in the past
        self._held: deque[RequestSpec] = deque()

    def next_send(self) -> int | None:
        """Return when the next request leaves; None while the limit is reached."""
        if self.in_flight >= self.limit:
            return None
        wanted = self._held[0].arrival_ps if self._held else self.inner.next_send()
        return None if wanted is None else max(wanted, self._now)

    def send(self, now: int) -> list[RequestSpec]:
        """Return what is due and allowed."""
        out = []
        while self.in_flight < self.limit:
            if not self._held:
                wanted = self.inner.next_send()
                if wanted is None or wanted > now:
                    break
                self._held.extend(self.inner.send(now))
                continue
            spec = self._held.popleft()
            spec.arrival_ps = now
            self.in_flight += 1
            out.append(spec)
        return out

    def ended(self, request_id: str, now: int, ok: bool) -> None:
        """Free a place."""
        self.in_flight -= 1
        self._now = now
        self.inner.ended(request_id, now, ok)

    def unsent(self) -> Iterator[RequestSpec]:
        """Yield what was never sent."""
        yield from self._held
        yield from self.inner.unsent()

    def describe(self) -> str:
        """Return what is kept and limited."""
        inner = getattr(self.inner, "describe", lambda: "requests")()
        return f"{inner}; at most {self.limit} in flight, late ones leave when one ends"


class BenchClient:
    """SGLang's bench_multiturn: one sender loop over a ready queue.

    If fewer than ``max_parallel`` are in flight it pops one ready request (if there is one) and sends it, then always sleeps
    Exp(mean 1/rate); at the limit it looks again after 50 ms. With the round barrier the requests of the next round become ready only
    when all clients have finished the round. Source: groundtruth notes of the project, section 1 (2026).
    """

    LOOK_AGAIN_PS = 50_000_000_000

    def __init__(self, recipe: Any, seed: int) -> None:
        self.recipe = recipe
        self._sleep, self._choice = stream(seed, "sleep"), stream(seed, "ready")
        factor = recipe.length_factor
        self._first = round(recipe.request_length * factor)
        self._question = round((recipe.question_length or recipe.request_length) * factor)
        self._output = recipe.output_length
        self._history: list[Runs] = [() for _ in range(recipe.clients)]
        self._round = [0] * recipe.clients
        self._fresh = 1 << 40
        self._ready: list[RequestSpec] = [self._request(i) for i in range(recipe.clients)]
        self._next_round: list[RequestSpec] = []
        self._in_flight = 0
        self._wake = 0
        self._left = recipe.clients * recipe.rounds
        self._unsent = self._left
        self._round_open = recipe.clients

    def _take(self, tokens: int) -> int:
        first = self._fresh
        self._fresh += tokens + 1
        return first

    def _request(self, client: int) -> RequestSpec:
        number = self._round[client]
        new = self._first if number == 0 else self._question
        prompt = join(self._history[client], ((self._take(new), new),))
        answer = self._take(self._output)
        size = sum(count for _, count in prompt)
        self._history[client] = join(prompt, ((answer, self._output),))
        return RequestSpec(f"c{client}r{number}", 0, prompt, size, self._output, answer, session=f"c{client}", turn=number, ignore_eos=True)

    def next_send(self) -> int | None:
        """Return when the sender looks again, or None when everything has been sent."""
        return self._wake if self._unsent else None

    def send(self, now: int) -> list[RequestSpec]:
        """Let the sender look once."""
        if self._in_flight >= self.recipe.max_parallel:
            self._wake = now + self.LOOK_AGAIN_PS
            return []
        out = []
        if self._ready:
            at = self._choice.randrange(len(self._ready)) if self.recipe.ready_queue == "random" else 0
            spec = self._ready.pop(at)
            spec.arrival_ps = now
            self._in_flight += 1
            self._unsent -= 1
            out.append(spec)
        self._wake = now + max(round(self._sleep.expovariate(self.recipe.request_rate) * 1e12), 1)
        return out

    def ended(self, request_id: str, now: int, ok: bool) -> None:
        """Make the client's next round ready (with the barrier: when all have finished this one)."""
        self._in_flight -= 1
        client = int(request_id[1 : request_id.index("r")])
        self._round[client] += 1
        self._round_open -= 1
        if self._round[client] < self.recipe.rounds:
            following = self._request(client)
            (self._next_round if self.recipe.round_barrier else self._ready).append(following)
        if self.recipe.round_barrier and self._round_open == 0:
            self._round_open = self.recipe.clients
            self._ready = [*self._ready, *self._next_round]
            self._next_round = []

    def unsent(self) -> Iterator[RequestSpec]:
        """Yield what was never sent."""
        yield from self._ready
        yield from self._next_round

    def describe(self) -> str:
        """Return what the client does."""
        barrier = " with a barrier between rounds" if self.recipe.round_barrier else ""
        return f"closed loop: bench_multiturn{barrier}, {self.recipe.ready_queue} ready queue, at most {self.recipe.max_parallel} in flight"
