"""What the requests of a trace share: conversations that go on, the beginning that all have, documents many begin with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvsim.workload.spec import RequestSpec
from kvsim.workload.write import Blocks

WIDE = 0.5  # what this share of the conversations begin with is the common beginning


@dataclass(slots=True)
class Sharing:
    """Conversations as lists of requests, in order of their starts; ``common``: tokens of the common beginning.

    ``taken``: tokens of the document each of them begins with (0: none).
    ``documents``: behind it, (tokens, conversations that begin with them) of every text at least two conversations begin with;
    ``with_document``: how many conversations begin with one. ``stated``: the trace names its sessions (else they are those whose prompts
    continue an earlier prompt).
    """

    conversations: list[list[RequestSpec]]
    common: int = 0
    documents: list[tuple[int, int]] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    stated: bool = False

    @property
    def with_document(self) -> int:
        """Conversations that begin with a document others begin with."""
        return sum(count for _, count in self.documents)


def sharing_of(specs: Sequence[RequestSpec], block: int, *, apart: bool = False) -> Sharing:
    """Return what requests share, in whole blocks of ``block`` tokens; ``apart``: every request taken for a conversation of its own."""
    names = Blocks(block)
    ids = [names.ids(spec)[: spec.prompt_tokens // block] for spec in specs]
    stated = any(spec.session is not None for spec in specs)
    conversations = [[i] for i in range(len(specs))] if apart else _stated(specs) if stated else _continued(specs, ids)
    firsts = [ids[turns[0]] for turns in conversations]
    users: Counter[int] = Counter(name for chain in firsts for name in chain)
    depth = 0
    while users:
        at_depth = Counter(chain[depth] for chain in firsts if len(chain) > depth)
        if not at_depth or at_depth.most_common(1)[0][1] < WIDE * len(firsts) or len(firsts) < 2:
            break
        depth += 1
    texts: Counter[tuple[int, int]] = Counter()
    taken = []
    for chain in firsts:
        shared = next((at for at, name in enumerate(chain) if users[name] < 2), len(chain))
        taken.append(max(shared - depth, 0) * block)
        if shared > depth:
            texts[(chain[shared - 1], shared - depth)] += 1
    documents = [(length * block, count) for (_, length), count in texts.items()]
    return Sharing([[specs[i] for i in turns] for turns in conversations], depth * block, documents, taken, stated)


def _stated(specs: Sequence[RequestSpec]) -> list[list[int]]:
    found: dict[str, list[int]] = {}
    for number, spec in enumerate(specs):
        found.setdefault(spec.session if spec.session is not None else f"\0{number}", []).append(number)
    return list(found.values())


def _continued(specs: Sequence[RequestSpec], ids: list[list[int]]) -> list[list[int]]:
    """Put a request behind the latest one whose whole blocks (two at least) it begins with, if nobody else has continued that."""
    conversation: list[int] = []
    out: list[list[int]] = []
    latest: dict[int, int] = {}
    for number, chain in enumerate(ids):
        matched = next((at for at in range(len(chain), 0, -1) if chain[at - 1] in latest), 0)
        before = latest[chain[matched - 1]] if matched else None
        if before is not None and matched >= len(ids[before]) > 1 and specs[number].prompt_tokens > specs[before].prompt_tokens:
            conversation.append(conversation[before])
            out[conversation[before]].append(number)
        else:
            conversation.append(len(out))
            out.append([number])
        latest.update(dict.fromkeys(chain, number))
    return out
