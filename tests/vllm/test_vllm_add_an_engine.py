"""docs/guides/add-an-engine.md, followed step by step in a copy of kvsim: the third engine runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BLOCK = re.compile(r"<!-- (new|edit|append) (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)


def apply(root: Path, kind: str, name: str, text: str) -> None:
    path = root / name
    if kind == "new":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return
    if kind == "append":
        path.write_text(path.read_text() + text)
        return
    lines = text.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] in "- ")
    after = "".join(line[1:] for line in lines if line[0] in "+ ")
    source = path.read_text()
    assert source.count(before) == 1, (name, before)
    path.write_text(source.replace(before, after))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    folder = tmp_path_factory.mktemp("third")
    for part in ("src", "hardware", "experiments", "workloads"):
        shutil.copytree(root / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for kind, name, text in BLOCK.findall((root / "docs/guides/add-an-engine.md").read_text()):
        apply(folder, kind, name, text)
    return folder


def run(copy: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "kvsim", *words]
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_third_engine_serves_every_request(copy: Path) -> None:
    done = run(copy, "run", "slotted.yaml", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["requests"]["finished"] == 200


def test_its_closed_form_equals_its_steps(copy: Path) -> None:
    runs, steps = (json.loads(run(copy, "run", "slotted.yaml", "--json", *more).stdout) for more in ((), ("--set", "run.exact_steps=true")))
    assert runs["ttft_s"] == steps["ttft_s"]
    assert runs["e2e_s"] == steps["e2e_s"]


def test_its_impossible_requests_and_machines_are_findings(copy: Path) -> None:
    refused = json.loads(run(copy, "run", "slotted.yaml", "--json", "--set", "engine.slot_tokens=850").stdout)
    assert refused["requests"]["refused"] == 200
    done = run(copy, "run", "slotted.yaml", "--set", "engine.slots=4000")
    assert done.returncode == 1
    assert "do not fit" in done.stdout + done.stderr


def test_a_key_of_another_engine_is_named(copy: Path) -> None:
    done = run(copy, "run", "slotted.yaml", "--set", "engine.max_num_seqs=3")
    assert done.returncode == 2
    assert "is a key of vllm's engine block, and engine.rules chooses slotted" in done.stderr
