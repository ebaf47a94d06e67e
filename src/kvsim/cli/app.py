"""The `kvsim` command: a thin, lazily loaded layer over the Python API.

Every command lives in its own file and is imported only when it is called, so that `kvsim --help` starts fast.
Results go to stdout, progress and messages to stderr. Exit codes: 0 fine, 1 missed SLO, mismatch or infeasible,
2 bad input.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from kvsim.errors import KvsimError

if TYPE_CHECKING:
    from cyclopts import App

#: name -> (module:function, one line of help). Sub-commands of `trace` live in cli/trace.py as an App of their own.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("kvsim.cli.run:run", "Simulate a scenario (or repeat a run directory) and print its statistics."),
    "explain": ("kvsim.cli.explain:explain", "Show where the memory went: the arithmetic, before any simulation."),
    "options": ("kvsim.cli.options:options", "Compare the operator's options: HiCache, KV dtype, batch cap, speculation, ..."),
    "sweep": ("kvsim.cli.sweep:sweep", "Simulate a grid of settings with common random numbers."),
    "search": ("kvsim.cli.search:search", "Find the smallest ratio or the largest load that meets the SLO."),
    "curve": ("kvsim.cli.curve:curve", "Hit rate for all cache sizes in one pass over a trace."),
    "replay": ("kvsim.cli.replay:replay", "Replay a trace on a machine."),
    "trace": ("kvsim.cli.trace:app", "Inspect, convert, generate, fit or anonymise traces."),
    "calibrate": ("kvsim.cli.calibrate:calibrate", "Turn measurements of a server into constants of the time model."),
    "validate": ("kvsim.cli.validate:validate", "Measured against simulated: the error tables."),
    "verify": ("kvsim.cli.verify:verify", "Replay recordings of a real engine's decisions; print the first difference."),
    "report": ("kvsim.cli.report:report", "Make the HTML report of a run directory or study."),
    "compare": ("kvsim.cli.compare:compare", "Compare two runs, paired by request."),
    "lab": ("kvsim.cli.lab:lab", "Open the interactive page."),
    "list": ("kvsim.cli.list:list_", "List bundled hardware, models, workloads, scenarios, policies, rules."),
    "schema": ("kvsim.cli.schema:schema", "Print the JSON Schema of a scenario."),
}

HELP = """What happens to my users if I change the memory?

kvsim simulates the KV cache of an LLM server under load: device pool, host RAM tier (HiCache), queueing and latency.
Start with `kvsim explain hicache-ratio` and `kvsim sweep hicache-ratio`.
"""


def build_app() -> App:
    """Return the command-line application with every command registered by name only."""
    from cyclopts import App

    from kvsim import __version__

    app = App(name="kvsim", help=HELP, version=__version__, version_flags=["--version"], help_format="markdown")
    for name, (target, text) in COMMANDS.items():
        app.command(target, name=name, help=text)
    return app


def _answered_at_once(argv: list[str]) -> int | None:
    """Answer the plainest calls without the parser; None if they are not of that kind."""
    from kvsim.cli import quick

    if argv in ([], ["--help"], ["-h"]):
        from kvsim.cli.common import emit, page_width

        emit(quick.help_text(HELP.replace("`", ""), COMMANDS, page_width()))
        return 0
    if argv[0] == "explain" and (given := quick.plain_arguments(argv[1:], quick.EXPLAIN)) is not None:
        from kvsim.cli.explain_page import explain_page

        return explain_page(given.pop("scenario", None), **given)
    return None


def main(argv: list[str] | None = None) -> NoReturn:
    """Run one command and leave with its exit code; errors of ours are printed, never traced back."""
    sys.exit(run_command(sys.argv[1:] if argv is None else argv))


def run_command(argv: list[str]) -> int:
    """Run one command and return its exit code (for tests and for ``main``)."""
    from kvsim.cli.common import fail

    try:
        result = _answered_at_once(argv)
        if result is None:
            result = build_app()(argv, exit_on_error=False, print_error=False, result_action="return_value")
    except KvsimError as error:
        return fail(str(error), error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return fail("stopped", 130)
    except (IsADirectoryError, PermissionError, FileNotFoundError, NotADirectoryError) as error:
        return fail(f"{error.filename}: {error.strerror}", 2)
    except RecursionError:
        return fail("the input is nested too deep to be read", 2)
    except Exception as error:
        from cyclopts import CycloptsError

        if isinstance(error, CycloptsError):
            return fail(str(error), 2)
        raise
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    main()
