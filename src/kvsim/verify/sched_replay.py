"""Replay of scheduler-level recordings (``kvsim-sched-oracle/1``) on the ``SglangScheduler`` of the simulation.

Only arrivals are given; every iteration's decisions are compared: prefill batches, decode batch size, retractions,
finishes, aborts, the chunked request, queue length, new-token ratio, cache counters and occupancy. The clock is the
iteration number.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from kvsim.content import canonical, length
from kvsim.kv.tiers import EngineFailure
from kvsim.rules.sglang import SglangParams, SglangRules
from kvsim.serving.port import Request, Settled, Step
from kvsim.serving.sglang.request import SglangRequest, SglangStep
from kvsim.serving.sglang.scheduler import SglangScheduler
from kvsim.verify.cache_replay import COUNTERS, Mismatch, ReplayResult, load_recording, rules_of
from kvsim.verify.clock import Delays
from kvsim.workload.spec import RequestSpec

FORMAT = "kvsim-sched-oracle/1"
EVENTS = ("arr", "pf", "fin", "retr", "abort", "dem", "drop", "hev", "hdup", "wt", "wfail", "lfail")


def params_of(meta: dict[str, Any], rules: SglangRules | None = None) -> SglangParams:
    """Return the server's parameters that a recording's ``meta`` states."""
    plain = meta.get("hicache_ratio") is None
    return SglangParams(
        rules=rules or rules_of(meta),
        page_size=meta["page_size"],
        device_tokens=meta["device_tokens"],
        host_tokens=0 if plain else meta["host_tokens"],
        write_policy="write_through" if plain else meta["write_policy"],
        eviction=meta["eviction"],
        radix_cache=not meta.get("radix_disabled", False),
        schedule_policy=meta["schedule_policy"],
        schedule_conservativeness=meta.get("schedule_conservativeness", 1.0),
        chunked_prefill_size=meta["chunked_prefill_size"],
        max_prefill_tokens=meta["max_prefill_tokens"],
        max_running_requests=meta["max_running_requests"],
        mixed_chunk=bool(meta.get("mixed_chunk", False)),
        overlap=bool(meta["overlap"]),
        max_input_tokens=1 << 60,
        stop_at_engine_failure=True,
    )


class SchedReplay:
    """Drives one scheduler through a recording's iterations; ``rows``: what it decided, in the recording's form."""

    def __init__(self, recording: dict[str, Any], rules: SglangRules | None = None, *, stepwise: bool = False) -> None:
        self.meta = recording["meta"]
        self.params = params_of(self.meta, rules)
        self.scheduler = SglangScheduler(self.params, Delays.of(self.meta))
        self.stepwise = stepwise
        self.every_row = self.meta.get("rows") == "all"
        self.arrivals = sorted(((spec["at"], int(key), spec) for key, spec in recording["requests"].items()), key=lambda a: (a[0], a[1]))
        self.next = 0
        self.at = 0
        self.rows: list[dict[str, Any]] = []
        self._before = self._counters()
        self._previous: Step | None = None

    def run(self, last: int) -> None:
        """Carry out iterations up to and including ``last``."""
        while self.at < last:
            if self._at_rest():
                coming = self.arrivals[self.next][0] if self.next < len(self.arrivals) else last
                self.at = max(self.at, min(coming, last) - 1)
            self.at += 1
            self._iterate(last)

    def _at_rest(self) -> bool:
        """Whether iterations do nothing until the next arrival (and need not be listed)."""
        scheduler = self.scheduler
        if self.every_row or self.stepwise or self._previous is not None or scheduler.last is not None:
            return False
        if scheduler.has_work() or scheduler.ratio != scheduler.ratio_init:
            return False
        return scheduler.cache.idle_transfers or not scheduler.rules.poll_every_iteration

    def _iterate(self, last: int) -> None:
        scheduler, now = self.scheduler, self.at
        row: dict[str, Any] = {"it": now}
        arrived = []
        while self.next < len(self.arrivals) and self.arrivals[self.next][0] <= now:
            _, key, spec = self.arrivals[self.next]
            scheduler.submit(_spec(key, spec), now)
            arrived.append(key)
            self.next += 1
        if arrived:
            row["arr"] = arrived
        step = scheduler.plan(now)
        self._note_plan(row, step)
        ended = list(scheduler.ended)
        scheduler.ended.clear()
        if ended:
            row["abort"] = [int(request.spec.id) for request in ended]
        outstanding = self._previous if scheduler.overlap else step
        skip = self._skippable(step, last)
        if skip:
            assert step is not None
            self._close(row)
            scheduler.advance(skip, step)
            self.at += skip
            row = {"it": self.at, "dec": step.decode_batch}
            outstanding = copy.copy(step) if scheduler.overlap else step
        if outstanding is not None:
            self._note_finished(row, scheduler.settle(outstanding, self.at))
        elif step is None:
            scheduler.idle(now)
        self._previous = step if scheduler.overlap else None
        self._close(row)

    def _skippable(self, step: Step | None, last: int) -> int:
        """Return how many iterations repeat the decode step just planned without anything to compare."""
        if self.stepwise or self.every_row or step is None or step.kind != "decode":
            return 0
        if self.scheduler.rules.poll_every_iteration and not self.scheduler.cache.idle_transfers:
            return 0  # an acknowledgement in between would show in the next row
        until = self.arrivals[self.next][0] - 1 if self.next < len(self.arrivals) else last
        quiet = min(self.scheduler.quiet(self._previous), until - self.at, last - self.at)
        return min(quiet, self.scheduler.before_eviction()) if quiet > 0 else 0

    def state(self) -> dict[str, Any]:
        """Return what the scheduler holds now: for a message about a mismatch."""
        scheduler = self.scheduler
        return {
            "iteration": self.at,
            "running": [_seen(request) for request in scheduler.running],
            "waiting": [int(request.spec.id) for request in scheduler.waiting],
            "full": scheduler.full,
            "ratio": scheduler.ratio,
            "free": scheduler.cache.free,
            "evictable": scheduler.cache.evictable,
        }

    def _note_plan(self, row: dict[str, Any], step: Step | None) -> None:
        if isinstance(step, SglangStep):
            if step.prefills:
                row["pf"] = [
                    [int(r.spec.id), prefix, new, *(hits or ())] for (r, prefix, new), hits in zip(step.prefills, step.hits, strict=True)
                ]
            if step.decode_batch:
                row["dec"] = step.decode_batch
        retracted: list[Request] = self.scheduler.retracted_now
        if retracted:
            row["retr"] = [int(request.spec.id) for request in retracted]

    def _note_finished(self, row: dict[str, Any], settled: Settled) -> None:
        if settled.finished:
            row["fin"] = [[int(r.spec.id), r.offered] for r in settled.finished if isinstance(r, SglangRequest)]

    def _counters(self) -> dict[str, int]:
        return {short: getattr(self.scheduler.cache, name) for short, name in COUNTERS.items()}

    def _close(self, row: dict[str, Any]) -> None:
        """Add the state after the iteration and keep the row if the format would list it."""
        scheduler, cache = self.scheduler, self.scheduler.cache
        counters = self._counters()
        row.update({key: value - self._before[key] for key, value in counters.items() if value != self._before[key]})
        self._before = counters
        if not self.every_row and not any(key in row for key in EVENTS):
            return
        if scheduler.chunked is not None:
            row["ch"] = int(scheduler.chunked.spec.id)
        row["q"] = len(scheduler.waiting)
        row["ntr"] = round(scheduler.ratio, 6)
        row["s"] = [
            cache.device_used,
            cache.evictable,
            cache.protected,
            cache.host_used,
            cache.in_flight_writes,
            cache.in_flight_loads,
        ]
        self.rows.append(row)


def _seen(request: SglangRequest) -> dict[str, Any]:
    return {"id": int(request.spec.id), "out": request.output_done, "max_new": request.mnt, "kv": request.slots}


def _spec(key: int, given: dict[str, Any]) -> RequestSpec:
    prompt = canonical(given["in"])
    return RequestSpec(
        id=str(key),
        arrival_ps=given["at"],
        prompt=prompt,
        prompt_tokens=length(prompt),
        output_tokens=given["len"],
        output_first=given["out"],
        max_new_tokens=given["max_new"],
        ignore_eos=bool(given.get("ignore_eos", False)),
    )


def replay_sched(recording: dict[str, Any], file: str = "", rules: SglangRules | None = None, *, stepwise: bool = False) -> ReplayResult:
    """Replay a scheduler-level recording: every field of every row, the final tree; stops at the first difference."""
    player = SchedReplay(recording, rules, stepwise=stepwise)
    rows = recording["its"]
    name, total = player.params.rules.name, len(rows)
    for index, expected in enumerate(rows):
        try:
            while len(player.rows) <= index and player.at < expected["it"]:
                player.run(min(expected["it"], player.at + 1) if player.stepwise else expected["it"])
        except EngineFailure as failure:
            return ReplayResult(file, name, index, total, 0, finding=str(failure))
        got = player.rows[index] if len(player.rows) > index else {"it": None}
        for field in sorted(expected.keys() | got.keys(), key=lambda key: (key != "it", key)):
            if expected.get(field) != got.get(field):
                around = {"row": expected, "got": got, "before": rows[max(0, index - 3) : index]}
                around |= {"state": player.state(), "meta": player.meta}
                mismatch = Mismatch(index, field, expected.get(field), got.get(field), around)
                return ReplayResult(file, name, index + 1, total, 1, mismatch)
    return _final(player, recording, file, name, total)


def _final(player: SchedReplay, recording: dict[str, Any], file: str, name: str, total: int) -> ReplayResult:
    if player.meta.get("truncated"):  # recorded up to the step in which 0.5.9 itself fails
        return ReplayResult(file, name, total, total, 0)
    player.run(player.meta.get("iterations") or player.at + 4)
    if len(player.rows) > total:
        return ReplayResult(
            file,
            name,
            total,
            total,
            1,
            Mismatch(total, "it", None, player.rows[total]["it"], {"got": player.rows[total]}),
        )
    tree = player.scheduler.cache.dump()
    if tree != recording["final_tree"]:
        return ReplayResult(file, name, total, total, 1, Mismatch(-1, "final_tree", recording["final_tree"], tree))
    return ReplayResult(file, name, total, total, 0)


def replay_sched_file(path: Path, rules: SglangRules | None = None, *, stepwise: bool = False) -> ReplayResult:
    """Replay the scheduler-level recording in ``path``; TraceError if it is none."""
    return replay_sched(load_recording(path, FORMAT), str(path), rules, stepwise=stepwise)
