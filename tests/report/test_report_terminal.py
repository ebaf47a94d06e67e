"""Every command's output fits the terminal, says its state in words and is plain where it should be."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest

from kvsim.cli.app import run_command

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
}
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


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
    for words in COMMANDS.values():
        words[:] = [str(path) if word == "TRACE" else word for word in words]


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
    text = ESCAPE.sub("", printed(monkeypatch, COMMANDS[name], width=width, terminal=True))
    assert text.strip()
    too_wide = [line for line in text.splitlines() if len(line.rstrip()) > (100 if name == "explain" else width)]
    assert too_wide == []
    assert "…" not in text


@pytest.mark.parametrize("name", ["run", "explain", "sweep", "list"])
def test_piped_output_has_no_escape_codes_and_at_most_100_columns(monkeypatch, name):
    text = printed(monkeypatch, COMMANDS[name], width=200, terminal=False)
    assert "\x1b" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 100


@pytest.mark.parametrize("name", ["run", "sweep"])
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
