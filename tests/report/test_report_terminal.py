"""Every command's output fits the terminal, says its state in words and is plain where it should be."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest

from folders import shared_folder
from kvsim.cli.app import COMMANDS as APP_COMMANDS
from kvsim.cli.app import run_command

SWEEP = ["sweep", "hicache-ratio", "--set", "workload.sessions=6"]
COMMANDS = {
    "run": ["run", "toy", "--set", "workload.requests=40", "--set", "slo.ttft=1s"],
    "run of the anchor": ["run", "hicache-ratio", "--set", "workload.sessions=8"],
    "explain": ["explain", "hicache-ratio"],
    "sweep": ["sweep", "hicache-ratio", "--set", "workload.sessions=6", "--axis", "engine.hicache.ratio=off,4,16", "--workers", "1"],
    "list": ["list"],
    "options": ["options", "hicache-ratio", "--static"],
    "curve": ["curve", "TRACE", "--hardware", "8x-rtx-pro-6000", "--model", "kimi-k2.5-int4"],
    "trace info": ["trace", "info", "TRACE"],
    "replay": ["replay", "TRACE", "--hardware", "8x-rtx-pro-6000", "--model", "kimi-k2.5-int4"],
    "help": ["--help"],
    "help of run": ["run", "--help"],
    "run with misses": ["run", "hicache-ratio", "--set", "workload.sessions=8", "--misses"],
    "run of vllm": ["run", "anchor-vllm", "--set", "workload.sessions=8"],
    "explain vllm": ["explain", "anchor-vllm"],
    "explain a step": ["explain", "hicache-ratio", "--step", "prefill=8192 cached=100k decode=32x16k"],
    "sweep with replications": [*SWEEP, "--axis", "engine.hicache.ratio=off,4", "--replications", "2", "--workers", "1"],
    "search": ["search", "toy", "--set", "workload.requests=60", "--set", "slo.ttft=1s", "--replications", "2", "--workers", "1"],
    "trace fit": ["trace", "fit", "TRACE"],
    "compare": ["compare", "RUN", "RUN"],
    "report": ["report", "RUN"],
    "verify": ["verify", "RECORDING"],
    "verify what differs": ["verify", "WRONG"],
    "calibrate": ["calibrate", "hicache-ratio", "STEPS", "--residuals", "--constants", "overheads.m0,prefill.rate"],
    "validate": ["validate", "S01,S05"],
    "rules": ["list", "rules", "--diff", "sglang-0.5.9", "sglang-0.5.23"],
    "rules of vllm": ["list", "rules", "--diff", "vllm-0.19.0", "vllm-0.24.0"],
    **{f"help of {name}": [name, "--help"] for name in APP_COMMANDS},
}
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


RECORDED = ("verify", "verify what differs", "validate")


class Terminal(io.StringIO):
    """A standard output that says it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture(scope="module", autouse=True)
def trace(tmp_path_factory):
    """A small trace in place of the word TRACE."""
    path = tmp_path_factory.mktemp("terminal") / "trace.jsonl"
    rows = [{"timestamp": 900 * i, "input_length": 1500, "output_length": 10, "hash_ids": [1, 2, 10 + i % 3]} for i in range(12)]
    path.write_text("\n".join(map(json.dumps, rows)))
    steps = path.with_name("steps.csv")
    taken = "".join(
        f"decode,0,0,{b},{b * c},{12 + b / 8 + b * c / 1e5}\nprefill,{b * 256},0,0,0,{b * 20}\n" for b in (1, 8, 32) for c in (900, 9000)
    )
    steps.write_text("kind,new_tokens,cached_tokens,batch,sum_context,latency_ms\n" + taken)
    run = path.with_name("run")
    assert run_command(["run", "toy", "--set", "workload.requests=40", "-o", str(run)]) in (0, 1)
    files = {"TRACE": path, "STEPS": steps, "RUN": run}
    if shared_folder() is not None:
        files["RECORDING"] = sorted((shared_folder() / "oracle").glob("*.json"))[0]
        wrong = json.loads(files["RECORDING"].read_text())
        files["WRONG"] = path.with_name("a_recording_with_a_rather_long_name_that_says_something_else.json")
        files["WRONG"].write_text(json.dumps(spoilt(wrong)))
    for words in COMMANDS.values():
        words[:] = [str(files.get(word, word)) for word in words]


def spoilt(recording):
    """Return a recording with a counter of its last row changed."""
    recording["ops"][-1]["s"][0] += 1
    return recording


def printed(monkeypatch, words, *, width, terminal, colour=True):
    out = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    code = run_command(words)
    assert code in (0, 1)
    return out.getvalue()


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("width", [80, 100])
def test_no_line_is_wider_than_the_terminal_and_no_cell_is_cut(monkeypatch, name, width):
    if shared_folder() is None and name in RECORDED:
        pytest.skip("needs the shared folder")
    text = ESCAPE.sub("", printed(monkeypatch, COMMANDS[name], width=width, terminal=True))
    assert text.strip()
    too_wide = [line for line in text.splitlines() if len(line.rstrip()) > width and " " in line.strip()]  # a path is not broken
    assert too_wide == []
    assert "…" not in text


@pytest.mark.parametrize("name", [name for name in COMMANDS if not name.startswith("help")])
def test_piped_output_has_no_escape_codes_and_at_most_100_columns(monkeypatch, name):
    if shared_folder() is None and name in RECORDED:
        pytest.skip("needs the shared folder")
    text = printed(monkeypatch, COMMANDS[name], width=200, terminal=False)
    assert "\x1b" not in text
    assert [line for line in text.splitlines() if len(line.rstrip()) > 100 and " " in line.strip()] == []


@pytest.mark.parametrize("name", ["run", "sweep", "options", "compare", "search", "explain a step", "help of run"])
def test_without_colour_the_words_are_the_same(monkeypatch, name):
    plain = printed(monkeypatch, COMMANDS[name], width=100, terminal=True, colour=False)
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", plain)
    monkeypatch.delenv("NO_COLOR")
    coloured = printed(monkeypatch, COMMANDS[name], width=100, terminal=True)
    assert ESCAPE.sub("", coloured) == ESCAPE.sub("", plain)


def test_an_infeasible_point_is_said_in_words(monkeypatch):
    text = printed(monkeypatch, COMMANDS["sweep"], width=80, terminal=False)
    row = next(line for line in text.splitlines() if line.strip().startswith("16 "))
    assert "infeasible" in row
    assert "does not fit" in " ".join(text.split())


@pytest.mark.parametrize(
    ("share", "wanted", "met", "shown"),
    [
        (950 / 960, 0.99, False, "98.96 %"),
        (0.9, 0.99, False, "90.0 %"),
        (0.99, 0.99, True, "99.0 %"),
        (0.98999, 0.99, False, "98.999 %"),
        (1.0, 1.0, True, "100.0 %"),
        (0.0, 0.99, False, "0.0 %"),
    ],
)
def test_a_share_just_below_the_goal_is_not_rounded_up_to_it(share, wanted, met, shown):
    from kvsim.report.terminal import attained

    assert attained({"attainment": share, "attainment_wanted": wanted, "met": met}) == shown
