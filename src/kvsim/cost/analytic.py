"""The analytic step-time model: sum of components, each a soft roofline with measured efficiencies.

Step features: P new prompt tokens, pairs (new x context) of attention, X cached tokens, D decoding sequences, S their
summed context, C the longest, T = P + D. Formulas and their sources: docs/background/time.md (from published tables
and runs).
"""

from __future__ import annotations

from math import hypot

from kvsim.cost.inputs import AnalyticInputs, PrefillKernel
from kvsim.cost.piecewise import PS_PER_S, Curve, PiecewiseDecode, straight_pieces


def soft_max(a: float, b: float, p: float) -> float:
    """Return (a^p + b^p)^(1/p): between max(a, b) and a + b. p = inf is the maximum."""
    if p == 2.0:
        return hypot(a, b)
    if a < b:
        a, b = b, a
    if b <= 0.0 or p > 64:
        return float(a)
    return float(a * (1.0 + (b / a) ** p) ** (1.0 / p))


class AnalyticTime(PiecewiseDecode):
    """Implements ``StepTime`` from ``AnalyticInputs``. Component methods return seconds and are what ``breakdown``
    prints."""

    def __init__(self, inputs: AnalyticInputs) -> None:
        super().__init__()
        self.inputs = inputs
        self.layers = inputs.layers
        gemm, card = inputs.gemm, inputs.card
        self._gemm = (
            gemm.kernels * gemm.t0,
            gemm.flops_per_token / (card.flops * gemm.flops_eff),
            gemm.weight_bytes / (card.mem_bw * gemm.bw_eff),
            gemm.p,
        )
        self._gemm_rate = card.flops * gemm.flops_eff
        decode = inputs.decode
        self._decode = (
            decode.layers,
            decode.t0,
            decode.t_seq,
            decode.kv_bytes / (card.mem_bw * decode.bw_eff),
            decode.a,
            decode.c1,
            decode.d,
            decode.p,
        )
        head = inputs.head
        self._head = (
            head.flops_per_sequence / (card.flops * gemm.flops_eff),
            head.weight_bytes / (card.mem_bw * gemm.bw_eff),
        )
        self._m0 = inputs.layers * inputs.overheads.m0 + inputs.overheads.step_cpu
        self._m1 = inputs.layers * inputs.overheads.m1
        sizes = inputs.overheads.graph_sizes
        self._largest_graph = sizes[-1] if sizes else None
        self._scale, self._scale_ps = inputs.scale, inputs.scale * PS_PER_S
        self._linear = (self._m0, self._m1)
        moe = inputs.moe
        self._moe: tuple[float, int, int, float, float, float, float, float, float, int] | None = (
            None
            if moe is None
            else (
                moe.layers * moe.t0,
                moe.layers,
                moe.top_k,
                float(moe.experts),
                moe.dispersion,
                moe.pad_tokens,
                moe.flops_per_routed_token / (card.flops * moe.flops_eff),
                moe.expert_bytes / (card.mem_bw * moe.bw_eff),
                moe.p,
                moe.ranks,
            )
        )
        reduce = inputs.allreduce
        self._protocols = reduce.protocols if reduce else ()
        self._wire = (reduce.bytes_per_token, reduce.count * reduce.layers) if reduce else (0.0, 0)
        self._eager_floor = inputs.overheads.eager_floor

    # ------------------------------------------------------------------ components, seconds
    def gemm_s(self, tokens: int) -> float:
        """Return the time of the dense matrices."""
        launch, per_token, weights, p = self._gemm
        return launch + soft_max(tokens * per_token, weights, p)

    def experts_hit(self, tokens: int) -> float:
        """Return the mean number of distinct experts a layer reads: E (1 - (1 + T K / (E s))^-s), gamma-Poisson
        popularity."""
        moe = self.inputs.moe
        if moe is None:
            return 0.0
        return float(moe.experts * (1.0 - (1.0 + tokens * moe.top_k / (moe.experts * moe.dispersion)) ** -moe.dispersion))

    def moe_s(self, tokens: int) -> float:
        """Return the time of the routed experts."""
        if self._moe is None:
            return 0.0
        launch, layers, top_k, experts, dispersion, pad, per_routed, per_hit, p, ranks = self._moe
        routed = float(tokens * top_k)
        hit = experts * (1.0 - float((1.0 + routed / (experts * dispersion)) ** -dispersion))
        if ranks > 1:
            routed = _most_loaded(routed, ranks)
        compute, read = (routed + pad * hit) * per_routed, hit * per_hit
        if p < 64 and compute > 0.0:
            return launch + layers * read * float((1.0 + (compute / read) ** p) ** (1.0 / p))
        return launch + layers * max(compute, read)

    def decode_attention_s(self, batch: int, sum_context: float, max_context: float) -> float:
        """Return the time of decode attention."""
        if not batch:
            return 0.0
        layers, t0, t_seq, per_token, a, c1, d, p = self._decode
        longest = a * min(max_context, c1) + d * max_context
        return layers * (t0 + t_seq * batch + soft_max(sum_context * per_token, longest, p))

    def prefill_kernel(self, cached_tokens: int) -> PrefillKernel:
        """Return the kernel that a step with this many cached tokens uses."""
        attention = self.inputs.prefill
        if cached_tokens == 0 or attention.absorbed is None:
            return attention.plain
        if attention.unabsorbed_from is not None and cached_tokens >= attention.unabsorbed_from:
            return attention.plain
        return attention.absorbed

    def prefill_attention_s(self, new_tokens: int, pairs2: int, cached_tokens: int) -> float:
        """Return the time of prefill attention."""
        if not new_tokens:
            return 0.0
        kernel = self.prefill_kernel(cached_tokens)
        pairs = 0.5 * pairs2
        if kernel.far_factor != 1.0:
            pairs += (kernel.far_factor - 1.0) * max(0.0, pairs - new_tokens * kernel.near_tokens)
        up = cached_tokens * kernel.up_flop / self._gemm_rate
        return self.inputs.prefill.layers * (kernel.t0 + new_tokens * kernel.per_token + pairs * kernel.pair_flop / kernel.rate + up)

    def allreduce_s(self, tokens: int) -> float:
        """Return the time of the tensor-parallel all-reduces."""
        reduce = self.inputs.allreduce
        if reduce is None:
            return 0.0
        size = tokens * reduce.bytes_per_token
        return reduce.count * reduce.layers * min([alpha + size / beta for alpha, beta in reduce.protocols])

    def overhead_s(self, tokens: int) -> float:
        """Return launch gaps, norms, routing and sampling: what no other component holds."""
        return self._m0 + tokens * self._m1

    def head_s(self, sequences: int) -> float:
        """Return the time of the output projection."""
        return soft_max(sequences * self._head[0], self._head[1], 2.0)

    # ------------------------------------------------------------------ StepTime
    def padded(self, batch: int) -> int:
        """Return the batch a CUDA graph runs for ``batch`` sequences (itself where it runs eagerly)."""
        for size in self.inputs.overheads.graph_sizes:
            if size >= batch:
                return size
        return batch

    def is_eager(self, batch: int) -> bool:
        """Tell whether a decode batch runs without CUDA graph."""
        return self._largest_graph is None or batch > self._largest_graph

    def decode_s(self, batch: int, sum_context: float) -> float:
        """Return the formula's time of a decode step (seconds); contexts are taken as equal: the longest is the
        mean."""
        size = self.padded(batch)
        attention = self.decode_attention_s(size, sum_context, sum_context / batch)
        time = self.gemm_s(size) + self.moe_s(size) + self.allreduce_s(size) + self.overhead_s(size) + self.head_s(size) + attention
        if self.is_eager(batch):
            time = max(time, self.inputs.overheads.eager_floor)
        return time * self._scale

    def prefill_s(
        self,
        new_tokens: int,
        pairs2: int,
        cached_tokens: int,
        prefills: int,
        decode_batch: int = 0,
        sum_context: int = 0,
        max_context: int = 0,
    ) -> float:
        """Return the formula's time of a prefill or mixed step (seconds). Prefill runs without CUDA graph."""
        tokens = new_tokens + decode_batch
        time = (
            self.gemm_s(tokens)
            + self.moe_s(tokens)
            + self.allreduce_s(tokens)
            + self.overhead_s(tokens)
            + self.head_s(prefills + decode_batch)
            + self.prefill_attention_s(new_tokens, pairs2, cached_tokens)
            + self.decode_attention_s(decode_batch, sum_context, max_context)
        )
        return max(time, self.inputs.overheads.eager_floor) * self._scale

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
        """Return the time of a step that computes prompt tokens, rounded to ps: ``prefill_s`` with constants folded."""
        tokens = new_tokens + decode_batch
        launch, per_token, weights, p = self._gemm
        base, slope = self._linear
        compute = tokens * per_token
        time = base + slope * tokens + (hypot(compute, weights) if p == 2.0 else soft_max(compute, weights, p))
        if self._moe is not None:
            time += self.moe_s(tokens)
        protocols = self._protocols
        if protocols:
            per_token, times = self._wire
            size = tokens * per_token
            alpha, beta = protocols[0]
            wire = alpha + size / beta
            for alpha, beta in protocols[1:]:
                wire = min(wire, alpha + size / beta)
            time += times * wire
        time += hypot((prefills + decode_batch) * self._head[0], self._head[1])
        time += launch + self.prefill_attention_s(new_tokens, pairs2, cached_tokens)
        if decode_batch:
            time += self.decode_attention_s(decode_batch, sum_context, max_context)
        if time < self._eager_floor:
            time = self._eager_floor
        return int(time * self._scale_ps + 0.5)

    def _make_curve(self, batch: int) -> Curve:
        kink = round(self.inputs.decode.c1 * batch)
        return straight_pieces(lambda context: self.decode_s(batch, context), batch, (kink,))

    def curve_error(self, batch: int, contexts: list[int]) -> float:
        """Return the largest relative difference of the integer pieces to the formula over these summed contexts."""
        return max(abs(self.decode_ps(batch, s) / PS_PER_S / self.decode_s(batch, s) - 1.0) for s in contexts)


def _most_loaded(routed: float, ranks: int) -> float:
    """Return ranks x the expected load of the fullest expert-parallel rank under even routing.

    Mean + sd sqrt(2 ln n) of n near-normal counts, at most all of them (assumption: no popularity skew between ranks).
    """
    from math import log, sqrt

    mean = routed / ranks
    return min(routed * ranks, ranks * (mean + sqrt(2 * log(ranks) * mean * (1 - 1 / ranks))))
