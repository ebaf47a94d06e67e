"""Judging and predicting several scenarios at once, on several processes: the same numbers as one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from kvsim.study.validation.core import Outcome, predictions_csv, suite

#: Scenarios that simulate long runs, the longest first: they start first, so that no process waits for one of them in the end.
LONGEST_FIRST = ("S12", "S11", "S16", "S10", "S15", "S18")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One scenario's results: its outcome (None: nothing open to judge) and its predictions as CSV (None: not asked for, or nothing is held)."""

    id: str
    outcome: Outcome | None
    predictions: str | None


def verdict_of(name: str, folder: Path, predict: bool) -> Verdict:
    """Judge one scenario and, if asked for, make its blind predictions."""
    scenario = suite([name])[0]
    outcome = None if scenario.judge is None else scenario.judge(folder)
    rows = scenario.predict(folder) if predict and scenario.predict is not None else None
    return Verdict(name, outcome, None if rows is None else predictions_csv(rows))


def verdicts(ids: Sequence[str], folder: Path, *, predict: bool, workers: int, done: Callable[[str], None]) -> list[Verdict]:
    """Return the verdicts of these scenarios in their order; ``done(id)`` is called as each one is finished."""
    order = sorted(ids, key=lambda name: LONGEST_FIRST.index(name) if name in LONGEST_FIRST else len(LONGEST_FIRST))
    found: dict[str, Verdict] = {}
    if workers <= 1 or len(order) <= 1:
        for name in order:
            found[name] = verdict_of(name, folder, predict)
            done(name)
        return [found[name] for name in ids]
    with _pool(min(workers, len(order))) as pool:
        for future in as_completed([pool.submit(verdict_of, name, folder, predict) for name in order]):
            verdict = future.result()
            found[verdict.id] = verdict
            done(verdict.id)
    return [found[name] for name in ids]


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of fresh processes; what has not started is dropped when the block is left by an error."""
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
