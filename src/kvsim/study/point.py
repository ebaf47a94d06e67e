"""One point of a study under one seed, as a task that any process can run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import Infeasible
from kvsim.rng import derived_seed

if TYPE_CHECKING:
    from kvsim.config.resolved import Resolved
    from kvsim.study.design import Point
    from kvsim.workload.spec import Client

#: (scenario as plain data, settings "key=value", number of the replication)
Task = tuple[dict[str, Any], list[str], int]
#: (digest, summary or None, capacity facts, why infeasible)
Outcome = tuple[str, dict[str, Any] | None, dict[str, Any], str]


def plain_scenario(scenario: Any, overrides: Any = ()) -> dict[str, Any]:
    """Return a scenario (name, path or Scenario) as plain data that a worker process can validate again."""
    from kvsim.config.load import load, load_data

    if isinstance(scenario, (str, Path)):
        scenario = load(scenario, overrides)
    elif overrides:
        scenario = load_data(scenario.model_dump(mode="json", exclude_unset=True), overrides)
    data: dict[str, Any] = scenario.model_dump(mode="json", exclude_unset=True)
    return data


def settings(point: Point) -> list[str]:
    """Return a point as overrides."""
    return [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in point.items()]


def resolve_task(task: Task) -> Resolved:
    """Return the resolved scenario of a task, with the seed of its replication (0: the scenario's own)."""
    from kvsim.config.load import load_data
    from kvsim.config.resolve import resolve
    from kvsim.cost.resolve import with_cost_notes

    base, sets, replication = task
    if replication:
        seed = derived_seed(int((base.get("run") or {}).get("seed", 1)), "replication", replication)
        sets = [*sets, f"run.seed={seed}"]
    return with_cost_notes(resolve(load_data(base, sets)))


def client_of(resolved: Resolved, replication: int) -> Client | None:
    """Return the client of a replication: None for the scenario's own; a recorded trace is resampled (``study.resample``)."""
    workload = resolved.scenario.workload
    if not replication or workload is None or workload.kind != "trace":
        return None
    from kvsim.study.resample import resample
    from kvsim.workload.build import build_client

    unscaled = workload.model_copy(update={"rate_scale": 1.0})
    recorded = build_client(unscaled, seed=resolved.scenario.run.seed, clients=resolved.scenario.clients)
    from kvsim.workload.clients import OpenLoop

    if not isinstance(recorded, OpenLoop):
        raise Infeasible("a recorded trace can be resampled only in an open loop (its recorded times); give one replication")
    timeout = resolved.scenario.clients.timeout
    return OpenLoop(
        resample(recorded.unsent(), resolved.scenario.run.seed),
        workload.rate_scale,
        timeout_ps=None if timeout is None else round(timeout * 1e12),
    )


def run_point(task: Task) -> Outcome:
    """Simulate one point and return plain data, the same from every process and after a round trip through a file."""
    from kvsim.measure.compare import batch_means
    from kvsim.measure.summary import summarise
    from kvsim.sim.simulate import simulate

    resolved = resolve_task(task)
    facts = capacity_facts(resolved.capacity)
    if resolved.capacity.infeasible:
        return resolved.digest, None, facts, "; ".join(resolved.capacity.infeasible)
    try:
        recording = simulate(resolved, client=client_of(resolved, task[2]))
    except Infeasible as failure:
        return resolved.digest, None, facts, str(failure)
    summary = {**summarise(recording), "batches": batch_means(recording)}
    return resolved.digest, json.loads(json.dumps(summary, allow_nan=False)), facts, ""


def capacity_facts(capacity: Any) -> dict[str, Any]:
    """Return the figures of a capacity that tables show."""
    names = ("device_tokens", "host_tokens", "host_bytes_per_rank", "host_bytes_total", "longest_prompt", "ranks", "kv_bytes_per_token")
    return {name: getattr(capacity, name) for name in names} | {"assumptions": list(capacity.assumptions)}
