"""The calls that are answered without the command-line parser: read as the parser reads them, with nothing heavy imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvsim.cli import explain_page
from kvsim.cli.app import COMMANDS, build_app, run_command
from kvsim.cli.quick import EXPLAIN, plain_arguments

PLAIN = [
    ["toy"],
    ["toy", "--json"],
    ["--set", "a=1", "toy", "--set", "b={x: -1}"],
    ["toy", "--set=a=1"],
    ["--hardware", "8x-h20", "--model=llama-3.1-8b", "--command", "python -m sglang.launch_server --tp 8"],
    ["toy", "--step", "decode=32x16k", "--as-command"],
    ["toy", "--log", "server.log"],
    [],
]


@pytest.mark.parametrize("argv", PLAIN, ids=" ".join)
def test_a_plain_call_is_read_as_the_parser_reads_it(argv, monkeypatch):
    seen = []
    monkeypatch.setattr(explain_page, "explain_page", lambda scenario=None, **given: seen.append((scenario, given)) or 0)
    quick = plain_arguments(argv, EXPLAIN)
    assert quick is not None
    build_app()(["explain", *argv], exit_on_error=False, print_error=False, result_action="return_value")
    scenario, given = seen[0]
    assert {"scenario": scenario, **given} == {"scenario": None, "set_": None, "hardware": None, "model": None, "command": None, "step": None,
                                               "log": None, "as_command": False, "json": False, **quick}  # fmt: skip


@pytest.mark.parametrize("argv", [["toy", "--bogus"], ["toy", "other"], ["--set"], ["--json=1"], ["--help"], ["toy", "--model", "--json"], ["--log", ""]])
def test_what_is_not_plain_is_left_to_the_parser(argv):
    assert plain_arguments(argv, EXPLAIN) is None


def test_the_quick_options_are_those_of_the_command():
    import inspect

    from kvsim.cli.explain import explain

    assert {keyword for keyword, _ in EXPLAIN.values()} | {"scenario"} == set(inspect.signature(explain).parameters)


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_the_help_names_every_command(argv, capsys):
    assert run_command(argv) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out and text.split()[0] in out for name, (_, text) in COMMANDS.items())
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("argv", "absent"),
    [
        (["--help"], {"cyclopts", "rich", "pydantic", "simpy", "numpy", "yaml"}),
        (["explain", "hicache-ratio"], {"cyclopts", "rich", "simpy", "numpy", "scipy", "pandas", "kvsim.workload.read", "kvsim.sim"}),
    ],
)
def test_nothing_heavy_is_imported(argv, absent):
    code = f"import sys; from kvsim.cli.app import run_command; run_command({argv!r}); sys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert absent & set(done.stderr.split()) == set()
