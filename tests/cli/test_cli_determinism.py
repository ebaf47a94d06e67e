"""The same scenario gives the same bytes, in any process; start-up stays light."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvsim.cli.app import run_command


def run_in_process(folder: Path, seed: str) -> dict[str, str]:
    command = [sys.executable, "-m", "kvsim", "run", "toy", "--set", "engine.hicache.host_tokens=40000", "--set", "workload.requests=60", "-o", str(folder)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed})
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_two_processes_with_other_hash_seeds_write_the_same_bytes(tmp_path: Path) -> None:
    first, second = run_in_process(tmp_path / "a", "1"), run_in_process(tmp_path / "b", "4242")
    assert first == second
    assert {"manifest.json", "scenario.yaml", "summary.json", "requests.csv", "steps.csv"} <= set(first)


def test_a_run_directory_repeats_itself_byte_for_byte(tmp_path: Path) -> None:
    settings = ["--set", "workload.requests=40", "--set", "engine.hicache.host_tokens=30000"]
    assert run_command(["run", "toy", *settings, "-o", str(tmp_path / "a")]) == 0
    assert run_command(["run", str(tmp_path / "a"), "-o", str(tmp_path / "b")]) == 0
    for file in sorted((tmp_path / "a").iterdir()):
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name


@pytest.mark.parametrize(
    ("arguments", "forbidden"),
    [
        (["--help"], ["numpy", "pandas", "scipy", "pydantic", "simpy"]),
        (["explain", "hicache-ratio"], ["numpy", "pandas", "scipy", "simpy", "altair"]),
        (["run", "toy", "--json"], ["pandas", "scipy", "altair"]),
    ],
)
def test_heavy_imports_stay_out_of_the_start_up_path(arguments: list[str], forbidden: list[str]) -> None:
    code = f"import sys; from kvsim.cli.app import run_command; run_command({arguments!r}); print(','.join(m for m in {forbidden!r} if m in sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip().splitlines()[-1:] in ([], [""])
