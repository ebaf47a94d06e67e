"""`python -m benchmarks`: the speed table, with target, aim, measured and the ratio to the calibration loop."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.jobs import SCENARIO, TRACE, copies
from benchmarks.measure import REFERENCE_LOOP_S, Outcome, calibration_loop, run_job
from benchmarks.reading import COMMANDS, csv_of, stream
from benchmarks.worst import CASES


@dataclass(frozen=True, slots=True)
class Line:
    """One row: what, target and aim (None: no limit), unit, whether it scales with the machine, and how it is measured."""

    what: str
    target: float
    aim: float
    unit: str
    scales: bool
    measure: Callable[[], float]
    long: bool = False


def job(*arguments: str, repeat: int = 2) -> Outcome:
    """Run one of benchmarks.jobs."""
    return run_job(["benchmarks.jobs", *arguments], repeat=repeat)


def told(key: str, *arguments: str, repeat: int = 2) -> Callable[[], float]:
    """Measure what a job tells."""
    return lambda: float(job(*arguments, repeat=repeat).told[key])


def growth(key: str, small: tuple[str, ...], large: tuple[str, ...]) -> Callable[[], float]:
    """Measure the ratio of two jobs."""
    return lambda: float(job(*large).told[key]) / float(job(*small).told[key])


def peak(command: str, rows: int, folder: str) -> Callable[[], float]:
    """Measure the peak memory of a streaming command."""
    return lambda: stream(command, rows, folder).rss_mib


def peaks_grow(command: str, folder: str) -> Callable[[], float]:
    """Measure the ratio of its peaks at 10 M and at 1 M rows."""
    return lambda: peak(command, 10_000_000, folder)() / peak(command, 1_000_000, folder)()


def whole(*arguments: str) -> Callable[[], Outcome]:
    """Run the command line."""
    return lambda: run_job(["kvsim", *arguments], repeat=2)


REPLAY = ("run", SCENARIO, "--set", f"workload.trace={TRACE}", "--json")


def lines(folder: str) -> list[Line]:
    """Return the rows of the table; files they need are made in ``folder``."""
    small = str(copies(1, folder, block_factor=32)) if TRACE.exists() else ""
    finer = ("simulate", "engine.page_size=16", "workload.block_size=16", f"workload.trace={small}")
    return [
        Line("Mooncake hour, simulation only", 0.40, 0.30, "s CPU", True, told("simulation_cpu_s", "simulate")),
        Line("... whole process", 0.70, 0.50, "s CPU", True, lambda: whole(*REPLAY)().cpu_s),
        Line("... peak RSS", 90, 60, "MiB", False, lambda: whole(*REPLAY)().rss_mib),
        Line("growth at 10x the requests", 1.15, 1.05, "x", False, growth("us_per_request", ("grown", "1"), ("grown", "10")), long=True),
        Line("outputs 10x longer", 1.15, 1.05, "x", False, growth("us_per_request", ("outputs", "1"), ("outputs", "10"))),
        Line("page 16 instead of 512", 1.5, 1.2, "x", False, growth("us_per_request", ("simulate",), finer)),
        Line("1 M requests, 24 M blocks", 35, 20, "s CPU", True, lambda: job("grown", "84", repeat=1).cpu_s, long=True),
        Line("20-point ratio sweep, 2 processes", 4.5, 3.0, "s wall", True, told("sweep_wall_s", "sweep", "20", repeat=1)),
        Line("hit-rate curve, all capacities", 0.1, 0.05, "s CPU", True, told("curve_cpu_s", "curve")),
        Line("overload against stable, per request", 2.0, 1.3, "x", False, growth("us_per_request", ("simulate",), ("simulate", "workload.rate_scale=1.6"))),
        Line("SimPy events per request", 6, 3, "", False, told("events_per_request", "simulate")),
        Line("kvsim --help", 0.3, 0.15, "s CPU", True, lambda: whole("--help")().cpu_s),
        Line("kvsim explain", 0.3, 0.15, "s CPU", True, lambda: whole("explain", "hicache-ratio")().cpu_s),
        Line("8 replicas, cache-aware router", 50, 30, "us/request", True, told("us_per_request", "simulate", "replicas=8", "router=cache_aware")),
        Line(
            "layer-wise overlap, shared uplinks, analytic step", 1.5, 1.2, "x", False,
            growth("us_per_request", ("simulate",), ("simulate", "costs={kind: analytic}", "links={kind: topology, topology: uplink2}", "workload.rate_scale=0.1")),
        ),
        Line("reading the Mooncake file", 0.2, 0.1, "s CPU", True, told("read_cpu_s", "read")),
        Line("reading a CSV of 1 M rows", 15, 10, "s CPU", True, lambda: float(job("read", str(csv_of(1_000_000, folder)), repeat=1).told["read_cpu_s"])),
        *[Line(f"trace {name}, 1 M rows, peak RSS", 300, 250, "MiB", False, peak(name, 1_000_000, folder), long=True) for name in COMMANDS],
        *[Line(f"trace {name}, peak RSS, 10 M rows against 1 M", 1.15, 1.1, "x", False, peaks_grow(name, folder), long=True) for name in COMMANDS],
        Line("vLLM rules against SGLang's, block 16", 2.0, 1.2, "x", False, growth("us_per_request", ("simulate",), ("vllm",))),
        *[
            Line(f"worst case {name}, us/request at 4x the size", 1.5, 1.2, "x", False, growth("us_per_request", ("worst", name), ("worst", name, "4")))
            for name in CASES
        ],
    ]  # fmt: skip


def main() -> int:
    """Measure and print; 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--long", action="store_true", help="also the rows that take minutes")
    parser.add_argument("--json", type=Path, help="write the table as JSON")
    parser.add_argument("--only", help="rows whose text contains this")
    given = parser.parse_args()
    if not TRACE.exists():
        sys.stdout.write(f"skipped: {TRACE} is not here (set KVSIM_SHARED)\n")
        return 0
    scale = calibration_loop() / REFERENCE_LOOP_S
    sys.stdout.write(f"calibration loop: {scale:.2f} x the reference machine; limits marked * are multiplied by it\n")
    rows, missed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for line in lines(folder):
            if (line.long and not given.long) or (given.only and given.only not in line.what):
                continue
            row = measured(line, scale)
            rows.append(row)
            missed += row["met"] is False
            sys.stdout.write(
                f"{row['what']:<52}{row['measured']:>12} {row['unit']:<11} target {row['target']:>7} aim {row['aim']:>7} {row['verdict']}\n"
            )
            sys.stdout.flush()
    if given.json:
        given.json.write_text(json.dumps({"calibration": scale, "rows": rows}, indent=2) + "\n")
    return 1 if missed else 0


def measured(line: Line, scale: float) -> dict[str, object]:
    """Measure one row; a feature that is not there yet is named, not hidden."""
    factor = scale if line.scales else 1.0
    base = {
        "what": line.what,
        "unit": line.unit,
        "target": f"{line.target * factor:.3g}{'*' if line.scales else ''}",
        "aim": f"{line.aim * factor:.3g}",
    }
    try:
        value = line.measure()
    except (RuntimeError, KeyError) as error:
        return {**base, "measured": "-", "met": None, "verdict": f"skipped: {str(error).strip().splitlines()[-1][:80]}"}
    met = value <= line.target * factor
    return {**base, "measured": f"{value:.3g}", "value": value, "met": met, "verdict": "met" if met else "MISSED"}


if __name__ == "__main__":
    sys.exit(main())
