"""Launch commands: from what an operator typed to an engine block and back. One table per engine family.

SGLang's flags are in flags_sglang.py. Nothing is dropped in silence: flags without effect on the simulation are listed, effects that are said
but not derived become notes, flags whose effect is not modelled and unknown flags are errors.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvsim.config.command_vllm import command_of_vllm, engine_of_vllm, ignored_by_vllm, is_vllm
from kvsim.config.flags_sglang import (
    ENVIRONMENT,
    IGNORED_LISTS,
    IGNORED_SWITCHES,
    IGNORED_VALUES,
    LISTS,
    NOT_MODELLED,
    NOTED_SWITCHES,
    NOTED_VALUES,
    SPELLINGS,
    SWITCHES,
    VALUES,
)
from kvsim.errors import ConfigError, did_you_mean

MAX_LENGTH = 100_000

_STARTS = ("sglang.launch_server", "sglang/launch_server.py")


@dataclass(slots=True)
class ParsedCommand:
    """A launch command read: the engine block, the model it names, flags without effect here, notes, environment settings."""

    engine: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    without_effect: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


def engine_of_command(command: str) -> dict[str, Any]:
    """Return the engine block that a launch command states. Raises ConfigError with every fault."""
    from kvsim.config.server_args import is_server_args, parse_server_args

    if is_server_args(command):
        return parse_server_args(command).engine
    words = split_command(command)
    return engine_of_vllm(words) if is_vllm(words) else parse_sglang(words).engine


def remarks_of_command(command: str) -> list[str]:
    """Return what a launch command (or a server's arguments) says without effect here, and notes on what is not derived; a sentence each."""
    from kvsim.config.server_args import is_server_args, parse_server_args

    if is_server_args(command):
        parsed = parse_server_args(command)
        ignored, notes = parsed.without_effect, parsed.notes
    else:
        words = split_command(command)
        if is_vllm(words):
            ignored, notes = ignored_by_vllm(words), []
        else:
            parsed = parse_sglang(words)
            ignored, notes = parsed.without_effect, parsed.notes
    listed = list(dict.fromkeys(ignored))
    return ([f"flags without effect on the simulation: {', '.join(listed)}"] if listed else []) + list(dict.fromkeys(notes))


def split_command(command: str) -> list[str]:
    """Return the words of a command as a shell would, line continuations joined."""
    if len(command) > MAX_LENGTH:
        raise ConfigError(f"engine.command: longer than {MAX_LENGTH:,} characters")
    joined = re.sub(r"\\\s*\n", " ", command).replace("\n", " ")
    try:
        return [word for word in shlex.split(joined, comments=False) if word != "\\"]
    except ValueError as error:
        raise ConfigError(f"engine.command: quotes do not close: {error}") from None


def parse_sglang(words: Sequence[str]) -> ParsedCommand:
    """Return what an SGLang launch command says. Raises ConfigError with every fault."""
    start = next(
        (i + 1 for i, word in enumerate(words) if word.endswith(_STARTS) or (word == "serve" and i and words[i - 1].endswith("sglang"))),
        None,
    )
    if start is None:
        flag = next((i for i, word in enumerate(words) if word.startswith("--")), None)
        if flag is None:
            raise ConfigError(
                "engine.command: no launch command found; expected `python -m sglang.launch_server ...`, `sglang serve ...` or `vllm serve ...`"
            )
        start = flag
    reader = _Reader(list(words), start)
    reader.read()
    if reader.faults:
        raise ConfigError([f"engine.command: {fault}" for fault in reader.faults])
    return reader.finish()


class _Reader:
    def __init__(self, words: list[str], start: int) -> None:
        self.words, self.at = words, start
        self.out = ParsedCommand(
            environment=dict(word.split("=", 1) for word in words[:start] if re.fullmatch(r"[A-Z][A-Z0-9_]*=.*", word))
        )
        self.flat: dict[str, Any] = {}
        self.faults: list[str] = []

    def read(self) -> None:
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if word.startswith("--"):
                self._flag(word)
            elif self.out.model is None and not word.startswith("-"):
                self.out.model = word

    def _flag(self, word: str) -> None:
        flag, joined, value = word.partition("=")
        flag = "--" + flag[2:].replace("_", "-")
        if flag in NOT_MODELLED:
            self._not_modelled(flag, value if joined else None)
        elif flag in SWITCHES:
            self.flat[SWITCHES[flag]] = True
        elif flag in LISTS:
            self.flat[LISTS[flag]] = self._list()
        elif flag in VALUES:
            self._set(flag, value if joined else self._value(flag))
        elif flag in NOTED_VALUES:
            given = value if joined else self._value(flag)
            self.out.notes.append(f"{flag} {given}: {NOTED_VALUES[flag]}")
        elif flag in NOTED_SWITCHES:
            self.out.notes.append(f"{flag}: {NOTED_SWITCHES[flag]}")
        elif flag in IGNORED_VALUES:
            self._ignored(flag, value if joined else self._value(flag))
        elif flag in IGNORED_LISTS:
            self._list()
            self.out.without_effect.append(flag)
        elif flag in IGNORED_SWITCHES:
            self.out.without_effect.append(flag)
        else:
            known = (*VALUES, *SWITCHES, *LISTS, *NOTED_VALUES, *NOTED_SWITCHES, *IGNORED_VALUES, *IGNORED_LISTS, *IGNORED_SWITCHES)
            self.faults.append(f"unknown flag {flag}{did_you_mean(flag, known)}")
            self._optional()

    def _not_modelled(self, flag: str, given: str | None) -> None:
        """An error, unless the flag says what happens without it anyway."""
        why, harmless = NOT_MODELLED[flag]
        before = self.at
        self._optional() if given is None else None
        if given is None and self.at > before:
            given = self.words[before]
        if harmless is not None and given == harmless:
            self.out.without_effect.append(flag)
        else:
            self.faults.append(f"{flag}: {why}")

    def _value(self, flag: str) -> str | None:
        if self.at >= len(self.words) or self.words[self.at].startswith("--"):
            self.faults.append(f"{flag} needs a value")
            return None
        self.at += 1
        return self.words[self.at - 1]

    def _optional(self) -> None:
        if self.at < len(self.words) and not self.words[self.at].startswith("-"):
            self.at += 1

    def _list(self) -> list[str]:
        out = []
        while self.at < len(self.words) and not self.words[self.at].startswith("-"):
            out.append(self.words[self.at])
            self.at += 1
        return out

    def _set(self, flag: str, value: str | None) -> None:
        key = VALUES[flag]
        if value is not None:
            value = SPELLINGS.get(flag, {}).get(value, value)
        if value is None:
            return
        if key in self.flat and self.flat[key] != value:
            self.faults.append(f"{flag} {value}: given before as {self.flat[key]}")
        self.flat[key] = value

    def _ignored(self, flag: str, value: str | None) -> None:
        if flag in ("--model-path", "--model") and value is not None:
            self.out.model = value
        else:
            self.out.without_effect.append(flag)

    def finish(self) -> ParsedCommand:
        for name, value in self.out.environment.items():
            if name in ENVIRONMENT:
                self.flat.setdefault(ENVIRONMENT[name], value)
        enabled = self.flat.pop("hicache.enabled", False)
        for key, value in self.flat.items():
            block, _, inner = key.rpartition(".")
            target = self.out.engine.setdefault(block, {}) if block else self.out.engine
            target[inner] = value
        hicache = self.out.engine.setdefault("hicache", {})
        if enabled:
            hicache.setdefault("ratio", "2.0")
        else:
            hicache["ratio"] = 0
            hicache.pop("size", None)
        return self.out


def as_command(engine: Mapping[str, Any], model: str) -> str:
    """Return the launch command of an engine block: every relevant flag once, in the table's order."""
    from kvsim.config.schema.family import family_of

    if family_of(engine) == "vllm":
        return command_of_vllm(dict(engine), model)
    flags = []
    seen = set()
    hicache = dict(engine.get("hicache") or {})
    on = bool(float(hicache.get("ratio") or 0)) or bool(float(hicache.get("size") or 0))
    for flag, key in VALUES.items():
        value = _at(engine, key)
        if key in seen or value is None or (key.startswith("hicache.") and (not on or (key == "hicache.size" and not float(value)))):
            continue
        seen.add(key)
        flags.append(f"{flag} {shlex.quote(_text(value))}")
    for flag, key in SWITCHES.items():
        if (key == "hicache.enabled" and on) or (key != "hicache.enabled" and _at(engine, key) is True):
            flags.append(flag)
    if engine.get("cuda_graph_bs"):
        flags.append("--cuda-graph-bs " + " ".join(map(str, engine["cuda_graph_bs"])))
    environment = "".join(f"{name}={_text(engine[key])} " for name, key in ENVIRONMENT.items() if engine.get(key) is not None)
    return " \\\n  ".join([f"{environment}python -m sglang.launch_server --model-path {shlex.quote(model)}", *flags])


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _at(engine: Mapping[str, Any], key: str) -> Any:
    block, _, inner = key.rpartition(".")
    target = engine.get(block) if block else engine
    return target.get(inner) if isinstance(target, Mapping) else None
