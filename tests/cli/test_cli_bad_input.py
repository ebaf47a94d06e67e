"""A wrong file to each command: a clear error, exit code 2, never a traceback."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kvsim.cli.app import run_command


def _files(folder: Path) -> dict[str, Path]:
    folder.mkdir(exist_ok=True)
    made: dict[str, bytes] = {
        "empty": b"",
        "binary": bytes(range(256)) * 20,
        "truncated.gz": gzip.compress(b'{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n' * 500)[:60],
        "nan.jsonl": b'{"timestamp": NaN, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n',
        "negative.jsonl": b'{"timestamp": 0, "input_length": -5, "output_length": 1, "hash_ids": []}\n',
        "huge.jsonl": b'{"timestamp": 0, "input_length": 1e400, "output_length": 1, "hash_ids": []}\n',
        "huge_int.jsonl": b'{"timestamp": 0, "input_length": ' + b"9" * 400 + b', "output_length": 1, "hash_ids": []}\n',
        "text": b"hello\nworld\n",
        "deep.json": b"[" * 3000,
        "latin1.yaml": b"hardware: caf\xe9\n",
        "list.yaml": b"- a\n- b\n",
        "twice.yaml": b"hardware: a\nhardware: b\nmodel: m\n",
        "bomb.yaml": b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(b"%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n" % (98 + i, 98 + i, *[97 + i] * 9) for i in range(12)),
    }
    for name, data in made.items():
        (folder / name).write_bytes(data)
    (folder / "folder").mkdir(exist_ok=True)
    return {name: folder / name for name in [*made, "folder", "missing"]}


NAMES = ["empty", "binary", "truncated.gz", "nan.jsonl", "negative.jsonl", "huge.jsonl", "huge_int.jsonl", "text", "deep.json", "latin1.yaml", "list.yaml", "twice.yaml", "bomb.yaml", "folder", "missing"]
MACHINE = ["--hardware", "8x-rtx-pro-6000", "--model", "kimi-k2.5-int4"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "command",
    [
        ["run", "FILE"], ["explain", "FILE"], ["sweep", "FILE", "--axis", "run.seed=1,2"], ["options", "FILE", "--static"], ["search", "FILE"], ["curve", "FILE"],
        ["replay", "FILE", *MACHINE], ["trace", "info", "FILE"], ["trace", "convert", "FILE"], ["trace", "anonymise", "FILE"], ["trace", "fit", "FILE"],
        ["verify", "FILE"], ["report", "FILE"], ["compare", "FILE", "FILE"], ["calibrate", "FILE"], ["explain", "toy", "--log", "FILE"], ["run", "--from", "FILE"],
        ["explain", "--hardware", "FILE", "--model", "kimi-k2.5-int4"], ["explain", "--hardware", "8x-h100", "--model", "FILE"],
    ],
    ids=lambda command: "-".join(word for word in command if not word.startswith("-"))[:40],
)  # fmt: skip
def test_a_wrong_file_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], name: str) -> None:
    path = str(_files(tmp_path)[name])
    code = run_command([path if word == "FILE" else word for word in command])
    shown = capsys.readouterr()
    assert code == 2, shown.err[-500:]
    assert "Traceback" not in shown.err
    assert shown.err.strip()


def test_all_faults_of_a_scenario_come_at_once_with_their_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(
        "hardware: 8x-rtx-pro-6000\nmodel: kimi-k2.5-int4\nengine:\n  tp: many\n  hicache: {ratoi: 4}\n  mem_fraction_static: 1.5\nslo: {ttft: 10 parsecs}\nrun: {seed: no}\n"
    )
    assert run_command(["explain", str(file)]) == 2
    shown = capsys.readouterr().err
    for line, word in ((4, "engine.tp"), (5, "did you mean 'ratio'"), (6, "mem_fraction_static"), (7, "slo.ttft"), (8, "run.seed")):
        assert f"s.yaml:{line}: " in shown
        assert word in shown


def test_numbers_take_units_and_1e9_is_a_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("hardware: {base: 8x-h100, host_ram: 512GiB}\nmodel: llama-3.1-8b\nengine: {tp: 1, device_tokens: 1e5, hicache: {size: 20}}\n")
    assert run_command(["explain", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device_tokens"] == 100_000


@pytest.mark.parametrize("argument", ["nonsense", "engine.hicache.ratio", "engine.hicache=3", "a.b.c=1", "engine.tp=-1", "=5"])
def test_a_bad_override_is_an_error(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["explain", "hicache-ratio", "--set", argument]) == 2
    assert capsys.readouterr().err.startswith("error")


def test_an_infeasible_server_exits_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["explain", "hicache-ratio", "--set", "engine.hicache.ratio=40"]) == 1
    assert run_command(["run", "hicache-ratio", "--set", "engine.hicache.ratio=40"]) == 1
    assert "largest ratio that fits" in capsys.readouterr().err
