"""``simulate``: a resolved scenario in, a recording out. A pure function: equal scenarios give equal recordings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import simpy

from kvsim.cost.build import build_step_time
from kvsim.errors import Infeasible
from kvsim.record.recorder import UNFINISHED, Recorder
from kvsim.record.recording import Recording
from kvsim.sim.build import build_rank_links, build_scheduler
from kvsim.sim.engine import Engine
from kvsim.sim.source import Source, urgent_at

if TYPE_CHECKING:
    from kvsim.config.resolved import Resolved
    from kvsim.serving.port import Scheduler, Step
    from kvsim.serving.router import Router
    from kvsim.workload.spec import Client, RequestSpec

#: Simulated time between two progress reports at first; later a hundredth of the time so far, so that their number stays small.
PROGRESS_PS = 10_000_000_000_000


class Observer(Protocol):
    """Looks at a running simulation without changing it (``measure.misses.MissObserver``)."""

    def attach(self, replica: int, scheduler: Scheduler) -> None:
        """Learn of an engine before it starts."""

    def planned(self, replica: int, step: Step) -> None:
        """See a step that was planned."""


def simulate(
    resolved: Resolved,
    *,
    client: Client | None = None,
    progress: Callable[[int], None] | None = None,
    observer: Observer | None = None,
) -> Recording:
    """Run a scenario to its end (or horizon) and return its facts.

    ``client`` replaces the workload of the scenario (tests, lessons). ``observer`` looks on. With ``run.warm_start`` the caches are filled
    first and only what comes after is in the recording. ``progress`` is called with the number of requests ended, now and
    then. Raises Infeasible when the machine cannot exist (the capacity says why). Every request sent is accounted for: finished, refused,
    aborted or unfinished at the horizon.
    """
    if resolved.capacity.infeasible:
        raise Infeasible("; ".join(resolved.capacity.infeasible))
    from kvsim.record.warm import measured_part
    from kvsim.workload.warm import warmed

    sender, start_ps, words = warmed(client or _client_of(resolved), resolved.scenario.run.warm_start)
    machine = Machine(resolved, sender)
    if observer is not None:
        machine.watch(observer)
    machine.run(progress)
    recording = machine.seal()
    return measured_part(recording, start_ps, what=words) if start_ps else recording


def _client_of(resolved: Resolved) -> Client:
    from kvsim.workload.build import build_client

    return build_client(resolved.scenario.workload, seed=resolved.scenario.run.seed, clients=resolved.scenario.clients)


class Machine:
    """The simulated system: a source of requests, and one engine per replica behind a router."""

    def __init__(self, resolved: Resolved, client: Client) -> None:
        run = resolved.scenario.run
        self.resolved, self.client = resolved, client
        self.env = simpy.Environment(initial_time=0)
        self.recorder = Recorder(resolved.data)
        self.engines = [self._engine(replica, run.exact_steps) for replica in range(resolved.scenario.replicas)]
        self.source = Source(self.env, client, self._dispatch)
        for engine in self.engines:
            engine.source = self.source
        self.router = _router_of(resolved)
        self.horizon_ps = run.horizon_ps
        self.events = 0

    def _engine(self, replica: int, exact_steps: bool) -> Engine:
        links = build_rank_links(self.resolved)
        scheduler = build_scheduler(self.resolved, links)
        step_time = build_step_time(self.resolved)
        return Engine(self.env, scheduler, step_time, links, self.recorder, replica=replica, exact_steps=exact_steps)

    def watch(self, observer: Observer) -> None:
        """Let an observer see every engine."""
        for engine in self.engines:
            observer.attach(engine.replica, engine.scheduler)
            engine.observer = observer

    def _dispatch(self, specs: list[RequestSpec]) -> None:
        if self.router is None:
            deliver = self.engines[0].deliver
            for spec in specs:
                deliver(spec)
            return
        for spec in specs:
            loads = [engine.scheduler.counts() for engine in self.engines]
            self.engines[self.router.pick(spec, loads, int(self.env.now))].deliver(spec)

    def run(self, progress: Callable[[int], None] | None = None) -> None:
        """Let time pass until nothing is left to do, or to the horizon."""
        self.source.start()
        if progress is not None:
            self._report(progress)
        stop = None if self.horizon_ps is None else self.horizon_ps
        self._step_until(stop)
        if stop is not None and any(engine.live for engine in self.engines):
            urgent_at(self.env, stop, self._at_horizon)
            self._step_until(stop)

    def _at_horizon(self, _: object) -> None:
        for engine in self.engines:
            engine.stop()

    def _step_until(self, stop: int | None) -> None:
        env, queue, events = self.env, self.env._queue, self.events
        step = env.step
        while queue and (stop is None or queue[0][0] <= stop):
            step()
            events += 1
        self.events = events

    def _report(self, progress: Callable[[int], None]) -> None:
        def tell(_: object) -> None:
            progress(len(self.recorder.recording.requests))
            if any(engine.live for engine in self.engines) or self.client.next_send() is not None:
                now = int(self.env.now)
                urgent_at(self.env, now + max(PROGRESS_PS, now // 100), tell)

        urgent_at(self.env, PROGRESS_PS, tell)

    def seal(self) -> Recording:
        """Account for what is left and return the recording."""
        recording = self.recorder.recording
        end = max((row.end_ps or 0 for row in recording.requests), default=0)
        end = end if self.horizon_ps is None else max(end, min(self.horizon_ps, int(self.env.now)))
        for engine in self.engines:
            engine.scheduler.pending()  # brings the token counts of those still running up to date
            for request in engine.live.values():
                self.recorder.request(request, UNFINISHED, "still in the system at the horizon")
            self.recorder.transfers(engine.replica, engine.links.drain_completed())
        unsent = sum(1 for _ in self.client.unsent())
        recording.events = self.events
        recording.manifest.update(end_ps=end, unsent=unsent, sent=self.source.sent, events=self.events)
        said = [text for engine in self.engines for text in getattr(engine.time, "notes", list)()]
        if said:
            recording.manifest["notes"] = list(dict.fromkeys(said))
        describe = getattr(self.client, "describe", None)
        if describe is not None:
            recording.manifest["client"] = describe()
        return recording


def _router_of(resolved: Resolved) -> Router | None:
    if resolved.scenario.replicas == 1:
        return None
    from kvsim.serving.router import build_router

    return build_router(resolved.scenario.router, resolved.scenario.replicas, seed=resolved.scenario.run.seed)
