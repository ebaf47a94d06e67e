"""A small world's requests as people write them: one line each, prompts made of named pieces.

::

    # seconds  pieces of the prompt          output tokens
    0          sys:400 anna:200              50
    1.5        sys:400 ben:300               50
    3          sys:400 anna:200 @1 anna2:80  50

A piece is ``name:tokens``; equal names are equal text. ``@n`` is the answer of the n-th request of the script (from 1),
as a
later turn of a conversation contains it. What is after ``#`` is a remark.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvsim.content import Run, canonical, length
from kvsim.errors import InputError
from kvsim.workload.spec import PS_PER_S, RequestSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Distance of the token ranges of two pieces: no piece is longer.
SPACING = 1_000_000
MOST_REQUESTS = 200


@dataclass
class Script:
    """Parsed requests, and the name of each token range for display."""

    specs: list[RequestSpec] = field(default_factory=list)
    pieces: dict[str, Run] = field(default_factory=dict)

    def name_of(self, token: int) -> str:
        """Return the name of the piece that holds a token."""
        for name, (first, _) in self.pieces.items():
            if first <= token < first + SPACING:
                return name
        return "?"

    def label(self, runs: Iterable[Run]) -> str:
        """Return content as names: ``sys anna[100:]``; a part of a piece carries its token positions."""
        parts = []
        for first, count in runs:
            name = self.name_of(first)
            base, whole = self.pieces.get(name, (first, count))
            start, stop = first - base, first - base + count
            parts.append(name if start == 0 and stop == whole else f"{name}[{start}:{stop}]")
        return " ".join(parts)


def parse(text: str) -> Script:
    """Return the requests of a script. Raises InputError with the line and what is allowed."""
    script = Script()
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#")[0].split()
        if line:
            script.specs.append(_request(script, line, number))
    if not script.specs:
        raise InputError("the script has no request; a line is: seconds, pieces (name:tokens), output tokens")
    if len(script.specs) > MOST_REQUESTS:
        raise InputError(f"{len(script.specs)} requests are too many for a small world: at most {MOST_REQUESTS}")
    script.specs.sort(key=lambda spec: (spec.arrival_ps, int(spec.id)))
    return script


def _request(script: Script, words: list[str], line: int) -> RequestSpec:
    if len(words) < 3:
        raise InputError(f"line {line}: needs seconds, at least one piece, output tokens; got '{' '.join(words)}'")
    seconds, output = _number(words[0], line, "seconds"), _number(words[-1], line, "output tokens")
    if seconds < 0 or output < 1 or output != int(output):
        raise InputError(f"line {line}: seconds must not be negative, output tokens a whole number of at least 1")
    number = len(script.specs) + 1
    prompt = canonical(_piece(script, word, line) for word in words[1:-1])
    script.pieces[f"@{number}"] = (len(script.pieces) * SPACING, int(output))
    first = script.pieces[f"@{number}"][0]
    return RequestSpec(str(number), round(seconds * PS_PER_S), prompt, length(prompt), int(output), first, max_new_tokens=int(output))


def _piece(script: Script, word: str, line: int) -> Run:
    if word.startswith("@"):
        if word not in script.pieces:
            raise InputError(f"line {line}: {word} is not the number of an earlier request")
        return script.pieces[word]
    name, _, tokens = word.partition(":")
    known = script.pieces.get(name)
    if not tokens:
        if known is None:
            raise InputError(f"line {line}: piece '{word}' needs its tokens when it first appears: {word}:100")
        return known
    count = _number(tokens, line, f"tokens of piece '{name}'")
    if not 0 < count <= SPACING or count != int(count):
        raise InputError(f"line {line}: piece '{name}' must have a whole number of tokens from 1 to {SPACING:,}")
    if known is not None and known[1] != count:
        raise InputError(f"line {line}: piece '{name}' had {known[1]} tokens before, now {int(count)}")
    return script.pieces.setdefault(name, (len(script.pieces) * SPACING, int(count)))


def _number(text: str, line: int, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"line {line}: {what} must be a number, got '{text}'") from None


class ScriptClient:
    """An open-loop client: sends each request of a script at its time (``workload.spec.Client``)."""

    def __init__(self, specs: list[RequestSpec]) -> None:
        self._due = deque(sorted(specs, key=lambda spec: (spec.arrival_ps, int(spec.id))))

    def next_send(self) -> int | None:
        """Return when the next request is sent, or None."""
        return self._due[0].arrival_ps if self._due else None

    def send(self, now: int) -> list[RequestSpec]:
        """Return the requests due at ``now``."""
        out = []
        while self._due and self._due[0].arrival_ps <= now:
            out.append(self._due.popleft())
        return out

    def ended(self, request_id: str, now: int, ok: bool) -> None:
        """Learn nothing: later requests do not depend on earlier ones."""

    def unsent(self) -> Iterable[RequestSpec]:
        """Yield what was not sent."""
        return list(self._due)
