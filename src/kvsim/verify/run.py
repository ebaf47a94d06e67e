"""Verify many recordings: find the files, replay each by its format, add up.

A format is one entry of ``FORMATS``: the ``format`` word of a file and the function that replays it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import ConfigError, InputError, InvariantError, TraceError
from kvsim.verify.cache_replay import Mismatch, ReplayResult, load_recording

if TYPE_CHECKING:
    from kvsim.rules import Rules

#: The ``format`` word of a recording -> module:function(recording, file, rules) that replays it.
FORMATS: dict[str, str] = {
    "kvsim-oracle/1": "kvsim.verify.cache_replay:replay_cache",
    "kvsim-sched-oracle/1": "kvsim.verify.sched_replay:replay_sched",
    "kvsim-vllm-oracle/1": "kvsim.verify.vllm_replay:replay_vllm",
}
#: What a replay raises on a recording that is not as its format says.
MALFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError)

Replayer = Callable[..., ReplayResult]


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over replays of one rule set: files, rows compared, files that differ, findings (the engine fails)."""

    rules: str
    files: int
    rows: int
    differing: int
    findings: int


def find_recordings(paths: Iterable[str | Path]) -> list[Path]:
    """Return the files named and, sorted, the ``.json`` files of the folders named.

    Raises TraceError for a path that does not exist and a folder without any such file.
    """
    found: list[Path] = []
    for given in paths:
        path = Path(given)
        if path.is_dir():
            inside = sorted(path.glob("*.json"))
            if not inside:
                raise TraceError(str(path), None, "this folder holds no .json file")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise TraceError(str(path), None, "there is no such file or folder")
    return found


def verify_file(path: Path, overrides: Mapping[str, object] | None = None, *, stepwise: bool = False) -> ReplayResult:
    """Replay one recording under its engine's rules, single ones overridden; TraceError if it is no whole recording."""
    recording = load_recording(path, *FORMATS)
    name = recording["format"]
    module, function = FORMATS[name].split(":")
    replay: Replayer = getattr(importlib.import_module(module), function)
    options: dict[str, Any] = {"stepwise": True} if stepwise and name == "kvsim-sched-oracle/1" else {}
    try:
        rules = _rules(recording, overrides) if overrides else None
        return replay(recording, str(path), rules, **options)
    except InvariantError as error:
        broken = Mismatch(-1, "replay", "decisions that can be carried out", str(error))
        return ReplayResult(str(path), "", 0, 0, 1, broken)
    except ConfigError:  # a wrong override is no fault of the file
        raise
    except InputError as error:
        if isinstance(error, TraceError) and error.file == str(path):
            raise
        raise TraceError(str(path), None, str(error)) from None
    except MALFORMED as error:
        raise TraceError(str(path), None, f"is not a whole recording of {name}: {_missing(error)}") from error


def _rules(recording: dict[str, Any], overrides: Mapping[str, object]) -> Rules:
    from kvsim import rules

    if recording["format"] == "kvsim-vllm-oracle/1":
        from kvsim.verify.vllm_replay import rules_of as vllm_rules

        return rules.get(vllm_rules(recording).name, overrides)
    from kvsim.verify.cache_replay import rules_of

    return rules.get(rules_of(recording["meta"]).name, overrides)


def _missing(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]!r} is missing"
    return f"{type(error).__name__}: {error}"


def verify(
    paths: Iterable[str | Path], overrides: Mapping[str, object] | None = None, *, stepwise: bool = False
) -> Iterator[ReplayResult]:
    """Replay every recording of ``paths``, one result at a time."""
    for path in find_recordings(paths):
        yield verify_file(path, overrides, stepwise=stepwise)


def totals(results: Sequence[ReplayResult]) -> list[Totals]:
    """Return the sums per rule set, in order of first appearance."""
    by_rules: dict[str, list[ReplayResult]] = {}
    for result in results:
        by_rules.setdefault(result.rules, []).append(result)
    return [
        Totals(name, len(own), sum(r.rows for r in own), sum(not r.ok for r in own), sum(bool(r.finding) for r in own))
        for name, own in by_rules.items()
    ]
