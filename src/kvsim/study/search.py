"""Bisection that compares intervals: the smallest setting, or the largest load, that meets the SLO.

A value is *met* or *missed* only if an interval of its attainment (1.4 times the 95 % one) lies on one side of the wanted one; else
replications are added, and if they do not decide it stays *unsure*. The answer is a bracket: the last value that is surely on the one side and the first that is
surely on the other. Attainment is taken to be monotone in what is searched; a result that contradicts it is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvsim.errors import ConfigError
from kvsim.measure.compare import difference_of
from kvsim.measure.steady import t_975
from kvsim.study.point import Task, settings
from kvsim.study.sweep import outcomes

if TYPE_CHECKING:
    from kvsim.study.store import Store

WORST = 1e12
CAUTION = 1.4  # a verdict is looked for again and again as replications are added: it asks for 99.4 %, not 95 %
MET, MISSED, UNSURE, INFEASIBLE = "met", "missed", "unsure", "infeasible"


@dataclass(frozen=True, slots=True)
class Probe:
    """What is known of one value: its attainment with half-width, from how many replications, and the verdict."""

    value: float
    verdict: str
    attainment: float | None
    half_width: float | None
    replications: int
    reason: str = ""


@dataclass(slots=True)
class Found:
    """The answer of a search: ``meets`` (best value surely met), ``fails`` (nearest surely missed), None where none was, and every probe.

    ``unsure``: tried values between them that replications did not decide.
    """

    key: str
    largest: bool
    wanted: float
    meets: float | None
    fails: float | None
    probes: list[Probe] = field(default_factory=list)

    @property
    def unsure(self) -> list[float]:
        """Return undecided values inside the bracket, ascending."""
        return sorted(probe.value for probe in self.probes if probe.verdict == UNSURE)

    def sentence(self) -> str:
        """Return the answer in words, with its bracket."""
        side, what = ("largest", "met") if self.largest else ("smallest", "met")
        if self.meets is None and self.unsure:
            above = "" if self.fails is None else f"; {self.fails:g} surely misses it"
            return f"No {self.key} was found that surely meets the SLO: not decided at {', '.join(f'{v:g}' for v in self.unsure)}{above}."
        if self.meets is None:
            tried = f"{self.fails:g}" if self.fails is not None else "any value tried"
            return f"No {self.key} was found that meets the SLO: already {tried} misses it."
        if self.fails is None:
            return (
                f"The SLO is {what} at every {self.key} tried, up to {self.meets:g}."
                if self.largest
                else (f"The SLO is {what} at every {self.key} tried, down to {self.meets:g}.")
            )
        undecided = f"; not decided within it: {', '.join(f'{value:g}' for value in self.unsure)}" if self.unsure else ""
        low, high = sorted((self.meets, self.fails))
        return (
            f"The {side} {self.key} that surely meets the SLO is {self.meets:g}; the answer lies between {low:g} and {high:g}{undecided}."
        )


Evaluate = Callable[[float, Sequence[int]], list[dict[str, Any] | str]]


def judge(value: float, results: Sequence[dict[str, Any] | str], wanted: float) -> Probe:
    """Return the verdict on one value from its replications' summaries (a string: infeasible, with the reason)."""
    reasons = [result for result in results if isinstance(result, str)]
    if reasons:
        return Probe(value, INFEASIBLE, None, None, len(results), reasons[0])
    shares, halves = [], []
    for summary in results:
        assert isinstance(summary, dict)
        shares.append(float(summary["slo"]["attainment"] or 0.0))
        halves.append(_half_width(summary, shares[-1]))
    mean = math.fsum(shares) / len(shares)
    half = _combined(shares, halves, mean)
    verdict = UNSURE if abs(mean - wanted) <= CAUTION * half else MET if mean > wanted else MISSED
    return Probe(value, verdict, mean, half, len(shares))


def _half_width(summary: dict[str, Any], share: float) -> float:
    """Return the half-width of one run's attainment: from its batches, at least that of independent requests."""
    total = max(1, int(summary["requests"]["total"]))
    spread = min(max(share, 1 / total), 1 - 1 / total) if total > 1 else 0.5
    alone = 1.96 * math.sqrt(spread * (1 - spread) / total)
    good = [value for value in (summary.get("batches") or {}).get("good", ()) if value is not None]
    found = difference_of(good) if len(good) >= 2 else None
    return max(alone, found.half_width or 0.0) if found else alone


def _combined(shares: list[float], halves: list[float], mean: float) -> float:
    count = len(shares)
    within = math.sqrt(math.fsum(half * half for half in halves)) / count
    if count < 3:
        return within
    spread = math.sqrt(math.fsum((share - mean) ** 2 for share in shares) / (count - 1) / count)
    return max(t_975(count - 1) * spread, 0.5 * within)


def bisect(
    key: str,
    low: float,
    high: float,
    evaluate: Evaluate,
    *,
    wanted: float,
    largest: bool = True,
    tolerance: float = 0.05,
    whole: bool = False,
    start_replications: int = 1,
    most_replications: int = 8,
) -> Found:
    """Return the bracket of the value between ``low`` and ``high`` at which the SLO turns from met to missed.

    ``largest``: the SLO is met below (a load), else above (a size). Ends when the bracket is within ``tolerance`` (relative; ``whole``:
    one) or when what is left of it is undecided. ``evaluate(value, replications)`` returns the summaries of those replications.
    """
    if not 0 <= low < high or not math.isfinite(high):
        raise ConfigError(f"search of {key}: the range {low:g} to {high:g} is empty; give from < to, both from 0")
    run = _Search(key, evaluate, wanted, start_replications, most_replications)
    good, bad = (low, high) if largest else (high, low)
    first = run.probe(good)
    if first.verdict == UNSURE and run.probe(bad).verdict in (MISSED, INFEASIBLE):
        return run.found(largest, None, _other_edge(run, good, bad, tolerance, whole))
    if first.verdict != MET:
        return run.found(largest, None, good if first.verdict != UNSURE else None)
    second = run.probe(bad)
    if second.verdict == MET:
        return run.found(largest, bad, None)
    sure_good, sure_bad = good, bad if second.verdict != UNSURE else None
    while not _close(good, bad, tolerance, whole):
        middle = _middle(good, bad, whole)
        verdict = run.probe(middle).verdict
        if verdict == MET:
            good = sure_good = middle
        else:
            bad = middle
            sure_bad = middle if verdict != UNSURE else sure_bad
    edge = _other_edge(run, good, sure_bad, tolerance, whole)
    return run.found(largest, sure_good, edge)


def _other_edge(run: _Search, good: float, sure_bad: float | None, tolerance: float, whole: bool) -> float | None:
    """Close in on the undecided region from the failing side, so that the bracket is tight on both sides."""
    if sure_bad is None:
        return None
    unsure = [p.value for p in run.probes.values() if p.verdict == UNSURE and min(good, sure_bad) <= p.value < max(good, sure_bad)]
    if not unsure:
        return sure_bad
    inner = max(unsure) if sure_bad > good else min(unsure)
    while not _close(inner, sure_bad, tolerance, whole):
        middle = _middle(inner, sure_bad, whole)
        if run.probe(middle).verdict in (MISSED, INFEASIBLE):
            sure_bad = middle
        else:
            inner = middle
    return sure_bad


class _Search:
    def __init__(self, key: str, evaluate: Evaluate, wanted: float, start: int, most: int) -> None:
        self.key, self.evaluate, self.wanted, self.start, self.most = key, evaluate, wanted, start, most
        self.probes: dict[float, Probe] = {}

    def probe(self, value: float) -> Probe:
        """Return the verdict on a value, adding replications until it is sure or there are ``most``."""
        if value in self.probes:
            return self.probes[value]
        results: list[dict[str, Any] | str] = []
        while True:
            wanted = self.start if not results else min(2 * len(results), self.most)
            results += self.evaluate(value, range(len(results), wanted))
            found = judge(value, results, self.wanted)
            if found.verdict != UNSURE or len(results) >= self.most:
                self.probes[value] = found
                return found

    def found(self, largest: bool, meets: float | None, fails: float | None) -> Found:
        probes = sorted(self.probes.values(), key=lambda probe: probe.value)
        return Found(self.key, largest, self.wanted, meets, fails, probes)


def _close(a: float, b: float, tolerance: float, whole: bool) -> bool:
    if whole:
        return abs(a - b) <= 1
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


def _middle(a: float, b: float, whole: bool) -> float:
    """Return the geometric middle (arithmetic next to zero), rounded to four digits so that it can be said."""
    low, high = sorted((a, b))
    middle = math.sqrt(low * high) if low > 0 and high > 2 * low else (low + high) / 2
    if whole:
        return float(min(max(round(middle), math.floor(low) + 1), math.ceil(high) - 1))
    rounded = float(f"{middle:.4g}")
    return rounded if low < rounded < high else middle


def search(
    base: dict[str, Any],
    key: str,
    low: float,
    high: float,
    *,
    largest: bool,
    overrides: Sequence[str] = (),
    workers: int = 1,
    executor: Executor | None = None,
    store: Store | None = None,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> Found:
    """Search a key of a scenario (plain data) for the value at which its SLO turns; every value uses the same seeds.

    Raises ConfigError without an SLO.
    """
    slo = base.get("slo") or {}
    if not any(slo.get(name) is not None for name in ("ttft", "tpot", "e2e")):
        raise ConfigError("slo: is missing; a search needs one, for example --set slo.ttft=10s --set slo.tpot=100ms")
    done = 0

    def evaluate(value: float, replications: Sequence[int]) -> list[dict[str, Any] | str]:
        nonlocal done
        shown = int(value) if value == int(value) else value
        tasks: list[Task] = [(base, [*overrides, *settings({key: shown})], replication) for replication in replications]
        found = outcomes(tasks, workers=workers, executor=executor, store=store)
        done += len(found)
        if progress is not None:
            progress(done)
        return [outcome[1] if outcome[1] is not None else outcome[3] for outcome in found]

    return bisect(key, low, high, evaluate, wanted=float(slo.get("attainment") or 0.99), largest=largest, **options)


def load_key(base: dict[str, Any]) -> str:
    """Return the key that scales the load of a scenario's workload. Raises ConfigError if it has none."""
    workload = base.get("workload") or {}
    kind = workload.get("kind", "trace")
    if kind == "poisson":
        return "workload.rate_per_s"
    if kind == "multi_turn":
        return "workload.users" if workload.get("users") is not None else "workload.sessions_per_s"
    if kind == "trace":
        return "workload.rate_scale"
    raise ConfigError(f"workload: of kind '{kind}' has no rate to search; name one with --key")


def search_several(
    ranges: dict[str, tuple[float, float]],
    evaluate: Callable[[dict[str, float]], tuple[float, float]],
    *,
    trials: int = 40,
    seed: int = 1,
) -> tuple[dict[str, float] | None, list[dict[str, Any]]]:
    """Search several settings at once with Optuna (extra): the cheapest point whose attainment is reached.

    ``evaluate(point)`` returns (cost, attainment - wanted). Returns (best point or None, all trials). Raises MissingExtra.
    """
    from kvsim.errors import MissingExtra

    try:
        import optuna
    except ImportError:
        raise MissingExtra("a search in several dimensions", "search") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    rows: list[dict[str, Any]] = []

    def objective(trial: Any) -> float:
        point = {key: trial.suggest_float(key, low, high) for key, (low, high) in ranges.items()}
        cost, spare = evaluate(point)
        rows.append({**point, "cost": cost, "spare": spare})
        return cost if spare >= 0 else WORST * (1 - spare)  # any point that is not good enough is worse than every good one

    study.optimize(objective, n_trials=trials)
    good = [row for row in rows if row["spare"] >= 0]
    best = min(good, key=lambda row: row["cost"]) if good else None
    return (None if best is None else {key: best[key] for key in ranges}), rows


def cheapest(
    base: dict[str, Any],
    ranges: dict[str, tuple[float, float]],
    *,
    trials: int = 40,
    store: Store | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[dict[str, float] | None, list[dict[str, Any]]]:
    """Search several settings for the cheapest point that meets the SLO; settings of whole numbers are rounded.

    Cost: per hour if the scenario has prices (``cost:``), else GB of host RAM over all machines plus 10,000 per machine.
    Raises MissingExtra, ConfigError.
    """
    slo = base.get("slo") or {}
    if not any(slo.get(name) is not None for name in ("ttft", "tpot", "e2e")):
        raise ConfigError("slo: is missing; a search needs one, for example --set slo.ttft=10s --set slo.tpot=100ms")
    wanted, done = float(slo.get("attainment") or 0.99), 0

    def evaluate(point: dict[str, float]) -> tuple[float, float]:
        nonlocal done
        shown = {key: round(value) if is_whole(key) else float(f"{value:.3g}") for key, value in point.items()}
        outcome = outcomes([(base, settings(shown), 0)], store=store)[0]
        done += 1
        if progress is not None:
            progress(done)
        if outcome[1] is None:
            return WORST, -1.0
        machines = int(shown.get("replicas", base.get("replicas", 1)))
        return _cost_of(base, outcome[2], machines), float(outcome[1]["slo"]["attainment"] or 0.0) - wanted

    best, rows = search_several(ranges, evaluate, trials=trials, seed=int((base.get("run") or {}).get("seed", 1)))
    return best and {key: float(round(value)) if is_whole(key) else float(f"{value:.3g}") for key, value in best.items()}, rows


def _cost_of(base: dict[str, Any], capacity: dict[str, Any], machines: int) -> float:
    cost, ram = base.get("cost") or {}, float(capacity["host_bytes_total"]) / 1e9
    if cost.get("per_gpu_hour") is None:
        return machines * (10_000 + ram)
    gpus, per_gpu, per_gb = int(capacity["ranks"]), float(cost["per_gpu_hour"]), float(cost.get("per_gb_ram_hour") or 0.0)
    return machines * (gpus * per_gpu + float(ram) * per_gb)


def is_whole(key: str) -> bool:
    """Tell whether a setting takes whole numbers only."""
    return key.rpartition(".")[2] in ("users", "replicas", "tp", "max_running_requests", "sessions", "concurrency", "page_size")
