"""Answers to the calls that people make most and want at once, without the command-line parser (a third of a small call's time).

Only what is plain is read here; anything else (an unknown option, a missing value, --help of a command) is left to the parser, which
reads the plain calls the same way (tested).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Options of `explain`: name -> keyword and kind.
EXPLAIN = {
    "--set": ("set_", "many"),
    "--hardware": ("hardware", "one"),
    "--model": ("model", "one"),
    "--command": ("command", "one"),
    "--step": ("step", "one"),
    "--log": ("log", "one"),
    "--as-command": ("as_command", "flag"),
    "--json": ("json", "flag"),
}


def plain_arguments(argv: list[str], options: Mapping[str, tuple[str, str]]) -> dict[str, Any] | None:
    """Return the keywords of a plain call (at most one positional, ``scenario``), or None if the parser must read it."""
    found: dict[str, Any] = {}
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            if "scenario" in found:
                return None
            found["scenario"] = word
            continue
        keyword, kind = options.get(name, ("", ""))
        if not keyword or (keyword in found and kind != "many") or (kind == "flag" and equals):
            return None
        if kind == "flag":
            found[keyword] = True
            continue
        given = value if equals else next(words, None)
        if given is None or given == "" or (not equals and given.startswith("-")):
            return None
        if kind == "many":
            found.setdefault(keyword, []).append(given)
        else:
            found[keyword] = given
    return found


def help_text(about: str, commands: Mapping[str, tuple[str, str]], width: int) -> str:
    """Return the help of the whole program."""
    import textwrap

    wide = max(map(len, commands)) + 4
    lines = ["Usage: kvsim COMMAND", ""]
    for part in about.strip().split("\n\n"):
        lines += [*textwrap.wrap(" ".join(part.split()), width), ""]
    lines.append("Commands:")
    for name, (_, text) in sorted(commands.items()):
        lines += textwrap.wrap(text, width, initial_indent=f"  {name:<{wide}}", subsequent_indent=" " * (wide + 2))
    lines += ["", "kvsim COMMAND --help tells what a command takes. --version prints the version."]
    return "\n".join(lines)
