"""Replications of a recorded trace: five-minute blocks drawn with replacement, whole sessions moved together.

A recorded trace happened once. To learn how much its answers depend on chance, replication r > 0 puts other blocks of the same trace in
each five-minute slot. A session (a conversation: each prompt continues an earlier one to its end) belongs to the block it starts in
and is moved as a whole. When a block is drawn again its private content gets new tokens, else the copies would hit each other's cache;
content that several sessions share stays shared. Replication 0 is the recorded trace itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from kvsim.content import cut, join
from kvsim.rng import stream
from kvsim.workload.spec import RequestSpec

BLOCK_PS = 300 * 10**12
GRID = 512  # tokens: how finely prompts are compared
SHIFT = 1 << 90


@dataclass(slots=True)
class Session:
    """Requests that continue each other, and how much of their beginning other sessions use too (tokens)."""

    requests: list[RequestSpec] = field(default_factory=list)
    shared: int = 0


def sessions_of(specs: Iterable[RequestSpec]) -> list[Session]:
    """Return the sessions of a trace: named ones as given; else a prompt that continues another's last whole block joins it.

    Only the first one to continue a prompt is the same conversation; a second one is a branch that shares its beginning.
    """
    sessions: list[Session] = []
    named: dict[str, Session] = {}
    owner: dict[tuple[str, int], Session] = {}  # block -> who used it first
    tails: dict[tuple[str, int], Session] = {}  # last whole block of a prompt -> its session
    for spec in specs:
        blocks = [(spec.namespace, token) for token in _grid(spec)]
        seen = next((n for n, block in enumerate(blocks) if block not in owner), len(blocks))
        session = named.get(spec.session) if spec.session is not None else tails.pop(blocks[seen - 1], None) if seen else None
        if session is None:
            session = Session()
            sessions.append(session)
            if spec.session is not None:
                named[spec.session] = session
        session.requests.append(spec)
        _note_shared(session, blocks[:seen], owner)
        for block in blocks[seen:]:
            owner[block] = session
        if blocks:
            tails[blocks[-1]] = session
    return sessions


def _note_shared(session: Session, blocks: list[tuple[str, int]], owner: dict[tuple[str, int], Session]) -> None:
    foreign = sum(1 for block in blocks if owner[block] is not session)
    if not foreign:
        return
    session.shared = max(session.shared, foreign * GRID)
    for depth, block in enumerate(blocks, 1):
        first = owner[block]
        if first is not session:
            first.shared = max(first.shared, depth * GRID)


def _grid(spec: RequestSpec) -> list[int]:
    """Return the token at the end of every whole block of the prompt."""
    out: list[int] = []
    at, wanted = 0, GRID
    for first, count in spec.prompt:
        while wanted <= at + count:
            out.append(first + wanted - at - 1)
            wanted += GRID
        at += count
    return out


def resample(specs: Iterable[RequestSpec], seed: int) -> list[RequestSpec]:
    """Return one resampling of a trace, in order of arrival; ids get the number of their slot.

    What would arrive after the end of the trace is left out, as the recording itself leaves it out.
    """
    sessions = sessions_of(specs)
    if not sessions:
        return []
    blocks = _blocks(sessions)
    count = len(blocks)
    draw = stream(seed, "resample")
    copies = [0] * count
    out: list[RequestSpec] = []
    for slot in range(count):
        chosen = draw.randrange(count)
        for session in blocks[chosen]:
            out.extend(_moved(spec, slot, (slot - chosen) * BLOCK_PS, copies[chosen], session.shared) for spec in session.requests)
        copies[chosen] += 1
    end = max(spec.arrival_ps for session in sessions for spec in session.requests)
    out = [spec for spec in out if spec.arrival_ps <= end]
    out.sort(key=lambda spec: spec.arrival_ps)
    return out


def _blocks(sessions: list[Session]) -> list[list[Session]]:
    """Return the sessions of each five minutes, by when they start."""
    starts = [session.requests[0].arrival_ps for session in sessions]
    first = min(starts)
    blocks: list[list[Session]] = [[] for _ in range((max(starts) - first) // BLOCK_PS + 1)]
    for start, session in zip(starts, sessions, strict=True):
        blocks[(start - first) // BLOCK_PS].append(session)
    return blocks


def _moved(spec: RequestSpec, slot: int, shift_ps: int, copy: int, shared: int) -> RequestSpec:
    prompt, output = spec.prompt, spec.output_first
    if copy:
        keep = min(shared, spec.prompt_tokens)
        private = tuple((start + copy * SHIFT, size) for start, size in cut(prompt, keep, spec.prompt_tokens))
        prompt, output = join(cut(prompt, 0, keep), private), output + copy * SHIFT
    return msgspec.structs.replace(
        spec,
        id=f"{slot}:{spec.id}",
        arrival_ps=spec.arrival_ps + shift_ps,
        prompt=prompt,
        output_first=output,
        session=None if spec.session is None else f"{slot}:{spec.session}",
    )
