"""Every error a user can meet, as one small tree.

KvsimError
├── InputError          a file or a value is wrong: exit code 2
│   ├── ConfigError     a scenario, profile, command or option (file, line, value, what is allowed)
│   ├── TraceError      a trace or log (file, row)
│   └── UnknownName     a name that nothing is registered under (with the known ones)
├── Infeasible          a finding: the machine cannot do what was asked: exit code 1
├── MissingExtra        an optional library is not installed: exit code 2
└── InvariantError      a law of the simulator is broken: a bug of ours
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class KvsimError(Exception):
    """Root of every error that kvsim raises on purpose."""

    exit_code = 2


class InputError(KvsimError):
    """A file or a value given by the user is wrong."""


class ConfigError(InputError):
    """One or more faults of a scenario, profile, command or option; each fault is a finished sentence."""

    def __init__(self, faults: str | Sequence[str]) -> None:
        self.faults: tuple[str, ...] = (faults,) if isinstance(faults, str) else tuple(faults)
        super().__init__("\n".join(self.faults))


class TraceError(InputError):
    """A fault in a trace or log, with its file and row (1-based line where there is one)."""

    def __init__(self, file: str, row: int | None, message: str) -> None:
        self.file, self.row, self.message = file, row, message
        where = file if row is None else f"{file}:{row}"
        super().__init__(f"{where}: {message}")


class UnknownName(InputError):
    """A name that nothing is registered under."""

    def __init__(self, noun: str, name: str, known: Iterable[str]) -> None:
        self.noun, self.name, self.known = noun, name, tuple(sorted(known))
        super().__init__(f"unknown {noun} '{name}'{did_you_mean(name, self.known)}; known: {', '.join(self.known)}")


class Infeasible(KvsimError):
    """What was asked cannot be done by this machine: a finding with the reason and what would work."""

    exit_code = 1


class MissingExtra(KvsimError):
    """An optional library is needed and absent."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional library: pip install 'kvsim[{extra}]'")


class InvariantError(KvsimError):
    """A law of the simulator does not hold: a bug in kvsim, never the user's fault."""

    exit_code = 3


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the closest known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""
