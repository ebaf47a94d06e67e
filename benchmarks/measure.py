"""Runs one job in a process of its own and reads its CPU seconds, peak memory and counts."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

REFERENCE_LOOP_S = 0.48  # ten million additions in a plain loop on the machine the targets were set on


@dataclass(slots=True)
class Outcome:
    """CPU and wall seconds, peak RSS in MiB, and what the job itself reported."""

    cpu_s: float
    wall_s: float
    rss_mib: float
    told: dict[str, Any] = field(default_factory=dict)


def calibration_loop() -> float:
    """Return the CPU seconds of ten million additions: the unit in which limits travel to another machine."""
    start = time.process_time()
    total = 0
    for i in range(10_000_000):
        total += i
    return time.process_time() - start


def run_job(arguments: Sequence[str], *, repeat: int = 1) -> Outcome:
    """Run a command ``repeat`` times and return the run with the least CPU; stdout's last line is its JSON, if any."""
    best: Outcome | None = None
    for _ in range(repeat):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "benchmarks.rss", *arguments], capture_output=True, text=True, check=False)
        wall = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"{' '.join(arguments)}: exit {done.returncode}: {done.stderr[-2000:]}")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        rss, _, rest = done.stderr.strip().rpartition("\n")[2].partition(" ")
        told = _json_of(done.stdout)
        outcome = Outcome(cpu, wall, float(rss) if rest == "MiB" else 0.0, told)
        if best is None or outcome.cpu_s < best.cpu_s:
            best = outcome
    assert best is not None
    return best


def _json_of(text: str) -> dict[str, Any]:
    lines = text.strip().splitlines()
    if not lines:
        return {}
    for candidate in (lines[-1], text):
        try:
            data = json.loads(candidate)
        except ValueError:
            continue
        if isinstance(data, dict):
            return data
    return {}
