"""One request as SGLang's scheduler holds it, and the running batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.kv.cache import Holding
from kvsim.serving.port import Request, Step

if TYPE_CHECKING:
    from kvsim.serving.sglang.cohort import Cohort
    from kvsim.workload.spec import RequestSpec

class SglangRequest(Request):
    """A request with its KV. ``mnt``: max_new_tokens after clipping; ``length``: tokens it will generate (EOS or mnt).

    ``extend_end``: end of the tokens computed or being computed by prefill. ``matched``: extend length as of the last
    match (priority preemption uses this stale value). ``finished``, ``retracted``: as the engine's flags. ``seq``,
    ``queued_at``: its queue entry, as a number and a time. While it is a member of a cohort (``joined`` is not 0) its
    outputs and slots are ``out_base``, ``slot_base`` plus the cohort's counters, ``limit_at`` is the count at which it
    reaches ``mnt`` and ``rank`` its place.
    """

    __slots__ = (
        "_done",
        "abort_wanted",
        "cohort",
        "extend_end",
        "finished",
        "joined",
        "kv",
        "length",
        "limit_at",
        "matched",
        "mnt",
        "offered",
        "out_base",
        "progressed",
        "queued_at",
        "rank",
        "retracted",
        "seq",
        "slot_base",
    )

    cohort: Cohort

    def __init__(self, spec: RequestSpec, now: int, mnt: int, seq: int) -> None:
        self.joined = 0
        super().__init__(spec, now)
        self.kv = Holding(spec.prompt, spec.prompt_tokens, spec.output_first, namespace=spec.namespace)
        self.mnt = mnt
        self.length = max(1, min(spec.output_tokens, mnt))
        self.extend_end = 0
        self.offered = 0  # tokens offered to the tree when it finished
        self.matched = 0
        self.finished = False
        self.retracted = False
        self.progressed = False
        self.abort_wanted = False
        self.seq = seq
        self.queued_at = now
        self.rank = self.out_base = self.slot_base = self.limit_at = 0

    @property
    def output_done(self) -> int:
        """Tokens generated so far."""
        return self.out_base + self.cohort.decoded if self.joined else self._done

    @output_done.setter
    def output_done(self, value: int) -> None:
        self._done = value

    @property
    def slots(self) -> int:
        """Tokens whose slots are taken."""
        return self.slot_base + self.cohort.allocated if self.joined else self.kv.committed

    def add_token(self) -> int:
        """Take one token that does not come from a decode step of its cohort; return the outputs so far."""
        if self.joined:
            self.out_base += 1
            self.limit_at -= 1
            self.cohort.changes += 1
            return self.output_done
        self._done = self.kv.outputs = self._done + 1
        return self._done


class SglangStep(Step):
    """A step with its batch, in the engine's order (prefill part first).

    ``chunked``: the request still in the middle of its prompt. ``decoders``: how many at the end of the batch ride along
    (mixed) or decode. Of a decode step: ``gone``, how many of its batch ended or were retracted before its result;
    ``leaving``: who left the cohort before it, but gets its token (the last one, or a rider of a mixed step).
    """

    __slots__ = ("batch", "chunked", "decoders", "gone", "hits", "leaving")

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.batch: list[SglangRequest] = []
        self.chunked: SglangRequest | None = None
        self.decoders = self.gone = 0
        self.leaving: list[SglangRequest] = []
        self.hits: list[tuple[int, int] | None] = []

    def __copy__(self) -> SglangStep:
        twin = SglangStep(self.kind)
        for name in _COPIED:
            setattr(twin, name, getattr(self, name))
        return twin

    @property
    def is_extend(self) -> bool:
        """Whether it computes prompt tokens."""
        return self.kind != "decode"


#: What of a planned decode step is not as in a new one.
_COPIED = (
    "batch",
    "blocked_until",
    "decode_batch",
    "decoders",
    "gone",
    "leaving",
    "max_context",
    "requests",
    "retracted",
    "sum_context",
)
