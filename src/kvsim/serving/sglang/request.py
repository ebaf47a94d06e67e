"""One request as SGLang's scheduler holds it, and the running batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.kv.cache import Holding
from kvsim.serving.port import Request, Step

if TYPE_CHECKING:
    from kvsim.workload.spec import RequestSpec

ENDLESS_NEW_TOKENS = 1 << 30


class SglangRequest(Request):
    """A request with its KV. ``mnt``: max_new_tokens after clipping; ``length``: tokens it will generate (EOS or mnt).

    ``extend_end``: end of the tokens computed or being computed by prefill. ``matched``: extend length as of the last
    match
    (priority preemption uses this stale value). ``finished``, ``retracted``: as the engine's flags.
    """

    __slots__ = (
        "abort_wanted",
        "extend_end",
        "finished",
        "kv",
        "length",
        "matched",
        "mnt",
        "offered",
        "progressed",
        "retracted",
        "seq",
    )

    def __init__(self, spec: RequestSpec, now: int, mnt: int, seq: int) -> None:
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


class SglangStep(Step):
    """A step with its batch: ``batch`` in the engine's order (prefill part first), ``chunked`` the request still in
    the middle of its prompt,
    ``decoders`` how many at the end of the batch ride along (mixed) or decode."""

    __slots__ = ("batch", "chunked", "decoders", "hits")

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.batch: list[SglangRequest] = []
        self.chunked: SglangRequest | None = None
        self.decoders = 0
        self.hits: list[tuple[int, int] | None] = []

    def __copy__(self) -> SglangStep:
        twin = SglangStep.__new__(SglangStep)
        for name in _STEP_SLOTS:
            setattr(twin, name, getattr(self, name))
        return twin

    @property
    def is_extend(self) -> bool:
        """Whether it computes prompt tokens."""
        return self.kind != "decode"


_STEP_SLOTS = (*Step.__slots__, *SglangStep.__slots__)
