"""The seam between an engine's rules (serving/, kv/) and the machine that lets time pass (sim/).

An engine family supplies one ``Scheduler``. The machine drives it in one of two loops:

* overlap off:  plan -> the step's time passes -> settle -> plan ...
* overlap on:   plan k+1 is made when step k-1 has been settled, that is while step k runs;
                step k+1 starts on the GPU when step k ends; then step k is settled, and so on.
  (SGLang event_loop_overlap, vLLM asynchronous scheduling.)

Closed form: after a plan that gave a decode step the machine may ask ``quiet()`` how many further iterations would
do nothing but "settle the outstanding result, plan the same decode batch again", choose m <= that number (an arrival
can shorten it) and call ``advance(m)``, which has exactly the effect of those m iterations. ``run: {exact_steps: true}``
never calls it; both give bit-equal results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.workload.spec import RequestSpec

QUEUED, RUNNING, FINISHED, REFUSED, ABORTED = "queued", "running", "finished", "refused", "aborted"


class Request:
    """The state of one request that every engine family shares. Times are ps, None until they happened.

    ``device_hit``, ``host_hit``: prompt tokens served from each tier at the *first* admission (decisions.md 9);
    ``recompute_hit``: hit tokens of admissions after a retraction, counted apart; ``retractions``: how often it lost its KV;
    ``retracted_tokens``: computed tokens thrown away by retractions.
    """

    __slots__ = (
        "admitted_ps",
        "arrival_ps",
        "device_hit",
        "end_ps",
        "first_token_ps",
        "host_hit",
        "last_token_ps",
        "load_ps",
        "load_wait_ps",
        "output_done",
        "reason",
        "recompute_hit",
        "replica",
        "retracted_tokens",
        "retractions",
        "spec",
        "status",
    )

    def __init__(self, spec: RequestSpec, now: int) -> None:
        self.spec = spec
        self.status = QUEUED
        self.reason = ""
        self.output_done = 0
        self.arrival_ps = now
        self.admitted_ps: int | None = None
        self.first_token_ps: int | None = None
        self.end_ps: int | None = None
        self.device_hit = 0
        self.host_hit = 0
        self.recompute_hit = 0
        self.retractions = 0
        self.retracted_tokens = 0
        self.load_wait_ps = 0
        self.load_ps = 0
        self.last_token_ps: int | None = None
        self.replica = 0


class Step:
    """One engine iteration that runs on the GPU, reduced to what costs time.

    ``new_tokens`` P: prompt tokens computed. ``pairs2``: 2 x sum over prefill requests of new * (cached + (new + 1) / 2),
    an integer: new * (2 * cached + new + 1). ``cached_tokens`` X: context already there of the prefill requests. ``prefills``: (request, prefix, new) triples.
    ``decode_batch`` D, ``sum_context`` S, ``max_context`` C: sequences that decode one token, tokens their attention reads in this
    step, and the longest of them. ``load_ticket``: the host-to-device copy this step's layers must wait for, or None.
    ``load_tokens``: its tokens. ``blocked_until``: write_back copies that block the scheduler before launch (ps, 0: none).
    """

    __slots__ = (
        "admitted",
        "blocked_until",
        "cached_tokens",
        "decode_batch",
        "kind",
        "load_ticket",
        "load_tokens",
        "max_context",
        "new_tokens",
        "pairs2",
        "prefills",
        "requests",
        "retracted",
        "sum_context",
    )

    def __init__(self, kind: str) -> None:
        self.kind = kind  # "prefill" | "decode" | "mixed" | "idle"
        self.prefills: list[tuple[Request, int, int]] = []
        self.requests: list[Request] = []
        self.admitted: list[Request] = []  # requests admitted (first or again) by this step
        self.retracted: list[Request] = []  # lost their KV while this step was planned
        self.new_tokens = 0
        self.pairs2 = 0
        self.cached_tokens = 0
        self.decode_batch = 0
        self.sum_context = 0
        self.max_context = 0
        self.load_ticket: object | None = None
        self.load_tokens = 0
        self.blocked_until = 0


class Settled:
    """What processing one step's result made known: ``first`` got their first token, ``finished`` ended, ``emitted`` tokens in all.

    A request may be in both lists. ``emitted`` counts tokens that reach clients: wasted steps of finished requests emit none.
    ``sequences``: how many requests the decoded tokens went to where a step gives several each (speculation), else 0.
    """

    __slots__ = ("again", "emitted", "finished", "first", "sequences")

    def __init__(self) -> None:
        self.first: list[Request] = []
        self.again: list[Request] = []  # got a token from the prefill of a re-admission (after a retraction)
        self.finished: list[Request] = []
        self.emitted = 0
        self.sequences = 0


class Occupancy(Protocol):
    """Counters of an engine's memory, in tokens, kept (never summed) by the cache; cumulative ones only grow."""

    @property
    def device_used(self) -> int:
        """Return device tokens in use."""

    @property
    def device_evictable(self) -> int:
        """Return device tokens that eviction could free."""

    @property
    def host_used(self) -> int:
        """Return host tokens in use."""

    @property
    def demoted(self) -> int:
        """Return device tokens evicted whose host copy stayed, so far."""

    @property
    def dropped(self) -> int:
        """Return device tokens evicted and lost, so far."""

    @property
    def host_evicted(self) -> int:
        """Return host tokens evicted, so far."""

    @property
    def backed_up(self) -> int:
        """Return tokens copied to the host, so far."""

    @property
    def loaded(self) -> int:
        """Return tokens loaded back, so far."""


class Scheduler(Protocol):
    """One engine's decisions (one TP group). Every call gets ``now`` in ps; nothing here lets time pass."""

    overlap: bool

    @property
    def occupancy(self) -> Occupancy:
        """Return the counters of the engine's memory."""

    ended: list[Request]  # ended by a plan itself (aborted for want of memory); the machine takes them out after each plan

    def submit(self, spec: RequestSpec, now: int) -> Request:
        """Take a request in: queued, or at once REFUSED with a reason (then it is in no queue)."""

    def abort(self, request: Request, now: int) -> None:
        """The client gave up: drop it from the queue, or let it end at its next settled step."""

    def plan(self, now: int) -> Step | None:
        """Decide the next step and allocate its memory; None if there is nothing to run."""

    def settle(self, step: Step, now: int) -> Settled:
        """Process the result of a step that ended at ``now``; stamps first_token_ps, end_ps of its requests."""

    def idle(self, now: int) -> None:
        """Do what the engine does when there was no batch now (overlap: and none before)."""

    def has_work(self) -> bool:
        """Tell whether anything is queued or running (a plan may still give None now)."""

    def quiet(self, previous: Step | None) -> int:
        """Return how many further iterations repeat the decode step just planned (0: none can be skipped).

        ``previous``: the unsettled step before it (overlap on; it must be a decode step of the same requests, else 0), else None.
        Assumes no arrival. None of these iterations finishes, admits or retracts anybody, or blocks on a copy (write_back).
        """

    def arrival_matters(self) -> bool:
        """Tell whether an arrival now could change the next plan (False: sticky full, so a run need not be cut)."""

    def advance(self, iterations: int, step: Step) -> None:
        """Carry out ``iterations`` quiet iterations; ``step`` becomes the last one planned (its sum_context is updated).

        Overlap on: afterwards the outstanding step is the one before ``step``, with the same requests; the machine settles it
        by passing a copy of ``step``.
        """

    def counts(self) -> tuple[int, int]:
        """Return (running, waiting) requests."""

    def pending(self) -> Sequence[Request]:
        """Return all requests still queued or running (for the horizon's unfinished ones)."""


class Transfers(Protocol):
    """Copies between device and host as a cache sees them. Tickets are opaque; time is ps (or iterations in a replay)."""

    def write(self, tokens: int, now: int) -> object:
        """Submit a device-to-host copy (one operation); return its ticket."""

    def load(self, tokens: int, now: int) -> object:
        """Submit a host-to-device copy (one operation); return its ticket."""

    def done(self, ticket: object, now: int) -> bool:
        """Tell whether the copy is complete at ``now``."""

    def finish_time(self, ticket: object, now: int) -> int:
        """Return when the copy will be complete, as known at ``now`` (write_back waits for it)."""
