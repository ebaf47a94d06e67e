"""Finds and runs the examples of a Markdown page.

Marks (HTML comments on the line before a fenced block, invisible to readers):

* ``<!-- run -->``: a bash or python block is executed; ``<!-- run exit=1 -->``: with that exit code.
* ``<!-- file NAME -->``: the block becomes a file of that name for the examples after it.
* ``<!-- output -->``: every line of the block occurs in what the example before it printed (blanks do not matter).
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from module_state import import_all, kept

MARK = re.compile(r"^<!--\s*(run|file|output)\b\s*(.*?)\s*-->$")


@dataclass
class Block:
    """One marked block: kind of mark, its argument, language, text, line."""

    kind: str
    argument: str
    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """Return the marked blocks of a page in order."""
    lines = page.read_text("utf-8").splitlines()
    found, mark = [], None
    at = 0
    while at < len(lines):
        hit = MARK.match(lines[at].strip())
        if hit:
            mark = (hit[1], hit[2])
        elif lines[at].startswith("```"):
            start, language = at, lines[at][3:].strip()
            at += 1
            body = []
            while at < len(lines) and not lines[at].startswith("```"):
                body.append(lines[at])
                at += 1
            if mark:
                found.append(Block(*mark, language, "\n".join(body), start + 1))
            mark = None
        elif lines[at].strip():
            mark = None
        at += 1
    return found


@contextlib.contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """Work in ``folder``; registries, module-level names, environment, search path and folder are as before afterwards."""
    import_all()
    before = Path.cwd()
    with kept(), mock.patch.dict(os.environ), mock.patch.object(sys, "path", list(sys.path)):
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def run_page(page: Path, folder: Path) -> int:
    """Execute every example of a page in ``folder`` and return how many there were; AssertionError where one fails.

    What an example registers or changes (see `untouched`) is gone when its page ends.
    """
    count, printed, names = 0, "", {}
    with untouched(folder):
        for block in blocks(page):
            where = f"{page.name}:{block.line}"
            if block.kind == "file":
                target = Path(block.argument)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(block.text + "\n", "utf-8")
            elif block.kind == "output":
                check_output(block.text, printed, where)
            elif block.language == "python":
                printed = run_python(block.text, names, where)
                count += 1
            else:
                printed = run_shell(block.text, int(block.argument.removeprefix("exit=") or 0), where)
                count += 1
    return count


def run_python(text: str, names: dict, where: str) -> str:
    """Execute a block; blocks of one page share their names. Return what was printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(text, where, "exec"), names)
    return out.getvalue()


def run_shell(text: str, expected: int, where: str) -> str:
    """Run the kvsim commands of a block in this process and return what they printed; the last one's exit code counts."""
    from kvsim.cli.app import run_command

    out, code = io.StringIO(), 0
    for command in re.sub(r"\\\n\s*", " ", text).splitlines():
        words = shlex.split(command, comments=True)
        if not words:
            continue
        assert words[0] == "kvsim", f"{where}: examples run kvsim commands, not {words[0]}"
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as err:
            code = run_command(words[1:])
        assert code in (0, expected), f"{where}: {command}: exit {code}: {err.getvalue()[-800:]}"
    assert code == expected, f"{where}: exit {code}, the page says {expected}"
    return out.getvalue()


def check_output(wanted: str, printed: str, where: str) -> None:
    """Require every line to occur in what was printed."""
    flat = " ".join(printed.split())
    for line in wanted.splitlines():
        assert " ".join(line.split()) in flat, f"{where}: not printed: {line}\nprinted:\n{printed[-3000:]}"
