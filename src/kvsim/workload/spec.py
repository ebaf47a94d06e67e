"""What a request is before anybody serves it, and who sends it when.

``RequestSpec`` is the one row every trace reader and generator yields. A ``Client`` decides when each
request is sent: an open-loop trace, closed-loop sessions, a concurrency limit, a benchmark client. Clients are
plain objects; ``now`` is an argument and no simulator is imported here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from kvsim.content import Runs

PS_PER_S = 1_000_000_000_000


class RequestSpec(msgspec.Struct, gc=False):
    """One request as it leaves the client.

    ``arrival_ps``: when it is sent, integer picoseconds from the origin of the trace (for closed-loop turns the
    client overwrites it when the turn is really sent). ``prompt``: canonical content, including all earlier turns.
    ``output_tokens``: how many tokens it will generate; the k-th generated token is ``output_first + k``, so a later
    prompt that contains this answer contains the run ``(output_first, output_tokens)``.
    ``max_new_tokens``: the limit the client sent (None: equal to output_tokens). ``namespace``: tenant, LoRA adapter or
    cache salt; prefixes are shared only inside one namespace. ``recorded_end_ps``,
    ``think_ps``: when the recorded answer ended, and the think or tool time before this turn, where a trace has them. ``timeout_ps``: the client gives up after so long.
    ``after``: ids of requests of other sessions that must have ended before this one leaves (closed loop): the caller of a
    subagent's first turn, the subagents a later turn joins.
    """

    id: str
    arrival_ps: int
    prompt: Runs
    prompt_tokens: int
    output_tokens: int
    output_first: int
    max_new_tokens: int | None = None
    session: str | None = None
    turn: int = 0
    namespace: str = ""
    tenant: str = ""
    priority: int | None = None
    routing_key: str | None = None
    ignore_eos: bool = False
    timeout_ps: int | None = None
    recorded_cached_tokens: int | None = None
    recorded_end_ps: int | None = None
    think_ps: int | None = None
    after: tuple[str, ...] = ()


class Client(Protocol):
    """Who sends requests, and when. Times are integer picoseconds."""

    def next_send(self) -> int | None:
        """Return when the next request will be sent if nothing finishes before, or None if none is due."""

    def send(self, now: int) -> list[RequestSpec]:
        """Return the requests sent at ``now`` (all whose time is <= now, in order) and forget them."""

    def ended(self, request_id: str, now: int, ok: bool) -> None:
        """Learn that a request ended (``ok`` False: refused, aborted); may make a later request due."""

    def unsent(self) -> Iterable[RequestSpec]:
        """Yield what was never sent (for example turns behind a failed one)."""
