"""The Python API: five calls, one for each arrow of the flow. Heavy parts are imported when called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsim.config.resolved import Resolved
    from kvsim.record.recording import Recording


def load(scenario: str, overrides: Sequence[str] | Mapping[str, Any] = ()) -> Any:
    """Return the scenario in a file or under a bundled name, with overrides (``"engine.hicache.ratio=2"``) applied.

    Raises ConfigError with every fault at once.
    """
    from kvsim.config.load import load as load_scenario

    pairs = [f"{key}={value}" for key, value in overrides.items()] if isinstance(overrides, Mapping) else list(overrides)
    return load_scenario(scenario, pairs)


def resolve(scenario: Any) -> Resolved:
    """Return the scenario with every capacity derived (a name or path is loaded first)."""
    from kvsim.config.resolve import resolve as resolve_scenario
    from kvsim.cost.resolve import with_cost_notes

    return with_cost_notes(resolve_scenario(load(scenario) if isinstance(scenario, str) else scenario))


def explain(scenario: Any) -> str:
    """Return the arithmetic of a scenario's memory as text, at most 100 columns wide."""
    from kvsim.report.explain import explain_text

    return explain_text(_resolved(scenario))


def simulate(scenario: Any) -> Recording:
    """Run a scenario (name, path, Scenario or Resolved) and return its recording."""
    from kvsim.sim.simulate import simulate as run

    return run(_resolved(scenario))


def measure(recording: Recording) -> dict[str, Any]:
    """Return the statistics of a recording as plain data (the content of summary.json)."""
    from kvsim.measure.summary import summarise

    return summarise(recording)


def sweep(scenario: Any, axes: Mapping[str, Sequence[Any]], **options: Any) -> Any:
    """Simulate a grid with common random numbers; see ``kvsim.study.sweep.sweep``."""
    from kvsim.study.sweep import sweep as run

    return run(scenario, axes, **options)


def options(scenario: Any, **settings: Any) -> Any:
    """Simulate what an operator could change, with paired differences; see ``kvsim.study.options.options_table``."""
    from kvsim.study.options import options_table
    from kvsim.study.point import plain_scenario

    return options_table(plain_scenario(scenario), **settings)


def search(scenario: Any, key: str, low: float, high: float, *, largest: bool = True, **settings: Any) -> Any:
    """Find the value of ``key`` at which the SLO turns, as a bracket; see ``kvsim.study.search.search``."""
    from kvsim.study.point import plain_scenario
    from kvsim.study.search import search as run

    return run(plain_scenario(scenario), key, low, high, largest=largest, **settings)


def curve(trace: str, block: int = 512, format: str | None = None) -> Any:
    """Return the LRU hit curve of a trace for all cache sizes (``.rate(tokens)``, ``.knee()``); see ``kvsim.measure.curve``."""
    from kvsim.measure.curve import hit_curve
    from kvsim.measure.references import references
    from kvsim.workload.read import open_trace

    return hit_curve(references(open_trace(trace, format), block))


def compare(first: Recording, second: Recording) -> dict[str, Any]:
    """Return the differences of two recordings of one workload, paired by request; see ``kvsim.measure.compare``."""
    from kvsim.measure.compare import compare as pair

    return pair(first, second)


def verify(*paths: str) -> Any:
    """Replay recordings of real engines' decisions; see ``kvsim.verify.run.verify``."""
    from kvsim.verify.run import verify as run

    return run(list(paths))


def _resolved(scenario: Any) -> Resolved:
    from kvsim.config.resolved import Resolved

    return scenario if isinstance(scenario, Resolved) else resolve(scenario)
