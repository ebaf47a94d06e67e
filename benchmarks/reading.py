"""Reading: a synthetic CSV of any length, and the streaming commands' time and peak memory on it. Jobs and rows of the speed table.

A row has a time, an input and an output; every second one belongs to one of 20,000 conversations. Peak memory must not grow with the rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.measure import Outcome, run_job

COLUMNS = "time=time_s,input=input_tokens,output=output_tokens,session=session"
COMMANDS: dict[str, tuple[str, ...]] = {
    "info": ("trace", "info", "{file}", "--columns", COLUMNS, "--json"),
    "convert": ("trace", "convert", "{file}", "--columns", COLUMNS, "--to", "azure", "-o", "{file}.out"),
    "anonymise": ("trace", "anonymise", "{file}", "--columns", COLUMNS, "--page-size", "2048", "--salt", "bench", "-o", "{file}.out"),
}


def write_csv(path: Path, rows: int, seed: int = 1) -> Path:
    """Write ``rows`` rows, about 20 a second, and return the file."""
    rng = Random(seed)
    at = 0
    with path.open("w") as out:
        out.write("time_s,input_tokens,output_tokens,session\n")
        for _ in range(rows):
            at += rng.randrange(100)
            session = rng.randrange(40_000)
            name = f"s{session}" if session < 20_000 else ""
            out.write(f"{at // 1000}.{at % 1000:03d},{rng.randrange(1, 8000)},{rng.randrange(1, 500)},{name}\n")
    return path


def read(path: str) -> dict[str, Any]:
    """Read a trace and tell CPU, rows and microseconds per row."""
    from kvsim.workload.read import open_trace

    columns = dict(pair.split("=") for pair in COLUMNS.split(",")) if path.endswith(".csv") else None
    start = time.process_time()
    rows = sum(1 for _ in open_trace(path, columns=columns))
    cpu = time.process_time() - start
    return {"read_cpu_s": cpu, "rows": rows, "us_per_row": cpu / rows * 1e6}


def csv_of(rows: int, folder: str) -> Path:
    """Return a CSV of ``rows`` rows in ``folder``, written if it is not there."""
    path = Path(folder) / f"rows{rows}.csv"
    return path if path.exists() else write_csv(path, rows)


def stream(command: str, rows: int, folder: str) -> Outcome:
    """Run one streaming command on so many rows in a process of its own."""
    arguments: Sequence[str] = [word.format(file=csv_of(rows, folder)) for word in COMMANDS[command]]
    return run_job(["kvsim", *arguments])
