"""Simulates the points of a study with common random numbers, serially or on any ``concurrent.futures.Executor``.

Every point runs the same seeds, so differences between points are paired. Infeasible points stay in the study, marked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import Infeasible
from kvsim.rng import derived_seed
from kvsim.study.design import Point, grid

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.study.store import Store

Task = tuple[Any, list[str], int]


@dataclass(frozen=True, slots=True)
class Result:
    """One point under one seed: ``summary`` (None if infeasible, with the ``reason``), and what its capacity is."""

    point: Point
    replication: int
    digest: str
    summary: dict[str, Any] | None
    capacity: dict[str, Any]
    reason: str = ""


@dataclass(slots=True)
class Study:
    """A finished sweep: the axes and one result per point and replication, in order."""

    scenario: str
    axes: dict[str, list[Any]]
    results: list[Result] = field(default_factory=list)

    def points(self) -> Iterator[tuple[Point, list[Result]]]:
        """Yield each point with its replications."""
        seen: dict[str, tuple[Point, list[Result]]] = {}
        for result in self.results:
            seen.setdefault(repr(result.point), (result.point, []))[1].append(result)
        yield from seen.values()

    def frame(self) -> pd.DataFrame:
        """Return one row per point and replication: axes, feasibility, the headline figures."""
        import pandas as pd

        return pd.DataFrame(
            [
                {**result.point, "replication": result.replication, "feasible": result.summary is not None, **headline(result)}
                for result in self.results
            ]
        )


def sweep(
    scenario: Any,
    axes: Mapping[str, Sequence[Any]] | None = None,
    *,
    points: Sequence[Point] | None = None,
    overrides: Sequence[str] = (),
    replications: int | None = None,
    workers: int = 1,
    executor: Executor | None = None,
    store: Store | None = None,
    progress: Callable[[int], None] | None = None,
) -> Study:
    """Return the study of a scenario (name, path or Scenario) over ``axes`` (or given ``points``).

    ``workers`` > 1: that many local processes; ``executor``: any other (a Dask client's). ``store``: finished results are kept there and
    found again. The outcome does not depend on any of these.
    """
    base = _plain(scenario, overrides)
    chosen = dict(axes) if axes is not None else dict(base.get("study", {}).get("axes") or {})
    wanted = list(points) if points is not None else grid(chosen)
    count = replications or int((base.get("run") or {}).get("replications") or 1)
    tasks = [(base, _sets(point), replication) for point in wanted for replication in range(count)]
    keys = [(point, replication) for point in wanted for replication in range(count)]
    outcomes = list(_outcomes(tasks, workers, executor, store, progress))
    study = Study(str(scenario) if isinstance(scenario, (str, Path)) else "scenario", {key: list(values) for key, values in chosen.items()})
    study.results = [Result(point, replication, *outcome) for (point, replication), outcome in zip(keys, outcomes, strict=True)]
    return study


def _plain(scenario: Any, overrides: Sequence[str]) -> dict[str, Any]:
    """Return a scenario as plain data that a worker process can validate again."""
    from kvsim.config.load import load, load_data

    if isinstance(scenario, (str, Path)):
        scenario = load(scenario, overrides)
    elif overrides:
        scenario = load_data(scenario.model_dump(mode="json", exclude_unset=True), overrides)
    data: dict[str, Any] = scenario.model_dump(mode="json", exclude_unset=True)
    return data


def _sets(point: Point) -> list[str]:
    import json

    return [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in point.items()]


def run_point(task: Task) -> tuple[str, dict[str, Any] | None, dict[str, Any], str]:
    """Simulate one point: (digest, summary or None, capacity facts, why infeasible). Runs in a worker process."""
    from kvsim.config.load import load_data
    from kvsim.config.resolve import resolve
    from kvsim.measure.summary import summarise
    from kvsim.sim.simulate import simulate

    base, sets, replication = task
    if replication:
        seed = derived_seed(int((base.get("run") or {}).get("seed", 1)), "replication", replication)
        sets = [*sets, f"run.seed={seed}"]
    resolved = resolve(load_data(base, sets))
    facts = capacity_facts(resolved.capacity)
    if resolved.capacity.infeasible:
        return resolved.digest, None, facts, "; ".join(resolved.capacity.infeasible)
    try:
        return resolved.digest, summarise(simulate(resolved)), facts, ""
    except Infeasible as failure:
        return resolved.digest, None, facts, str(failure)


def capacity_facts(capacity: Any) -> dict[str, Any]:
    """Return the figures of a capacity that tables show."""
    names = ("device_tokens", "host_tokens", "host_bytes_per_rank", "host_bytes_total", "longest_prompt", "ranks", "kv_bytes_per_token")
    return {name: getattr(capacity, name) for name in names} | {"assumptions": list(capacity.assumptions)}


def _outcomes(
    tasks: list[Task], workers: int, executor: Executor | None, store: Store | None, progress: Callable[[int], None] | None
) -> Iterator[Any]:
    known = [store.find(task) if store is not None else None for task in tasks]
    todo = [i for i, outcome in enumerate(known) if outcome is None]
    done = len(tasks) - len(todo)

    def keep(index: int, outcome: Any) -> None:
        nonlocal done
        known[index] = outcome
        if store is not None:
            store.keep(tasks[index], outcome)
        done += 1
        if progress is not None:
            progress(done)

    if executor is None and workers > 1 and len(todo) > 1:
        from concurrent.futures import ProcessPoolExecutor

        with ProcessPoolExecutor(min(workers, len(todo))) as pool:
            _collect(pool, tasks, todo, keep)
    elif executor is not None:
        _collect(executor, tasks, todo, keep)
    else:
        for index in todo:
            keep(index, run_point(tasks[index]))
    yield from known


def _collect(pool: Executor, tasks: list[Task], todo: list[int], keep: Callable[[int, Any], None]) -> None:
    futures = {pool.submit(run_point, tasks[index]): index for index in todo}
    for future in as_completed(futures):
        keep(futures[future], future.result())


def headline(result: Result) -> dict[str, Any]:
    """Return the figures of a result that a table needs, flat."""
    summary, capacity = result.summary, result.capacity
    out: dict[str, Any] = {key: capacity[key] for key in ("device_tokens", "host_tokens", "host_bytes_per_rank", "host_bytes_total")}
    if summary is None:
        return out | {"reason": result.reason}
    flow = summary["throughput"] or {}
    slo = summary["slo"]
    return out | {
        "device_hit_tokens": summary["hits"]["device_tokens"],
        "host_hit_tokens": summary["hits"]["host_tokens"],
        "hit_rate": summary["hits"]["hit_rate"],
        "ttft_p50_s": (summary["ttft_s"] or {}).get("p50"),
        "ttft_p99_s": (summary["ttft_s"] or {}).get("p99"),
        "ttft_mean_s": (summary["ttft_s"] or {}).get("mean"),
        "tpot_mean_s": (summary["tpot_s"] or {}).get("mean"),
        "output_tokens_per_s": flow.get("output_tokens_per_s"),
        "goodput_requests_per_s": None if slo is None else slo["goodput_requests_per_s"],
        "attainment": None if slo is None else slo["attainment"],
        "retractions": summary["retractions"]["count"],
        "overloaded": summary["overload"]["overloaded"],
    }
