"""Replays recordings of the real vLLM scheduler (format kvsim-vllm-oracle/1) with the scheduler that simulates.

The clock is the recording's: ``it`` = 1, 2, ... is one pass of the engine-core loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.content import canonical, length
from kvsim.errors import TraceError
from kvsim.rules.vllm import RULES, SIMPLE, VllmParams, VllmRules
from kvsim.serving.vllm.log import Log
from kvsim.serving.vllm.scheduler import VllmScheduler
from kvsim.verify.cache_replay import Mismatch, ReplayResult, load_recording
from kvsim.workload.spec import RequestSpec

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.serving.vllm.state import VllmRequest, VllmStep

FORMAT = "kvsim-vllm-oracle/1"
Row = dict[str, Any]


class PassTransfers:
    """Copies on the clock of passes: complete ``delay`` passes after their submission, or at once when waited for."""

    def __init__(self, store_delay: int, load_delay: int) -> None:
        self.store_delay, self.load_delay = store_delay, load_delay

    def write(self, tokens: int, now: int) -> list[int]:
        """Submit a copy to the CPU; the ticket is the pass in which it is complete."""
        return [now + self.store_delay]

    def load(self, tokens: int, now: int) -> list[int]:
        """Submit a copy from the CPU."""
        return [now + self.load_delay]

    def done(self, ticket: object, now: int) -> bool:
        """Tell whether the copy is complete."""
        assert isinstance(ticket, list)
        return bool(ticket[0] <= now)

    def finish_time(self, ticket: object, now: int) -> int:
        """Wait for the copy: it is complete now."""
        assert isinstance(ticket, list)
        ticket[0] = min(ticket[0], now)
        return now


def params_of(meta: dict[str, Any], rules: VllmRules) -> VllmParams:
    """Return the settings a recording was made with."""
    names = (
        "block_size",
        "num_gpu_blocks",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "long_prefill_token_threshold",
        "enable_chunked_prefill",
        "policy",
        "watermark",
    )
    optional = (
        "connector",
        "cpu_blocks",
        "cpu_policy",
        "offload_prompt_only",
        "offload_factor",
        "store_threshold",
        "lazy_offload",
    )
    given = {name: meta[name] for name in names} | {name: meta[name] for name in optional if meta.get(name) is not None}
    return VllmParams(
        rules=rules,
        scheduler_reserve_full_isl=meta["reserve_full_isl"],
        enable_prefix_caching=meta["prefix_caching"],
        async_scheduling=meta["async"],
        server_limits=False,
        **given,
    )


class Replay:
    """One recording on its way through the scheduler."""

    def __init__(
        self,
        meta: dict[str, Any],
        requests: dict[str, dict[str, Any]],
        evicted_names: bool,
        rules: VllmRules,
    ) -> None:
        self.params = params_of(meta, rules)
        self.log = Log()
        transfers = PassTransfers(meta.get("store_delay", 0), meta.get("load_delay", 0))
        self.scheduler = VllmScheduler(self.params, transfers, self.log)
        self.evicted_names = evicted_names
        if evicted_names:
            self.scheduler.pool.log = []
        self.live: dict[int, VllmRequest] = {}
        self.queue: list[VllmStep] = []
        self.ended_since = False
        self._evicted = 0
        self._arrivals: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        self._aborts: dict[int, list[int]] = {}
        for name, request in requests.items():
            self._arrivals.setdefault(request["at"], []).append((int(name), request))
            if request.get("abort") is not None:
                self._aborts.setdefault(request["abort"], []).append(int(name))

    def _spec(self, number: int, request: dict[str, Any]) -> RequestSpec:
        prompt = canonical(request["in"])
        return RequestSpec(
            id=str(number),
            arrival_ps=request["at"],
            prompt=prompt,
            prompt_tokens=length(prompt),
            output_tokens=request["len"],
            output_first=request["out"],
            max_new_tokens=request["max"],
            priority=request.get("prio", 0),
        )

    def step(self, now: int) -> Row:
        """Run one pass and return its row, with empty entries left out."""
        row: Row = {"it": now}
        self.log.clear()
        scheduler = self.scheduler
        self._let_in(now, row)
        if scheduler.busy() or self.ended_since:
            self.ended_since = False
            step = scheduler.schedule(now)
            scheduler.forwarded(step, now)
            self._planned(step, row)
            self._finish_pass(step, now)
        elif self.queue:
            self._process(self.queue.pop(0), now)
        self._written(row)
        return row

    def _let_in(self, now: int, row: Row) -> None:
        for number, request in sorted(self._arrivals.pop(now, [])):
            self.live[number] = self.scheduler.submit(self._spec(number, request), now)
            row.setdefault("arr", []).append(number)
        for number in sorted(self._aborts.pop(now, [])):
            if self.live[number].end_ps is None:
                self.scheduler.abort_now(self.live[number], now)
                self.ended_since = True
                row.setdefault("abort", []).append(number)

    def _finish_pass(self, step: VllmStep, now: int) -> None:
        if not self.params.async_scheduling:
            self._process(step, now)
            return
        self.queue.append(step)
        if len(self.queue) == 1 and (step.kind != "idle" or self.scheduler.busy()):
            return
        self._process(self.queue.pop(0), now)

    def _process(self, step: VllmStep, now: int) -> None:
        if self.scheduler.process(step, now).finished:
            self.ended_since = True

    def _planned(self, step: VllmStep, row: Row) -> None:
        fresh = {id(request) for request in step.admitted}
        run = [[int(r.spec.id), count] for r, count, _ in step.work if id(r) not in fresh and count != 1]
        row["run"] = run
        row["dec"] = step.cohort + len(step.work) - len(step.admitted) - len(run)
        row["idle"] = len(self.scheduler.running) - len(step.work) - step.cohort
        row["pre"] = [int(r.spec.id) for r in step.preempted]

    def _written(self, row: Row) -> None:
        log, pool, scheduler = self.log, self.scheduler.pool, self.scheduler
        row["new"] = [[int(r.spec.id), computed, count] for r, resumed, computed, count in log.admitted if not resumed]
        row["res"] = [[int(r.spec.id), computed, count] for r, resumed, computed, count in log.admitted if resumed]
        row["fin"] = [[int(r.spec.id), r.known, how] for r, how in log.finished]
        row["ev"] = pool.evicted - self._evicted
        self._evicted = pool.evicted
        if self.evicted_names and pool.log:
            names = scheduler.names.describe()
            row["evl"] = [list(names[key]) for key in pool.log]
            pool.log.clear()
        row["ld"] = [[int(r.spec.id), local, tokens] for r, local, tokens in log.loads]
        row["defer"] = [int(r.spec.id) for r in log.deferred]
        row["st"] = (
            log.stored_blocks if self.params.connector == SIMPLE else [[int(r.spec.id), n] for r, n in log.stored]
        )
        row["nost"] = [int(r.spec.id) for r in log.refused]
        row["cev"], row["flush"] = log.cpu_evicted, log.flushed
        for key in [key for key, value in row.items() if not value]:
            del row[key]
        scheduler.refresh()
        row["s"] = [pool.free, pool.hashed, pool.distinct, *scheduler.counts(), *scheduler.connector.state()]

    def quiet(self, row: Row) -> bool:
        """Tell whether a recording leaves this row out."""
        return set(row) <= {"it", "dec", "s"}


#: After its last row a recording's world must come to rest within so many passes.
MOST_QUIET_PASSES = 200_000


def rules_of(recording: dict[str, Any]) -> VllmRules:
    """Return the rule set of the engine version that a recording's ``source`` names."""
    words = str(recording.get("source", "vllm 0.24.0")).replace(",", " ").split()
    name = "-".join(words[:2])
    if name not in RULES:
        raise TraceError("source", None, f"no rules for '{' '.join(words[:2])}'; known: {', '.join(sorted(RULES))}")
    return RULES[name]


def replay_vllm(recording: dict[str, Any], file: str = "", rules: VllmRules | None = None) -> ReplayResult:
    """Replay a recording and compare every field of every row; stops at the first difference.

    Passes that the recording leaves out must be quiet; after its last row all ends quietly (unless ``stuck``).
    TraceError if the recording lacks something.
    """
    rows = recording.get("its", [])
    try:
        chosen = rules or rules_of(recording)
        replay = Replay(recording["meta"], recording["requests"], any("evl" in row for row in rows), chosen)
        expected = {row["it"]: (index, row) for index, row in enumerate(rows)}
    except (KeyError, TypeError, AttributeError) as error:
        raise TraceError(file, None, f"not a complete recording of format {FORMAT}: {error!r}") from None
    last, before = max(expected, default=0), -1
    for now in range(1, last + 1):
        index, want = expected.get(now, (before, None))
        mismatch = _mismatch(replay, rows, index, want, now)
        if mismatch is not None:
            return ReplayResult(file, chosen.name, index + 1, len(rows), 1, mismatch)
        before = index
    mismatch = None if recording["meta"].get("stuck") else _ending(replay, rows, last)
    return ReplayResult(file, chosen.name, len(rows), len(rows), int(mismatch is not None), mismatch)


def _mismatch(replay: Replay, rows: list[Row], index: int, want: Row | None, now: int) -> Mismatch | None:
    got = replay.step(now)
    if want is None:
        if replay.quiet(got):
            return None
        want = {"it": now, "s": got["s"], "dec": got.get("dec")}
    for key in sorted(set(got) | set(want)):
        if got.get(key) != want.get(key):
            around = {"row": want, "got": got, "before": rows[max(0, index - 3) : max(index, 0)]}
            return Mismatch(index, f"it {now}: {key}", want.get(key), got.get(key), around)
    return None


def _ending(replay: Replay, rows: list[Row], last: int) -> Mismatch | None:
    now = last
    while replay.scheduler.has_work() and now < last + MOST_QUIET_PASSES:
        now += 1
        mismatch = _mismatch(replay, rows, len(rows), None, now)
        if mismatch is not None:
            return mismatch
    if replay.scheduler.has_work():
        return Mismatch(-1, "end", "all requests ended", [r.spec.id for r in replay.scheduler.pending()])
    return None


def replay_vllm_file(path: Path, rules: VllmRules | None = None) -> ReplayResult:
    """Replay the recording in ``path``; TraceError if it is none of this format."""
    return replay_vllm(load_recording(path, FORMAT), str(path), rules)
