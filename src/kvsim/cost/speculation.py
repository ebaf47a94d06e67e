"""Speculative decoding (EAGLE, MTP): what a step costs, how many tokens it yields, and what memory it takes ahead.

One decode step drafts ``steps`` times with a small draft model, then verifies ``draft_tokens`` tokens per sequence in
one pass of the target model at the widened batch, and keeps 1 to steps + 1 of them. How many is random: position k of
the draft is accepted with ``rates[k]`` if all before it were. Draws come from the seed, the request's id and nothing
else, so the same request accepts the same way in every scenario (common random numbers) and in every order of calls.

How it plugs into a run: tokens per step differ between sequences, so a run of decode steps has no closed form that
keeps every sequence exact. With speculation on, the machine takes decode steps one by one; above ``off_above``
sequences steps are plain ones and runs are closed form again. Per step and sequence the scheduler asks
``Draws.next()`` and emits that many.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from random import Random

from kvsim.cost.analytic import AnalyticTime
from kvsim.cost.piecewise import Curve, PiecewiseDecode, straight_pieces
from kvsim.errors import ConfigError

#: Captured decode sizes with speculation (SGLang 0.5.9, model_executor/cuda_graph_runner.py).
SPECULATIVE_GRAPHS = (*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, 513, 16))

#: Attention of the verify pass per extra drafted token, as a fraction of one pass over the context: queries of one
#: sequence share most of what they read. Fitted with one acceptance rate to the 32 open DCP1 rows with MTP 3 of the
#: public decode matrix.
EXTRA_QUERY = 1.0 / 3.0

#: Default of max_running_requests with speculation (SGLang 0.5.9, server_args.py).
MAX_RUNNING_DEFAULT = 48


def rates_for_mean(mean: float, steps: int) -> tuple[float, ...]:
    """Return equal acceptance rates per position that give ``mean`` tokens per step: 1 + r + r^2 + .. + r^steps =
    mean."""
    if not 1.0 <= mean <= steps + 1:
        raise ConfigError(f"speculation: a mean of {mean} tokens per step is impossible with {steps} draft steps (1 to {steps + 1})")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**k for k in range(steps + 1)) < mean else (low, middle)
    return (high if mean > 1.0 else 0.0,) * steps


@dataclass(frozen=True, slots=True)
class Speculation:
    """Settings of speculative decoding. ``rates``: acceptance per draft position; ``draft_layers``: layers of the
    draft model.

    ``off_above``: batches larger than this decode plainly (None: never off). ``overlap``: the engine's v2 worker, which
    allocates two steps ahead (SGLang 0.5.23 default; ``SGLANG_ENABLE_SPEC_V2`` in 0.5.9).
    """

    steps: int
    topk: int
    draft_tokens: int
    rates: tuple[float, ...]
    draft_layers: int = 1
    off_above: int | None = None
    overlap: bool = False
    seed: int = 1

    def __post_init__(self) -> None:
        if self.steps < 1 or self.topk < 1 or self.draft_tokens < 2:
            raise ConfigError("speculation: steps and topk must be at least 1 and draft_tokens at least 2")
        if len(self.rates) != self.steps or not all(0.0 <= rate <= 1.0 for rate in self.rates):
            raise ConfigError(f"speculation: {self.steps} acceptance rates between 0 and 1 are needed, got {list(self.rates)}")

    def active(self, batch: int) -> bool:
        """Tell whether a decode batch of this size speculates."""
        return self.off_above is None or batch <= self.off_above

    def mean_tokens(self) -> float:
        """Return the mean number of tokens a step yields per sequence, without the cut at the end of the output."""
        return 1.0 + float(sum(accumulate(self.rates, mul)))

    def lookahead_tokens(self, page_size: int = 1) -> int:
        """Return KV slots a decode step takes ahead per sequence, rounded to pages.

        max(steps x topk, draft_tokens); twice that under the overlapping v2 worker (SGLang 0.5.9 and 0.5.23,
        speculative/eagle_info.py and eagle_info_v2.py). What was rejected is free again after the step (v1) or at the
        end (v2).
        """
        need = max(self.steps * self.topk, self.draft_tokens) * (2 if self.overlap else 1)
        return -(-need // page_size) * page_size

    def draft_kv_bytes(self, kv_bytes_per_token: int, layers: int) -> int:
        """Return the draft model's KV bytes per slot and rank: as many slots as the target's pool, its own layers only.

        0.5.9 does not charge them to the pool (they come out of the slack); 0.5.23 sizes the pool with
        cell x (layers + draft layers) / layers.
        """
        return kv_bytes_per_token * self.draft_layers // layers

    def draws(self, request_id: str) -> Draws:
        """Return the stream of accepted counts of one request."""
        return Draws(self, request_id)


class Draws:
    """Tokens kept by each verify step of one request: 1 (nothing accepted) to steps + 1."""

    __slots__ = ("_below", "_random")

    def __init__(self, speculation: Speculation, request_id: str) -> None:
        self._random = Random(f"{speculation.seed}/{request_id}")
        reach = [1.0, *accumulate(speculation.rates, mul)]
        self._below = [1.0 - p for p in reach[1:]]  # P(fewer than k + 1 tokens beyond the first)

    def next(self) -> int:
        """Return how many tokens the request's next verify step yields."""
        return 1 + bisect_right(self._below, self._random.random())


def steps_needed(speculation: Speculation, request_id: str, tokens: int) -> int:
    """Return how many verify steps a request takes for ``tokens`` decoded tokens (its first one comes from prefill)."""
    draws, count = speculation.draws(request_id), 0
    while tokens > 0:
        tokens -= draws.next()
        count += 1
    return count


class SpeculativeTime(PiecewiseDecode):
    """``StepTime`` whose decode step is draft and verify; prefill is the target's plus one draft pass over the prompt.

    The verify pass computes batch x draft_tokens tokens in every dense, expert and communication term, and reads the
    context 1 + (draft_tokens - 1) / 3 times; a draft pass computes the draft layers' share of each component and the
    head.
    """

    def __init__(self, base: AnalyticTime, speculation: Speculation) -> None:
        super().__init__()
        self.base, self.speculation, self.layers = base, speculation, base.layers
        self._share = speculation.draft_layers / base.layers

    def prefill_ps(
        self,
        new_tokens: int,
        pairs2: int,
        cached_tokens: int,
        prefills: int,
        decode_batch: int,
        sum_context: int,
        max_context: int,
    ) -> int:
        """Return the target's prefill time and the draft layers' share of it."""
        target = self.base.prefill_ps(new_tokens, pairs2, cached_tokens, prefills, decode_batch, sum_context, max_context)
        return target + int(target * self._share)

    def verify_s(self, batch: int, sum_context: float) -> float:
        """Return the time of the target's pass over all drafted tokens (seconds)."""
        base, size = self.base, self._padded(batch)
        tokens = size * self.speculation.draft_tokens
        reads = 1.0 + EXTRA_QUERY * (self.speculation.draft_tokens - 1)
        attention = base.decode_attention_s(size, sum_context * reads, sum_context / batch * reads)
        return (
            base.gemm_s(tokens) + base.moe_s(tokens) + base.allreduce_s(tokens) + base.overhead_s(tokens) + base.head_s(tokens) + attention
        )

    def draft_s(self, batch: int, sum_context: float) -> float:
        """Return the time of all draft passes of one step (seconds)."""
        base, spec = self.base, self.speculation
        tokens, moe = self._padded(batch) * spec.topk, base.inputs.moe
        layers = base.gemm_s(tokens) + base.allreduce_s(tokens) + base.overhead_s(tokens)
        layers += base.decode_attention_s(self._padded(batch), sum_context, sum_context / batch)
        experts = base.moe_s(tokens) / moe.layers * spec.draft_layers if moe else 0.0
        return spec.steps * (layers * self._share + experts + base.head_s(tokens))

    def decode_s(self, batch: int, sum_context: float) -> float:
        """Return the formula's time of one decode step (seconds)."""
        if not self.speculation.active(batch):
            return self.base.decode_s(batch, sum_context)
        return (self.verify_s(batch, sum_context) + self.draft_s(batch, sum_context)) * self.base.inputs.scale

    def _padded(self, batch: int) -> int:
        largest = self.base.inputs.overheads.graph_sizes[-1:] or (0,)
        sizes = SPECULATIVE_GRAPHS
        return sizes[bisect_left(sizes, batch)] if batch <= min(largest[0], sizes[-1]) else batch

    def _make_curve(self, batch: int) -> Curve:
        if not self.speculation.active(batch):
            return self.base._curve(batch)
        kink = round(self.base.inputs.decode.c1 * batch / (1.0 + EXTRA_QUERY * (self.speculation.draft_tokens - 1)))
        return straight_pieces(lambda context: self.decode_s(batch, context), batch, (kink, round(self.base.inputs.decode.c1 * batch)))
