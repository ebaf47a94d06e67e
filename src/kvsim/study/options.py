"""The operator's options, each simulated on the same workload with common random numbers, and the advice that follows.

Every option is one task: its runs (all with the same seeds), and a search for the largest load that meets the SLO on a sample of the
workload. Differences to "as is" are paired by batches of the same requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvsim.errors import ConfigError, Infeasible
from kvsim.measure.compare import Difference, pooled
from kvsim.study.executor import run_tasks
from kvsim.study.point import Outcome, capacity_facts, client_of, resolve_task
from kvsim.study.search import bisect, load_key
from kvsim.study.store import Store

if TYPE_CHECKING:
    from kvsim.config.resolved import Resolved

AS_IS = "as is"
FP8 = "memory only: the speed of an fp8 kernel and its effect on answers are not known here"
SAMPLE = 1000
BIG = 2000  # requests beyond which options that are simulated step by step are left out unless asked for
LEFT_OUT = "left out: its ranks are simulated step by step, which takes minutes for this workload (--slow simulates it)"
SPAN = (1 / 16, 4.0)
RATIOS = (0, 1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Option:
    """One thing an operator could change: overrides, what it is worth knowing about them, whether its simulation is slow."""

    name: str
    sets: tuple[str, ...] = ()
    remark: str = ""
    slow: bool = False


@dataclass(slots=True)
class Row:
    """An option with its replications' summaries (None: ``reason`` why it cannot run) and the bracket of its largest load.

    ``load``: {"meets", "fails", "unsure"} or None where it was not searched.
    """

    option: Option
    summaries: list[dict[str, Any]]
    capacity: dict[str, Any]
    reason: str = ""
    load: dict[str, Any] | None = None


@dataclass(slots=True)
class Options:
    """The finished table: rows in order, "as is" first; ``load_key`` and ``sample`` say how the largest load was found."""

    rows: list[Row]
    load_key: str
    sample: str
    slo: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    @property
    def base(self) -> Row:
        """The row "as is"."""
        return self.rows[0]

    def difference(self, row: Row, figure: str, other: Row | None = None) -> Difference | None:
        """Return the paired difference of a figure (see ``measure.compare.FIGURES``) to another row ("as is")."""
        against = other or self.base
        lists = []
        for before, after in zip(against.summaries, row.summaries, strict=False):
            pairs = zip(before["batches"][figure], after["batches"][figure], strict=False)
            lists.append([b - a for a, b in pairs if a is not None and b is not None])
        return pooled(lists)


def variants(resolved: Resolved) -> list[Option]:
    """Return the options that make sense for a scenario, "as is" first."""
    if resolved.family != "sglang":
        return [Option(AS_IS), *_vllm_variants(resolved)]
    engine, hicache = resolved.scenario.engine, resolved.scenario.engine.hicache
    ratio = hicache.ratio or 0
    out = [Option(AS_IS)]
    out += [
        Option("HiCache off" if value == 0 else f"HiCache ratio {value}", (f"engine.hicache.ratio={value}", "engine.hicache.size=0"))
        for value in RATIOS
        if value != ratio or hicache.size
    ]
    has_host = resolved.capacity.host_tokens > 0
    if has_host:
        for policy in ("write_through_selective", "write_back"):
            if policy != hicache.write_policy:
                out.append(Option(policy, (f"engine.hicache.write_policy={policy}",)))
        if resolved.capacity.host_copies > 1:
            out.append(Option("one shared host copy", ("engine.hicache.host_copies=shared",), "a what-if: stock SGLang has no such mode"))
    if engine.kv_cache_dtype == "auto":
        out.append(Option("fp8 KV", ("engine.kv_cache_dtype=fp8_e4m3",), FP8))
    cap = max(1, min(resolved.capacity.max_running_requests // 2, 16))
    out.append(Option(f"batch cap {cap}", (f"engine.max_running_requests={cap}",)))
    if resolved.scenario.speculation is not None:
        out.append(Option("speculation off", ("speculation=null", "engine.speculative_algorithm=null")))
    page = 1 if (engine.page_size or 1) > 1 else 64
    out.append(Option(f"page size {page}", (f"engine.page_size={page}",)))
    tp = resolved.capacity.ranks
    if tp > 1 and not engine.enable_dp_attention:
        sets = ("engine.enable_dp_attention=true", f"engine.dp_size={tp}")
        out.append(Option(f"DP attention {tp}", sets, "requests go to its ranks in turn, each with a cache of its own", slow=True))
    out.append(_twice(resolved))
    return out


def _vllm_variants(resolved: Resolved) -> list[Option]:
    engine = resolved.scenario.engine
    out = _cpu_tiers(resolved) if resolved.engine.rules.connectors else []
    if resolved.engine.connector and engine.offload.connector == "offloading":
        if resolved.engine.offload_prompt_only:
            out.append(Option("answers stored too", ("engine.offload.offload_prompt_only=false",)))
        out.append(Option("SimpleCPUOffload", ("engine.offload.connector=simple",)))
    if engine.kv_cache_dtype == "auto" and engine.num_gpu_blocks_override is None and engine.gpu_kv_cache_tokens is None:
        out.append(Option("fp8 KV", ("engine.kv_cache_dtype=fp8",), FP8))
    tokens = 2048 if resolved.engine.max_num_batched_tokens > 2048 else 8192
    seqs = min(resolved.engine.max_num_seqs, tokens)
    out.append(Option(f"batched tokens {tokens}", (f"engine.max_num_batched_tokens={tokens}", f"engine.max_num_seqs={seqs}")))
    if engine.async_scheduling:
        out.append(Option("synchronous", ("engine.async_scheduling=false",)))
    out.append(_twice(resolved))
    return out


def _cpu_tiers(resolved: Resolved) -> list[Option]:
    """CPU tiers of 0, 1, 2 and 4 device pools; the flag is GiB in total over the ranks."""
    pool = resolved.capacity.device_pool_bytes * resolved.capacity.ranks / 2**30
    out = []
    for times in (0, 1, 2, 4):
        size = round(times * pool, 1)
        if abs(size - resolved.scenario.engine.kv_offloading_size) > 0.05 * pool:
            out.append(Option(f"CPU tier {size:g} GiB" if times else "no CPU tier", (f"engine.kv_offloading_size={size}",)))
    return out


def _twice(resolved: Resolved) -> Option:
    replicas = resolved.scenario.replicas
    return Option(f"{2 * replicas} machines", (f"replicas={2 * replicas}", "router=cache_aware"), "cache-aware router")


@dataclass(frozen=True, slots=True)
class Job:
    """One option as a task for any process. ``keep``: the folder in which its runs are kept as they end, "" for none."""

    base: dict[str, Any]
    sets: tuple[str, ...]
    replications: int
    load_key: str
    load: float
    sample: tuple[str, ...]
    wanted: float
    search: bool
    keep: str = ""


def run_job(job: Job) -> dict[str, Any]:
    """Run one option: {"summaries", "capacity", "reason", "load"} as plain data. A setting the scenario cannot have is a reason."""
    try:
        return _run_job(job)
    except (ConfigError, Infeasible) as problem:
        return {"summaries": [], "capacity": {}, "reason": str(problem).split("\n", 1)[0], "load": None}


def _run_job(job: Job) -> dict[str, Any]:
    outcomes = [_kept(job, list(job.sets), replication) for replication in range(job.replications)]
    capacity, reasons = outcomes[0][2], [outcome[3] for outcome in outcomes if outcome[1] is None]
    if reasons:
        return {"summaries": [], "capacity": capacity, "reason": reasons[0], "load": None}
    load = _largest_load(job) if job.search else None
    return {"summaries": [outcome[1] for outcome in outcomes], "capacity": capacity, "reason": "", "load": load}


def _kept(job: Job, sets: list[str], replication: int) -> Outcome:
    """Return one run, from the store if it is there (named by all that made it), else simulated and kept."""
    if not job.keep:
        return _point(job.base, sets, replication)
    store, task = Store(job.keep), (job.base, sets, replication)
    found: Outcome | None = store.find(task)
    if found is None:
        found = _point(*task)
        store.keep(task, found)
    return found


def _point(base: dict[str, Any], sets: list[str], replication: int) -> Outcome:
    """As ``study.point.run_point``, with the binding resource."""
    from kvsim.measure.binding import binding
    from kvsim.measure.compare import batch_means
    from kvsim.measure.summary import summarise
    from kvsim.sim.simulate import simulate

    resolved = resolve_task((base, sets, replication))
    facts = capacity_of_all(resolved)
    if resolved.capacity.infeasible:
        return resolved.digest, None, facts, "; ".join(resolved.capacity.infeasible)
    recording = simulate(resolved, client=client_of(resolved, replication))
    ranks = resolved.capacity.extra.get("dp", 1)
    bound = binding(recording, resolved.capacity.device_tokens * ranks, resolved.capacity.max_running_requests * ranks)
    summary = {**summarise(recording), "batches": batch_means(recording), "binding": bound}
    return resolved.digest, json.loads(json.dumps(summary, allow_nan=False)), facts, ""


def _largest_load(job: Job) -> dict[str, Any]:
    def evaluate(value: float, replications: Any) -> list[dict[str, Any] | str]:
        found = [_kept(job, [*job.sets, *job.sample, f"{job.load_key}={value!r}"], r) for r in replications]
        return [outcome[1] if outcome[1] is not None else outcome[3] for outcome in found]

    whole = job.load_key.endswith(".users")
    low, high = job.load * SPAN[0], job.load * SPAN[1]
    if whole:
        low, high = max(1.0, float(round(low))), float(round(high))
    found = bisect(job.load_key, low, high, evaluate, wanted=job.wanted, tolerance=0.15, whole=whole, most_replications=2)
    return {"meets": found.meets, "fails": found.fails, "unsure": found.unsure, "low": low, "high": high}


def options_table(
    base: dict[str, Any],
    *,
    replications: int = 1,
    search: bool = True,
    sample: int = SAMPLE,
    slow: bool = False,
    workers: int = 2,
    executor: Executor | None = None,
    store: Store | None = None,
    progress: Callable[[int], None] | None = None,
) -> Options:
    """Return the options of a scenario (plain data), simulated. Raises ConfigError without an SLO or a workload.

    ``slow``: simulate options whose ranks go step by step on large workloads too. ``store``: every run is kept there as it ends (in a folder
    of its own, "options") and found again, so that an interrupted table goes on where it stopped.
    """
    slo = base.get("slo") or {}
    if not any(slo.get(name) is not None for name in ("ttft", "tpot", "e2e")):
        raise ConfigError("slo: is missing; options need one, for example --set slo.ttft=10s --set slo.tpot=100ms")
    resolved = resolve_task((base, [], 0))
    key = load_key(base)
    load = float((base.get("workload") or {}).get(key.rpartition(".")[2]) or 1.0)
    cut, words = sample_of(base, sample)
    chosen = variants(resolved)
    wanted = float(slo.get("attainment") or 0.99)
    left_out = [option.slow and not slow and is_big(base) for option in chosen]
    keep = "" if store is None else str(store.folder / "options")
    jobs = [
        Job(base, option.sets, replications, key, load, cut, wanted, search, keep)
        for option, out in zip(chosen, left_out, strict=True)
        if not out
    ]
    places = [place for place, out in enumerate(left_out) if not out]
    found: list[dict[str, Any]] = [{"summaries": [], "capacity": {}, "reason": LEFT_OUT, "load": None} for _ in chosen]
    ended = 0

    def note(index: int, outcome: dict[str, Any]) -> None:
        nonlocal ended
        found[places[index]] = outcome
        ended += 1
        if progress is not None:
            progress(ended)

    run_tasks(run_job, jobs, note, workers=workers, executor=executor)
    rows = [Row(option, **outcome) for option, outcome in zip(chosen, found, strict=True)]
    if rows[0].reason:
        raise Infeasible(f"the scenario as it is cannot run: {rows[0].reason}")
    return Options(rows, key, words, slo)


def is_big(base: dict[str, Any]) -> bool:
    """Tell whether a workload has (or, a trace without a limit, may have) more than a few thousand requests."""
    workload = base.get("workload") or {}
    if workload.get("kind", "trace") == "trace":
        return int(workload.get("limit") or BIG + 1) > BIG
    return int(workload.get("requests") or 0) > BIG


def sample_of(base: dict[str, Any], requests: int) -> tuple[tuple[str, ...], str]:
    """Return the overrides that cut a workload to about so many requests for the load search, and words for it."""
    workload = base.get("workload") or {}
    kind = workload.get("kind", "trace")
    if kind == "trace":
        limit = min(requests, int(workload.get("limit") or requests))
        return (f"workload.limit={limit}",), f"the first {limit:,} requests of the trace, from empty caches"
    if kind == "poisson" and workload.get("requests") is not None and workload["requests"] > requests:
        return (f"workload.requests={requests}",), f"{requests:,} requests"
    return (), "the whole workload"


def capacity_of_all(resolved: Resolved) -> dict[str, Any]:
    """Return the facts of a capacity with tokens, slots and RAM of all machines and, under DP attention, all ranks."""
    capacity, machines = resolved.capacity, resolved.scenario.replicas
    pools = machines * capacity.extra.get("dp", 1)
    facts = capacity_facts(capacity) | {"max_running_requests": capacity.max_running_requests * pools}
    facts |= {name: facts[name] * pools for name in ("device_tokens", "host_tokens")}
    facts["host_bytes_total"] *= machines
    return facts
