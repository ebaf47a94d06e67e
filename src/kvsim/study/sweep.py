"""Simulates the points of a study with common random numbers, serially or on any ``concurrent.futures.Executor``.

Every point runs the same seeds, so differences between points are paired. Infeasible points stay in the study, marked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.study.design import Point, grid
from kvsim.study.executor import run_tasks
from kvsim.study.point import Task, capacity_facts, plain_scenario, run_point, settings

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.study.store import Store

__all__ = ["Result", "Study", "capacity_facts", "headline", "outcomes", "run_point", "sweep"]


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
    base = plain_scenario(scenario, overrides)
    chosen = dict(axes) if axes is not None else dict(base.get("study", {}).get("axes") or {})
    wanted = list(points) if points is not None else grid(chosen)
    count = replications or int((base.get("run") or {}).get("replications") or 1)
    keys = [(point, replication) for point in wanted for replication in range(count)]
    tasks: list[Task] = [(base, settings(point), replication) for point, replication in keys]
    found = outcomes(tasks, workers=workers, executor=executor, store=store, progress=progress)
    study = Study(str(scenario) if isinstance(scenario, (str, Path)) else "scenario", {key: list(values) for key, values in chosen.items()})
    study.results = [Result(point, replication, *outcome) for (point, replication), outcome in zip(keys, found, strict=True)]
    return study


def outcomes(
    tasks: Sequence[Task],
    *,
    workers: int = 1,
    executor: Executor | None = None,
    store: Store | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Any]:
    """Return the outcome of every task in order; known ones come from the store, new ones are kept there as they end."""
    known = [store.find(task) if store is not None else None for task in tasks]
    todo = [i for i, outcome in enumerate(known) if outcome is None]
    done = len(tasks) - len(todo)

    def keep(at: int, outcome: Any) -> None:
        nonlocal done
        known[todo[at]] = outcome
        if store is not None:
            store.keep(tasks[todo[at]], outcome)
        done += 1
        if progress is not None:
            progress(done)

    run_tasks(run_point, [tasks[i] for i in todo], keep, workers=workers, executor=executor)
    return known


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
