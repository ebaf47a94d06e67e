"""One prefill pass's budgets and admissions (PrefillAdder of SGLang, both versions).

Engine: srt/managers/schedule_policy.py: PrefillAdder (0.5.9, 0.5.23), srt/mem_cache/prefill_budget.py: PrefillBudget
(0.5.23). All tests are exact at equality as written; the offsets are floats and are never rounded.
"""

from __future__ import annotations

from math import fsum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.kv.cache import KvCache, Match
    from kvsim.rules.sglang import SglangParams
    from kvsim.serving.sglang.cohort import Cohort
    from kvsim.serving.sglang.request import SglangRequest

CONTINUE, NO_TOKEN, OTHER = "continue", "no token", "other"


def reservations(params: SglangParams, running: list[SglangRequest], cohort: Cohort, ratio: float) -> float:
    """Return what the running requests (finished, unfiltered ones included) may still need."""
    clip, decoded = params.clip_max_new_tokens, cohort.decoded
    if not clip:
        return 0.0
    if params.rules.ignore_eos_reserves_all:
        return fsum([min(r.limit_at - decoded, clip) * (1.0 if r.spec.ignore_eos else ratio) for r in running])
    if cohort.largest_limit > clip:
        return fsum([min(r.limit_at - decoded, clip) * ratio for r in running])
    return fsum([(r.limit_at - decoded) * ratio for r in running])


class Admission:
    """The budgets of one pass and what it admitted.

    ``running``: the running batch; ``reserved``: what it may still need; ``mixed``: decoders riding along.
    ``admitted``: requests of the new batch in order (a continued chunk first), with ``prefixes`` (computed before) and
    ``hits`` (device, host; None for a continued chunk). ``new_chunked``: the request whose prompt was cut.
    """

    def __init__(
        self,
        params: SglangParams,
        cache: KvCache,
        running: list[SglangRequest],
        reserved: float,
        ratio: float,
        mixed: int,
        now: int,
    ) -> None:
        self.params, self.cache, self.running, self.ratio, self.now = params, cache, running, ratio, now
        self.rules = params.rules
        self.page = cache.page
        self.clip = params.clip_max_new_tokens
        self.extra = self.page if self.rules.reserve_extra_page else 0
        self.rem_input = params.max_prefill_tokens - mixed
        self.rem_chunk = None if params.chunked_prefill_size is None else params.chunked_prefill_size - mixed
        self.off_total: float = mixed + reserved
        self.off_current: float = mixed
        self.admitted: list[SglangRequest] = []
        self.prefixes: list[int] = []
        self.hits: list[tuple[int, int] | None] = []
        self.held = False  # the prefill delayer lets nobody new in
        self.new_chunked: SglangRequest | None = None
        self.preempted: list[SglangRequest] = []
        self._pairs: list[tuple[float, int]] | None = None

    # ------------------------------------------------------------------ budgets
    @property
    def rem_total(self) -> float:
        """Tokens not spoken for, evaluated live: locking a prefix makes it smaller."""
        return self.cache.free + self.cache.evictable - self.off_total

    @property
    def state(self) -> str:
        """The verdict after an admission: whether the pass may go on."""
        room = self.cache.free + self.cache.evictable
        if room - self.off_total <= 0 or room - self.off_current <= 0:
            return NO_TOKEN
        if self.rem_input <= 0 or (self.rem_chunk is not None and self.rem_chunk <= 0):
            return OTHER
        return CONTINUE

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page) * self.page

    def _charge(self, extend: int, new: int) -> None:
        rounded = self._pages(extend)
        self.off_total += rounded + self.extra + new
        self.off_current += rounded + self.extra
        self.rem_input -= rounded
        if self.rem_chunk is not None:
            self.rem_chunk -= rounded

    def _take(self, request: SglangRequest, prefix: int, end: int, hits: tuple[int, int] | None) -> None:
        request.extend_end = end
        self.admitted.append(request)
        self.prefixes.append(prefix)
        self.hits.append(hits)

    # ------------------------------------------------------------------ a continued chunk
    def add_chunked(self, request: SglangRequest) -> SglangRequest | None:
        """Continue the chunked request, without an admission test; return it if its prompt is still not done."""
        assert self.rem_chunk is not None
        prefix = request.kv.committed
        rest = request.kv.total - prefix
        room = min(self.rem_chunk, int(self.rem_total))
        if room <= 0:
            room = self.rem_chunk
        extend = min(rest, room)
        whole = extend == rest
        self._take(request, prefix, prefix + extend, None)
        self._charge(extend, min(request.mnt, self.clip) if whole else 0)
        return None if whole else request

    # ------------------------------------------------------------------ a candidate
    def add(self, request: SglangRequest) -> str:
        """Try one queued request; return the verdict (an OTHER or NO_TOKEN may come after it was admitted)."""
        match = self.cache.match(request.kv, request.kv.total - 1)
        request.matched = request.kv.total - match.device
        if self.params.radix_cache is False and request.spec.ignore_eos:
            return self._add_ignoring_eos(request)
        if self.rules.shape_before_load:
            return self._add_shape_first(request, match)
        return self._add_load_first(request, match)

    def _new_tokens(self, request: SglangRequest) -> int:
        return min(max(request.mnt - request.output_done, 0), self.clip)

    def _add_load_first(self, request: SglangRequest, match: Match) -> str:
        """0.5.9 add_one_req: test, lock, test again, load back, then shape."""
        cache = self.cache
        extend = request.kv.total - match.device
        needed = extend + self._new_tokens(request) + self.extra
        if needed >= self.rem_total:
            return NO_TOKEN
        if self.admitted and self._pages(extend - match.host) >= self.rem_input and self._input_refuses():
            return OTHER
        cache.lock(match.device_node)
        try:
            if needed >= self.rem_total:
                return NO_TOKEN
            loaded = cache.load_back(match, request.kv, self.now) if match.host else 0
            extend -= loaded
            if self.admitted and self._pages(extend) >= self.rem_input and self._input_refuses():
                return OTHER
            if self.held:
                return OTHER
            if self.rem_chunk is None or self._pages(extend) <= self.rem_chunk:
                self._admit(request, match, loaded, extend, min(request.mnt, self.clip))
                return self.state
            cut = self._first_chunk(match.device + loaded)
            if cut <= 0:
                return OTHER
            self._admit(request, match, loaded, cut, 0)
            self.new_chunked = request
            return self.state
        finally:
            cache.unlock(match.device_node)

    def _input_refuses(self) -> bool:
        """Whether max_prefill_tokens may refuse a candidate (0.5.23: only without chunking)."""
        return not (self.rules.soft_max_prefill and self.rem_chunk is not None)

    def _first_chunk(self, prefix: int) -> int:
        """Return how many tokens the first chunk of a long prompt computes."""
        assert self.rem_chunk is not None
        whole_pages = self.rem_chunk // self.page * self.page
        if self.rules.chunk_ends_on_page:
            return (whole_pages + prefix) // self.page * self.page - prefix
        return whole_pages

    def _admit(self, request: SglangRequest, match: Match, loaded: int, extend: int, new: int) -> None:
        prefix = self.cache.hold(request.kv, match, loaded)
        self._take(request, prefix, prefix + extend, (match.device, match.host))
        self._charge(extend, new)

    def _add_shape_first(self, request: SglangRequest, match: Match) -> str:
        """0.5.23 add_one_req: lock, choose the shape as if the load succeeds, load back, choose again if it does not."""
        cache = self.cache
        cache.lock(match.device_node)
        try:
            shape = self._shape(request, match, match.host)
            if isinstance(shape, str):
                return shape
            loaded = cache.load_back(match, request.kv, self.now) if match.host else 0
            if match.host and not loaded:
                shape = self._shape(request, match, 0)
                if isinstance(shape, str):
                    return shape
            extend, whole = shape
            self._admit(request, match, loaded, extend, min(request.mnt, self.clip) if whole else 0)
            if not whole:
                self.new_chunked = request
            return self.state
        finally:
            cache.unlock(match.device_node)

    def _shape(self, request: SglangRequest, match: Match, host: int) -> tuple[int, bool] | str:
        """Return (tokens to compute, whole prompt) of an admission, or the refusal."""
        total = request.kv.total
        if total - match.device + self._new_tokens(request) + self.extra >= self.rem_total:
            return NO_TOKEN
        prefix = match.device + host
        extend = total - prefix
        if self.admitted and self._pages(extend) >= self.rem_input and self._input_refuses():
            return OTHER
        if self.held:
            return OTHER
        if self.rem_chunk is None or self._pages(extend) <= self.rem_chunk:
            return extend, True
        cut = self._first_chunk(prefix)
        return (cut, False) if cut > 0 else OTHER

    # ------------------------------------------------------------------ ignore_eos without a radix cache
    def _add_ignoring_eos(self, request: SglangRequest) -> str:
        """0.5.9 add_one_req_ignore_eos: simulate the memory of all who will finish, earliest first."""
        total = request.kv.total
        extend = self._pages(total) + self.extra
        room = self.cache.free + self.cache.evictable
        current = room - self.off_current
        if extend > min(current, room - self.off_total):
            return NO_TOKEN
        self._note_pair(request)
        assert self._pairs is not None
        freed = 0
        for i, (left, occupied) in enumerate(self._pairs):
            others = len(self._pairs) - i
            if current - extend + freed - left * others <= others:
                return NO_TOKEN
            freed += occupied
        self._hold_nothing(request)
        if self.rem_chunk is None or total <= self.rem_chunk:
            self._take(request, 0, total, (0, 0))
            self._charge(total, min(request.mnt, self.clip))
        else:
            cut = self.rem_chunk
            if cut <= 0:
                return OTHER
            self._take(request, 0, cut, (0, 0))
            self.new_chunked = request
            self._charge(cut, 0)
        return self.state

    def _hold_nothing(self, request: SglangRequest) -> None:
        request.kv.committed = request.kv.owned = 0

    def _pair_of(self, request: SglangRequest) -> tuple[float, int] | None:
        share = 1.0 if request.spec.ignore_eos else self.ratio
        left = request.mnt * share - request.output_done
        return (left, request.spec.prompt_tokens + request.output_done) if left > 0 else None

    def _note_pair(self, request: SglangRequest) -> None:
        """Keep (tokens left, tokens occupied) pairs in order: before the first not smaller, the largest one early."""
        if self._pairs is None:
            found = [self._pair_of(r) for r in (request, *self.running, *self.admitted)]
            self._pairs = sorted([pair for pair in found if pair is not None], key=lambda pair: pair[0])
            return
        pair = self._pair_of(request)
        if pair is None:
            return
        at = next((i for i, other in enumerate(self._pairs) if other[0] >= pair[0]), max(len(self._pairs) - 1, 0))
        self._pairs.insert(at, pair)
