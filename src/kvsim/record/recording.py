"""The facts of one run: four append-only tables and a manifest. Every statistic is a pure function of this.

Times are integer picoseconds of simulated time. Tables are lists of plain tuples in the order of the columns named here;
``msgspec`` structs only for requests. Frames, CSV and Parquet are made at the edge (record/store.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec


class RequestRow(msgspec.Struct, gc=False):
    """One request, from its arrival to its end. Every request of the workload has exactly one row.

    ``status``: finished, refused, aborted or unfinished (at the horizon). ``admitted_ps``: start of the step that first computed
    any of it. TTFT splits exactly: queue = admitted - arrival, load = ``load_wait_ps`` (the exposed wait for host-to-device
    copies before its first token), prefill = the rest. ``load_ps``: duration of those copies, overlapped or not.
    ``device_hit``, ``host_hit``: prompt tokens served by each tier at the first admission; miss = prompt - both.
    ``recompute_hit``: hits of later admissions (after a retraction), never part of the hit rate.
    """

    id: str
    session: str | None
    turn: int
    tenant: str
    replica: int
    status: str
    reason: str
    arrival_ps: int
    admitted_ps: int | None
    first_token_ps: int | None
    end_ps: int | None
    prompt_tokens: int
    output_tokens: int
    device_hit: int
    host_hit: int
    recompute_hit: int
    retractions: int
    retracted_tokens: int
    load_wait_ps: int
    load_ps: int


REQUEST_COLUMNS: tuple[str, ...] = RequestRow.__struct_fields__

#: One row per prefill or mixed step and per *run* of decode steps. ``steps`` > 1: a run in closed form; in it the i-th step
#: reads ``sum_context + i * batch`` tokens. ``batch``: sequences decoding. ``emitted``: output tokens that reached clients when the
#: row's results were settled. Occupancies, ``running`` and ``waiting`` hold at ``end_ps``.
STEP_COLUMNS: tuple[str, ...] = (
    "replica",
    "kind",
    "start_ps",
    "end_ps",
    "steps",
    "batch",
    "sum_context",
    "prefills",
    "new_tokens",
    "cached_tokens",
    "load_tokens",
    "load_wait_ps",
    "running",
    "waiting",
    "device_used",
    "device_evictable",
    "host_used",
    "emitted",
    "retracted",
)

#: One row per submitted copy. direction: "d2h" (back up) or "h2d" (load back). bytes are per rank.
TRANSFER_COLUMNS: tuple[str, ...] = ("replica", "direction", "submit_ps", "start_ps", "end_ps", "tokens", "bytes")

#: One row per moment at which cache counters moved; token counts since the row before.
CACHE_COLUMNS: tuple[str, ...] = ("replica", "time_ps", "demoted", "dropped", "host_evicted", "backed_up", "loaded")

#: Gaps between consecutive output tokens of a request (ITL), without a row per token: ``count`` requests saw the gaps
#: ``gap_ps + i * slope_ps`` for i in range(repeat); the first of them ended at ``end_ps``.
GAP_COLUMNS: tuple[str, ...] = ("replica", "end_ps", "gap_ps", "count", "repeat", "slope_ps")


@dataclass(slots=True)
class Recording:
    """Everything one simulation left behind. ``resolved`` is the complete plain-data scenario that makes it again."""

    resolved: dict[str, Any]
    requests: list[RequestRow] = field(default_factory=list)
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    transfers: list[tuple[Any, ...]] = field(default_factory=list)
    cache: list[tuple[Any, ...]] = field(default_factory=list)
    gaps: list[tuple[Any, ...]] = field(default_factory=list)
    manifest: dict[str, Any] = field(default_factory=dict)
    events: int = 0
