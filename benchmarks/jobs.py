"""The jobs of the speed table. Each prints one JSON object; run in a process of its own by ``benchmarks.measure``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SCENARIO = str(HERE / "scenarios" / "mooncake.yaml")
SHARED = Path(os.environ.get("KVSIM_SHARED", HERE.parents[1] / "shared"))
TRACE = SHARED / "traces" / "mooncake_conversation.jsonl"


def simulate(*overrides: str, trace: Path | None = TRACE, scenario: str = SCENARIO) -> dict[str, Any]:
    """Simulate once and tell CPU of the simulation alone, events, runs and requests."""
    from kvsim.config.load import load
    from kvsim.config.resolve import resolve
    from kvsim.measure.summary import summarise
    from kvsim.sim.simulate import simulate as run

    sets = [f"workload.trace={trace}"] if trace else []
    resolved = resolve(load(scenario, [*sets, *overrides]))
    start = time.process_time()
    recording = run(resolved)
    cpu = time.process_time() - start
    summary = summarise(recording)
    return {
        "simulation_cpu_s": cpu,
        "requests": len(recording.requests),
        "us_per_request": cpu / max(len(recording.requests), 1) * 1e6,
        "events": recording.events,
        "events_per_request": recording.events / max(len(recording.requests), 1),
        "rows": len(recording.steps),
        "hit_rate": summary["hits"]["hit_rate"],
        "overloaded": summary["overload"]["overloaded"],
        "gpu_busy": (summary["load"] or {}).get("gpu_busy"),
    }


def copies(count: int, folder: str, *, output_factor: int = 1, block_factor: int = 1) -> Path:
    """Write ``count`` copies of the trace after one another with fresh ids (and longer outputs, or smaller blocks); return the file."""
    lines = TRACE.read_text().splitlines()
    span = json.loads(lines[-1])["timestamp"] + 1000
    path = Path(folder) / f"copies{count}_{output_factor}_{block_factor}.jsonl"
    with path.open("w") as out:
        for copy in range(count):
            offset = copy * 10_000_000
            for line in lines:
                row = json.loads(line)
                row["timestamp"] += copy * span
                row["output_length"] *= output_factor
                ids = row["hash_ids"]
                if block_factor > 1:
                    need = -(-row["input_length"] * block_factor // 512)
                    ids = [h * block_factor + i for h in ids for i in range(block_factor)][:need]
                row["hash_ids"] = [h + offset for h in ids]
                out.write(json.dumps(row) + "\n")
    return path


def grown(count: int) -> dict[str, Any]:
    """Simulate ``count`` copies of the trace."""
    with tempfile.TemporaryDirectory() as folder:
        return simulate(trace=copies(count, folder))


def outputs(factor: int) -> dict[str, Any]:
    """Simulate with outputs ``factor`` times longer at the same load (decode steps that much shorter)."""
    with tempfile.TemporaryDirectory() as folder:
        return simulate(f"costs.decode_step={10e-3 / factor}s", trace=copies(1, folder, output_factor=factor))


def sweep(points: int) -> dict[str, Any]:
    """Sweep ``points`` ratios over the whole trace on two processes."""
    import kvsim

    ratios = [round(1.0 + 63.0 * (i / (points - 1)) ** 2, 3) for i in range(points)]
    start = time.perf_counter()
    kvsim.sweep(SCENARIO, {"engine.hicache.ratio": ratios}, overrides=[f"workload.trace={TRACE}", "hardware.host_ram=unlimited"], workers=2)
    return {"sweep_wall_s": time.perf_counter() - start, "points": points}


def curve() -> dict[str, Any]:
    """Compute the hit-rate curve of the trace for all capacities."""
    from kvsim.measure.curve import hit_curve
    from kvsim.measure.references import references
    from kvsim.workload.read import open_trace

    stream = references(open_trace(str(TRACE)), 512)
    start = time.process_time()
    hit_curve(stream)
    return {"curve_cpu_s": time.process_time() - start}


def vllm(*overrides: str) -> dict[str, Any]:
    """Simulate the trace under vLLM's rules, block 16, with CPU offload."""
    return simulate(*overrides, scenario=str(HERE / "scenarios" / "mooncake-vllm.yaml"))


def worst(case: str, factor: int = 1) -> dict[str, Any]:
    """Simulate one of the worst cases."""
    from benchmarks.worst import run_case

    run_case(case)  # imports and caches are warm
    return run_case(case, factor)


def read(path: str = str(TRACE)) -> dict[str, Any]:
    """Read a trace, the Mooncake hour unless another is given."""
    from benchmarks.reading import read as read_one

    return read_one(path)


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "simulate": simulate,
    "grown": grown,
    "outputs": outputs,
    "sweep": sweep,
    "curve": curve,
    "vllm": vllm,
    "worst": worst,
    "read": read,
}


def main() -> None:
    """Run one job: ``python -m benchmarks.jobs NAME [ARGS]``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=sorted(JOBS))
    parser.add_argument("args", nargs="*")
    given = parser.parse_args()
    args = [int(arg) if arg.isdigit() else arg for arg in given.args]
    sys.stdout.write(json.dumps(JOBS[given.job](*args)) + "\n")


if __name__ == "__main__":
    main()
