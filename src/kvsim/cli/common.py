"""What every command shares: how results are printed, how a scenario is found, how progress is shown."""

from __future__ import annotations

import json as _json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from kvsim.cli.params import Command as Command
    from kvsim.cli.params import Hardware as Hardware
    from kvsim.cli.params import Json as Json
    from kvsim.cli.params import Model as Model
    from kvsim.cli.params import Set as Set
    from kvsim.config.resolved import Resolved

_PARAMETERS = ("Set", "Hardware", "Model", "Command", "Json")


def __getattr__(name: str) -> Any:
    """Return a shared parameter: the parser is imported only by those who parse with it."""
    if name not in _PARAMETERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvsim.cli import params

    return getattr(params, name)


def fail(message: str, code: int) -> int:
    """Print one message on stderr and return the exit code."""
    label = "error" if code == 2 else "kvsim"
    lines = message.splitlines() or ["failed"]
    sys.stderr.write("".join(f"{label}: {line}\n" if i == 0 else f"       {line}\n" for i, line in enumerate(lines)))
    return code


def note(message: str) -> None:
    """Print a remark on stderr."""
    sys.stderr.write(message + "\n")


def emit_json(data: Any) -> None:
    """Print data as JSON on stdout; keys keep their order, NaN is never written."""
    sys.stdout.write(_json.dumps(data, indent=2, allow_nan=False, default=str) + "\n")


def emit(text: str) -> None:
    """Print plain text on stdout."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def console() -> Console:
    """Return the console for results: stdout, no colour when piped, at most 100 columns when piped."""
    from rich.console import Console

    piped = not sys.stdout.isatty()
    return Console(width=100 if piped else None, highlight=False, soft_wrap=False, legacy_windows=False)


def page_width() -> int:
    """Return the columns of a page of plain text: the terminal's, from 80 to 100."""
    import shutil

    return min(max(shutil.get_terminal_size((100, 24)).columns, 80), 100) if sys.stdout.isatty() else 100


def emit_wrapped(text: str, indent: str = "  ") -> None:
    """Print lines of plain text on stdout, each wrapped to the page's width; a word (a path) is never broken."""
    import textwrap

    width = page_width()
    for line in text.splitlines():
        whole = textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        emit(line if len(line) <= width else whole)


def show(*things: RenderableType) -> None:
    """Print rich renderables (tables, text) on stdout."""
    out = console()
    for thing in things:
        out.print(thing)


def resolve_scenario(
    scenario: str | None,
    *,
    set_: Sequence[str] | None = None,
    hardware: str | None = None,
    model: str | None = None,
    command: str | None = None,
) -> Resolved:
    """Return the resolved scenario a command was given: a file, a bundled name, or ``--hardware H --model M``.

    Raises ConfigError with every fault at once.
    """
    from kvsim.config.load import load, load_parts
    from kvsim.config.resolve import resolve
    from kvsim.cost.resolve import with_cost_notes
    from kvsim.errors import ConfigError

    overrides = list(set_ or ())
    if scenario is None:
        if hardware is None or model is None:
            raise ConfigError("give a scenario (a file or a bundled name), or both --hardware and --model")
        return with_cost_notes(resolve(load_parts(hardware, model, command, overrides)))
    if hardware is not None or model is not None or command is not None:
        raise ConfigError("give either a scenario or --hardware/--model/--command, not both")
    return with_cost_notes(resolve(load(scenario, overrides)))


class Progress:
    """A progress line on stderr, at most ten updates a second; silent when stderr is no terminal."""

    def __init__(self, what: str, total: int | None) -> None:
        self.what, self.total = what, total
        self._live = sys.stderr.isatty()
        self._shown_at = 0.0

    def __call__(self, done: int, part: float | None = None) -> None:
        """Show how much is done; ``part``: its share of the whole, where no total is known."""
        if not self._live:
            return
        import time

        now = time.monotonic()
        if now - self._shown_at < 0.1:
            return
        self._shown_at = now
        part = done / self.total if self.total else part
        share = "" if part is None else f" {100 * part:3.0f}%"
        sys.stderr.write(f"\r{self.what}: {done:,}{share} ")
        sys.stderr.flush()

    def close(self) -> None:
        """Clear the line."""
        if self._live:
            sys.stderr.write("\r\x1b[K")


ProgressHook = Callable[[int], None]


def is_run_directory(path: str) -> bool:
    """Tell whether ``path`` is a folder that `kvsim run -o` wrote."""
    folder = Path(path)
    return folder.is_dir() and (folder / "manifest.json").is_file()
