"""SGLang's decode steps under speculation (EAGLE, MTP): several tokens per step, room taken ahead, runs step by step.

Engine: speculative/eagle_worker.py, eagle_info.py, managers/schedule_batch.py (0.5.9). Each step needs room for
``lookahead`` slots per request (that decides eviction and retraction) and keeps those of the accepted tokens; what was
rejected is free again before anybody else asks. Simplified: the overlapping worker's surplus, which the engine keeps
until a request ends, is asked for anew in every step; the tree is keyed by tokens, not by bigrams (at most one token
less is reused).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.serving.port import Settled, Step
from kvsim.serving.sglang.decode import EngineOutOfMemory
from kvsim.serving.sglang.request import SglangRequest, SglangStep
from kvsim.serving.sglang.scheduler import SglangScheduler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.cost.speculation import Draws, Speculation
    from kvsim.rules.sglang import SglangParams
    from kvsim.serving.port import Transfers


class SpeculativeScheduler(SglangScheduler):
    """A SGLang server that drafts and verifies; above ``speculation.off_above`` running requests it decodes plainly.

    Accepted counts are drawn when a step is planned and reach the request when its result is processed.
    """

    def __init__(self, params: SglangParams, transfers: Transfers | None, speculation: Speculation) -> None:
        super().__init__(params, transfers)
        self.speculation = speculation
        self._draws: dict[str, Draws] = {}
        self._kept: dict[int, list[int]] = {}  # seq -> tokens of steps planned and not settled
        self._lookahead = speculation.lookahead_tokens()

    def quiet(self, previous: Step | None) -> int:
        """Return 0 while speculation is on: every step is taken by itself; else as without speculation."""
        step = self.last
        if step is None or self.speculation.active(step.decode_batch):
            return 0
        if previous is not None and self.speculation.active(previous.decode_batch):
            return 0
        return super().quiet(previous)

    # ------------------------------------------------------------------ planning
    def _decode_fits(self, now: int) -> bool:
        if not self.speculation.active(self.cohort.size):
            return super()._decode_fits(now)
        need = self._draft_need()
        self.cache.make_room(need, now)
        return self.cache.free >= need

    def _draft_need(self) -> int:
        return sum([self._pages(request, self._lookahead) for request in self.running if request.joined])

    def _pages(self, request: SglangRequest, tokens: int) -> int:
        up, held = self.cache.pages_up, request.slots
        return up(held + tokens) - up(held)

    def _allocate_decode(self, now: int) -> None:
        """Make room for the drafts of everybody and keep the slots of what is accepted."""
        if not self.speculation.active(self.cohort.size):
            super()._allocate_decode(now)
            return
        cache, need = self.cache, self._draft_need()
        cache.make_room(need, now)
        if need > cache.free:
            raise EngineOutOfMemory(f"{self.rules.name} fails here: decode out of memory ({need} slots wanted)")
        kept = 0
        for request in self.running:
            accepted = self._accept(request)
            kept += self._pages(request, accepted)
            self.cohort.take(request, accepted - 1)
        if kept:
            cache.take(kept)
        self.cohort.step()

    def _accept(self, request: SglangRequest) -> int:
        """Draw how many tokens the request keeps of this step: never beyond its length, at least one."""
        draws = self._draws.get(request.spec.id)
        if draws is None:
            draws = self._draws[request.spec.id] = self.speculation.draws(request.spec.id)
        pending = self._kept.setdefault(request.seq, [])
        left = request.length - request.output_done - sum(pending)
        accepted = max(1, min(draws.next(), left))
        pending.append(accepted)
        return accepted

    def _release(self, request: SglangRequest) -> None:
        self._kept.pop(request.seq, None)
        super()._release(request)

    # ------------------------------------------------------------------ results
    def _decoded(self, step: SglangStep, out: Settled, now: int) -> None:
        """Give everybody who is still there the tokens of this step."""
        self._beyond_one(step.batch, out)
        super()._decoded(step, out, now)

    def _rode_along(self, batch: Sequence[SglangRequest], out: Settled, now: int) -> None:
        self._beyond_one(batch, out)
        super()._rode_along(batch, out, now)

    def _beyond_one(self, batch: Sequence[SglangRequest], out: Settled) -> None:
        """Give each the accepted tokens beyond the first, which every decode step gives."""
        for request in batch:
            if request.finished or request.retracted:
                continue
            pending = self._kept.get(request.seq)
            more = min(pending.pop(0) if pending else 1, request.length - request.output_done) - 1
            out.sequences += 1
            if more <= 0:
                continue
            out.emitted += more
            if request.joined:
                self.cohort.gain(request, more)
            else:
                for _ in range(more):
                    request.add_token()

    def _finish(self, request: SglangRequest, out: Settled, now: int) -> None:
        self._kept.pop(request.seq, None)
        self._draws.pop(request.spec.id, None)
        super()._finish(request, out, now)
