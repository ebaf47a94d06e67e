"""Simulates the points of a study with common random numbers, serially or on any ``concurrent.futures.Executor``.

Every point runs the same seeds, so differences between points are paired. Infeasible points stay in the study, marked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.measure.steady import Estimate, replication_estimate, within
from kvsim.study.design import Point, grid
from kvsim.study.executor import run_tasks
from kvsim.study.point import Task, capacity_facts, plain_scenario, run_point, settings

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.study.store import Store

MOST_REPLICATIONS = 32
#: Headline figures that have a mean over replications.
ESTIMATED = (
    "hit_rate",
    "ttft_mean_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_mean_s",
    "output_tokens_per_s",
    "goodput_requests_per_s",
    "attainment",
)
SHARES = ("hit_rate", "attainment")

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
    precision_notes: list[str] = field(default_factory=list)

    def points(self) -> Iterator[tuple[Point, list[Result]]]:
        """Yield each point with its replications."""
        seen: dict[str, tuple[Point, list[Result]]] = {}
        for result in self.results:
            seen.setdefault(repr(result.point), (result.point, []))[1].append(result)
        yield from seen.values()

    def estimates(self) -> list[dict[str, Any]]:
        """Return one row per point: each headline figure's mean over replications with its 95 % half-width (None for one replication)."""
        rows = []
        for point, results in self.points():
            figures = [headline(result) for result in results if result.summary is not None]
            row: dict[str, Any] = {"point": point, "replications": len(figures), "figures": {}}
            for name in ESTIMATED if figures else ():
                values = [figure[name] for figure in figures if figure[name] is not None]
                found = replication_estimate(values)
                row["figures"][name] = _interval_of(name, found) if values else None
            rows.append(row)
        return rows

    def frame(self) -> pd.DataFrame:
        """Return one row per point and replication: axes, feasibility, the headline figures."""
        import pandas as pd

        return pd.DataFrame(
            [
                {**result.point, "replication": result.replication, "feasible": result.summary is not None, **headline(result)}
                for result in self.results
            ]
        )


def _interval_of(name: str, found: Estimate) -> dict[str, float | None]:
    """Return a mean over replications with its 95 % interval, cut to what the figure can be (no time or rate below 0, no share above 1)."""
    half = found.half_width
    most = 1.0 if name in SHARES else math.inf
    low, high = (None, None) if half is None else within(found.mean - half, found.mean + half, most=most)
    return {"mean": found.mean, "half_width": half, "low": low, "high": high}


def sweep(
    scenario: Any,
    axes: Mapping[str, Sequence[Any]] | None = None,
    *,
    points: Sequence[Point] | None = None,
    overrides: Sequence[str] = (),
    replications: int | None = None,
    precision: float | None = None,
    workers: int = 1,
    executor: Executor | None = None,
    store: Store | None = None,
    progress: Callable[[int], None] | None = None,
) -> Study:
    """Return the study of a scenario (name, path or Scenario) over ``axes`` (or given ``points``).

    ``precision`` (or ``run.precision``): replications are added to a point until the 95 % half-width of its mean TTFT is that share of it.
    ``workers`` > 1: that many local processes; ``executor``: any other (a Dask client's). ``store``: finished results are kept there and
    found again. The outcome does not depend on any of these.
    """
    base = plain_scenario(scenario, overrides)
    chosen = dict(axes) if axes is not None else dict(base.get("study", {}).get("axes") or {})
    wanted = list(points) if points is not None else grid(chosen)
    run = base.get("run") or {}
    count = replications or int(run.get("replications") or 1)
    wanted_precision = precision if precision is not None else run.get("precision")
    name = str(scenario) if isinstance(scenario, (str, Path)) else "scenario"
    study = Study(name, {key: list(values) for key, values in chosen.items()})
    go = partial(outcomes, workers=workers, executor=executor, store=store, progress=progress)
    keys = [(point, replication) for point in wanted for replication in range(count)]
    found = go([(base, settings(point), replication) for point, replication in keys])
    results = [Result(point, replication, *outcome) for (point, replication), outcome in zip(keys, found, strict=True)]
    if wanted_precision is not None:
        results = _until_precise(base, wanted, results, float(wanted_precision), go, study.precision_notes)
    study.results = results
    return study


def _until_precise(
    base: dict[str, Any], points: Sequence[Point], results: list[Result], precision: float, go: Any, notes: list[str]
) -> list[Result]:
    """Add replications point by point (at least three, doubling) until mean TTFT is known to ``precision`` or there are enough."""
    out: list[Result] = []
    for point in points:
        own = [result for result in results if result.point == point]
        while (reason := imprecision(own, precision)) is not None and len(own) < MOST_REPLICATIONS and own[0].summary is not None:
            more = range(len(own), min(max(3, 2 * len(own)), MOST_REPLICATIONS))
            found = go([(base, settings(point), replication) for replication in more])
            own += [Result(point, replication, *outcome) for replication, outcome in zip(more, found, strict=True)]
        if own[0].summary is not None:
            done = f"reached with {len(own)} replications" if reason is None else f"not reached with {len(own)} replications: {reason}"
            notes.append(f"{point or 'as is'}: precision {100 * precision:g} % of mean TTFT {done}")
        out += own
    return out


def imprecision(results: Sequence[Result], precision: float) -> str | None:
    """Return why the mean TTFT of replications is not known to a relative ``precision``, or None if it is."""
    means = [result.summary["ttft_s"]["mean"] for result in results if result.summary and result.summary["ttft_s"]]
    if len(means) < 3:
        return f"{len(means)} of at least 3 replications"
    estimate = replication_estimate(means)
    half = estimate.half_width or 0.0
    if half <= precision * abs(estimate.mean):
        return None
    return f"the half-width is {100 * half / abs(estimate.mean):.1f} %"


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
        "load_state": summary["overload"].get("state"),
    }
