"""One replica in simulated time: the loop around plan and settle, and the closed-form run of decode steps.

Overlap off:  plan -> [step] -> settle -> plan ...
Overlap on:   plan(k+1) at the end of step k-1, while step k runs; step k+1 starts when step k ends.

One SimPy event per decision: a prefill or mixed step, a run of decode steps, idle waiting. An arrival interrupts a run
only if it could change the next plan.
"""

from __future__ import annotations

import copy
from collections.abc import Generator
from typing import TYPE_CHECKING

from simpy.events import Event, Process
from simpy.exceptions import Interrupt

from kvsim.errors import InvariantError
from kvsim.serving.lockstep import LockstepStep
from kvsim.serving.port import ABORTED, FINISHED, REFUSED, Request, Settled, Step
from kvsim.sim.rank_links import RankLinks, links_of_rank
from kvsim.sim.source import urgent_at

if TYPE_CHECKING:
    from simpy import Environment

    from kvsim.cost.links import Links
    from kvsim.cost.port import StepTime
    from kvsim.record.recorder import Recorder
    from kvsim.serving.port import Scheduler
    from kvsim.sim.simulate import Observer
    from kvsim.sim.source import Source
    from kvsim.workload.spec import RequestSpec

#: A plan that gives nothing although work is left is asked again at once this often (an engine's bubble iterations); after
#: that the engine waits for the next copy or arrival.
MAX_BUBBLES = 4

Wait = Generator[Event, object, None]


class InFlight:
    """A step on its way through the GPU: when it could start, and (once known) when it started and ended."""

    __slots__ = ("context", "end", "exposed", "ready", "start", "step", "steps")

    def __init__(self, step: Step, ready: int) -> None:
        self.step = step
        self.ready = ready
        self.context = step.sum_context
        self.start = 0
        self.end = -1
        self.exposed = 0
        self.steps = 1


class Engine:
    """Drives one scheduler through simulated time and leaves its facts with the recorder."""

    def __init__(
        self,
        env: Environment,
        scheduler: Scheduler,
        step_time: StepTime,
        links: Links | RankLinks,
        recorder: Recorder,
        *,
        replica: int = 0,
        exact_steps: bool = False,
    ) -> None:
        self.env, self.scheduler, self.time, self.links, self.recorder = env, scheduler, step_time, links, recorder
        self.replica, self.exact_steps = replica, exact_steps
        self.source: Source | None = None
        self.observer: Observer | None = None
        self.live: dict[str, Request] = {}
        self._idle: Event | None = None
        self._cuttable = False
        self._stopping = False
        self._gpu_free = 0
        self._last_emit = 0
        self._joined: list[Request] = []
        self.process: Process = env.process(self._run())

    # ------------------------------------------------------------------ arrivals
    def deliver(self, spec: RequestSpec) -> None:
        """Take a request that a client sent now: it is queued, or refused at once."""
        now = int(self.env.now)
        matters = self._cuttable and self.scheduler.arrival_matters()
        request = self.scheduler.submit(spec, now)
        request.replica = self.replica
        if request.status == REFUSED:
            request.end_ps = now
            self._end(request)
            return
        self.live[spec.id] = request
        if spec.timeout_ps is not None:
            urgent_at(self.env, now + spec.timeout_ps, lambda _: self._give_up(request))
        self._wake(matters)

    def _give_up(self, request: Request) -> None:
        """Take a client's word that it no longer waits for a request."""
        if request.end_ps is not None:
            return
        self.scheduler.abort(request, int(self.env.now))
        if request.status == ABORTED:
            request.end_ps = int(self.env.now)
            self._end(request)
            if self.source is not None:
                self.source.rearm()
            self._wake(self._cuttable)  # whoever stood behind it may be admitted by the next plan
        else:
            self._wake(self._cuttable)

    def stop(self) -> None:
        """The horizon is here: a run of decode steps ends with its last complete step."""
        self._stopping = True
        if self._cuttable:
            self._cuttable = False
            self.process.interrupt()

    def _wake(self, cut: bool) -> None:
        if self._idle is not None:
            idle, self._idle = self._idle, None
            idle.succeed()
        elif cut:
            self._cuttable = False
            self.process.interrupt()

    def _end(self, request: Request) -> None:
        self.live.pop(request.spec.id, None)
        self.recorder.request(request)
        if self.source is not None:
            self.source.ended(request.spec.id, request.status == FINISHED)

    # ------------------------------------------------------------------ the loop
    def _run(self) -> Wait:
        overlap = self.scheduler.overlap
        previous: InFlight | None = None
        bubbles = 0
        while True:
            now = int(self.env.now)
            step = self.scheduler.plan(now)
            self.recorder.cache(self.replica, now, self.scheduler.occupancy)
            if self.scheduler.ended:
                self._take_ended()
            if step is not None:
                bubbles = 0
                self._note_retracted(step)
                if self.observer is not None and step.prefills:
                    self.observer.planned(self.replica, step)
                current = InFlight(step, max(now, step.blocked_until))
                if step.blocked_until > now:
                    yield self.env.timeout(step.blocked_until - now)
                if not overlap:
                    if step.kind == "decode":
                        yield from self._decode_run(current)
                    elif (ending := self._ending(current)) is not None:
                        yield ending
                    self._settle(current)
                    continue
                if previous is not None and step.kind == "decode" and previous.step.kind == "decode" and not self.exact_steps:
                    current, previous = yield from self._overlapped_run(current, previous)
            else:
                current = None
            if previous is not None:
                if (ending := self._ending(previous)) is not None:
                    yield ending
                self._settle(previous)
                previous = current
                continue
            previous = current
            if current is None:
                bubbles += 1
                yield from self._rest(now, bubbles)
                if self._idle is None and int(self.env.now) > now:
                    bubbles = 0

    def _rest(self, now: int, bubbles: int) -> Wait:
        """Idle: wait for an arrival, or for a copy that a blocked queue depends on."""
        self.scheduler.idle(now)
        if self.scheduler.has_work():
            if bubbles <= MAX_BUBBLES + getattr(self.scheduler, "idle_passes", 0):
                return
            soon = self.links.next_done(now)
            if soon is None:
                raise InvariantError(f"engine {self.replica} has work at {now} ps but can never plan it: {self.scheduler.counts()}")
            yield self.env.timeout(max(soon - now, 1))
            return
        self._idle = Event(self.env)
        yield self._idle

    def _take_ended(self) -> None:
        """Account for requests that a plan itself ended (no memory even for the last one)."""
        ended = list(self.scheduler.ended)
        self.scheduler.ended.clear()
        for request in ended:
            self._end(request)
        if self.source is not None:
            self.source.rearm()

    # ------------------------------------------------------------------ time
    def _price(self, flight: InFlight) -> None:
        """Fix when a step starts and ends; the exposed wait is what a load adds to its compute."""
        if flight.end >= 0:
            return
        step = flight.step
        start = flight.ready if flight.ready > self._gpu_free else self._gpu_free
        end, flight.exposed = self._step_end(step, start)
        flight.start, flight.end = start, end
        self._gpu_free = end
        for request in step.admitted:
            if request.admitted_ps is None:
                request.admitted_ps = start
        if flight.exposed or step.load_tokens:
            self._note_load(flight)

    def _step_end(self, step: Step, start: int, rank: int = 0) -> tuple[int, int]:
        """Return when a step that starts at ``start`` ends, and how much of that is an exposed wait for a load."""
        if isinstance(step, LockstepStep):
            ends = [self._step_end(own, start, number) for number, own in enumerate(step.ranks) if own is not None]
            return max(end for end, _ in ends), max(exposed for _, exposed in ends)
        if step.kind == "decode":
            compute = self.time.decode_ps(step.decode_batch, step.sum_context)
        else:
            compute = self.time.prefill_ps(
                step.new_tokens, step.pairs2, step.cached_tokens, len(step.prefills), step.decode_batch, step.sum_context, step.max_context
            )
        if step.load_ticket is None:
            return start + compute, 0
        end = links_of_rank(self.links, rank).finish_with_load(step.load_ticket, start, compute, self.time.layers)
        return end, end - start - compute

    def _note_load(self, flight: InFlight) -> None:
        for request, _, _ in flight.step.prefills:
            if request.first_token_ps is None:
                request.load_wait_ps += flight.exposed
        for rank, step in enumerate(flight.step.ranks if isinstance(flight.step, LockstepStep) else [flight.step]):
            if step is None or step.load_ticket is None:
                continue
            duration = links_of_rank(self.links, rank).duration(step.load_ticket)
            for request in step.admitted:
                if request.host_hit:
                    request.load_ps += duration

    def _ending(self, flight: InFlight) -> Event | None:
        """Return the event of a step's end, None if that is over."""
        self._price(flight)
        left = flight.end - int(self.env.now)
        return self.env.timeout(left) if left > 0 else None

    def _decode_run(self, flight: InFlight) -> Wait:
        """Overlap off: one event for the planned decode step and all quiet iterations after it."""
        more = 0 if self.exact_steps else self.scheduler.quiet(None)
        if more <= 0:
            if (ending := self._ending(flight)) is not None:
                yield ending
            return
        step = flight.step
        batch, context = step.decode_batch, step.sum_context
        start = max(flight.ready, self._gpu_free)
        steps = yield from self._pass_steps(start, batch, context, more + 1)
        if steps > 1:
            self.scheduler.advance(steps - 1, step)
        flight.start, flight.steps = start, steps
        flight.end = self._gpu_free = start + self.time.decode_run_ps(batch, context, steps)

    def _overlapped_run(self, current: InFlight, previous: InFlight) -> Generator[Event, object, tuple[InFlight, InFlight]]:
        """Overlap on: the outstanding decode step, the planned one and all quiet iterations after it in one event."""
        more = self.scheduler.quiet(previous.step)
        if more <= 0:
            return current, previous
        self._price(previous)
        if current.ready > previous.end:  # the plan was blocked by copies for longer than the step before it ran
            return current, previous
        step = current.step
        batch, context = step.decode_batch, step.sum_context
        base = previous.end
        steps = yield from self._pass_steps(base, batch, context, more)
        if steps <= 0:
            return current, previous
        self._record_step(previous, previous.step.decode_batch)
        self._emit_gaps(previous.end, batch)
        outstanding = InFlight(copy.copy(step), base)
        outstanding.start, outstanding.steps = base, steps
        outstanding.end = self._gpu_free = base + self.time.decode_run_ps(batch, context, steps)
        self.scheduler.advance(steps, step)
        return InFlight(step, current.ready), outstanding

    def _pass_steps(self, base: int, batch: int, context: int, steps: int) -> Generator[Event, object, int]:
        """Let up to ``steps`` decode steps pass from ``base`` on; return how many, cut short by an arrival that matters."""
        end = base + self.time.decode_run_ps(batch, context, steps)
        self._cuttable = True
        try:
            yield self.env.timeout(end - int(self.env.now))
        except Interrupt:
            elapsed = int(self.env.now) - base
            fewest = 0 if self.scheduler.overlap else 1
            steps = max(fewest, self.time.decode_steps_until(batch, context, steps, elapsed)) if elapsed > 0 else fewest
            if self._stopping and steps > fewest and base + self.time.decode_run_ps(batch, context, steps) > int(self.env.now):
                steps -= 1  # the step at work is not complete at the horizon
            if steps:
                yield self.env.timeout(max(0, base + self.time.decode_run_ps(batch, context, steps) - int(self.env.now)))
        self._cuttable = False
        return steps

    # ------------------------------------------------------------------ facts
    def _settle(self, flight: InFlight) -> None:
        now = flight.end
        settled = self.scheduler.settle(flight.step, now)
        self.recorder.cache(self.replica, now, self.scheduler.occupancy)
        self._record_step(flight, settled.emitted + (flight.steps - 1) * flight.step.decode_batch)
        self._note_tokens(flight, settled)
        for request in settled.finished:
            self._end(request)
        if settled.finished and self.source is not None:
            self.source.rearm()

    def _note_tokens(self, flight: InFlight, settled: Settled) -> None:
        if not settled.emitted:
            return
        fresh = len(settled.first) + len(settled.again)
        decoded = settled.emitted - fresh
        if settled.sequences and decoded > settled.sequences:  # speculation: the tokens of one step reach a client together
            self.recorder.gap(self.replica, flight.end, 0, decoded - settled.sequences)
            decoded = settled.sequences
        if flight.step.kind != "prefill" and decoded > 0:
            if flight.steps == 1:
                self._emit_gaps(flight.end, decoded)
            else:
                self._emit_run(flight, decoded)
        for request in settled.again:
            if request.last_token_ps is not None:
                self.recorder.gap(self.replica, flight.end, flight.end - request.last_token_ps, 1)
            request.last_token_ps = flight.end
        for request in settled.first:
            request.last_token_ps = flight.end
        if fresh:
            self._joined.extend(settled.first)
            self._joined.extend(settled.again)

    def _emit_gaps(self, end: int, decoded: int) -> None:
        """Record the gaps before the tokens emitted at ``end``: newcomers count from their own last token."""
        if self._joined:
            for request in self._joined:
                if request.last_token_ps is not None and (request.end_ps is None or request.end_ps >= end):
                    self.recorder.gap(self.replica, end, end - request.last_token_ps, 1)
                    decoded -= 1
            self._joined.clear()
        if decoded > 0:
            self.recorder.gap(self.replica, end, end - self._last_emit, decoded)
        self._last_emit = end

    def _emit_run(self, flight: InFlight, decoded: int) -> None:
        """Record the gaps of a run of decode steps: the first counts from what was emitted before, the last emits ``decoded`` tokens."""
        batch, end, left = flight.step.decode_batch, flight.start, flight.steps
        for count, first, slope in self.time.decode_segments(batch, flight.context, flight.steps):
            if left == flight.steps:
                end += first
                self._emit_gaps(end, batch)
                count, first, left = count - 1, first + slope, left - 1
            plain = count - (left == count and decoded != batch)
            if plain:
                self.recorder.gap(self.replica, end + first, first, batch, plain, slope)
            if plain < count and decoded > 0:
                self.recorder.gap(self.replica, flight.end, first + slope * plain, decoded)
            end += count * first + slope * (count * (count - 1) // 2)
            left -= count
        self._last_emit = flight.end

    def _note_retracted(self, step: Step) -> None:
        for request in step.retracted:
            request.last_token_ps = self._last_emit if request not in self._joined else request.last_token_ps
            if request in self._joined:
                self._joined.remove(request)

    def _record_step(self, flight: InFlight, emitted: int) -> None:
        step, occupancy = flight.step, self.scheduler.occupancy
        running, waiting = self.scheduler.counts()
        self.recorder.step(
            (
                self.replica, step.kind, flight.start, flight.end, flight.steps, step.decode_batch, flight.context, len(step.prefills), step.new_tokens,
                step.cached_tokens, step.load_tokens, flight.exposed, running, waiting, occupancy.device_used, occupancy.device_evictable,
                occupancy.host_used, emitted, len(step.retracted),
            )
        )  # fmt: skip
