"""The numbers of the analytic step-time model, one plain object per component. Everything is per GPU; SI units.

Formulas: docs/background/time.md. The objects are made from a hardware profile, a model's config and an engine by
``cost/adapt.py``; a user or ``calibrate`` replaces single numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Card:
    """What a GPU can do at most: ``flops`` dense bf16 FLOP/s, ``mem_bw`` B/s, ``l2_bytes``."""

    name: str
    flops: float
    mem_bw: float
    l2_bytes: float = 50e6


@dataclass(frozen=True, slots=True)
class Gemm:
    """Dense matrices of all layers: ``t0`` s per kernel, efficiencies of FLOP and bandwidth peak, ``p`` of the soft
    maximum."""

    weight_bytes: float
    flops_per_token: float
    kernels: float
    t0: float
    flops_eff: float
    bw_eff: float
    p: float = 2.0


@dataclass(frozen=True, slots=True)
class Moe:
    """Routed experts of ``layers`` layers: ``expert_bytes``, ``flops_per_routed_token`` per GPU; ``dispersion`` s of
    expert coverage.

    ``ranks``: expert-parallel ranks (1: every GPU holds a slice of every expert). ``pad_tokens``: padding per expert
    hit.
    """

    layers: int
    experts: int
    top_k: int
    expert_bytes: float
    flops_per_routed_token: float
    t0: float
    flops_eff: float
    bw_eff: float
    p: float
    pad_tokens: float
    dispersion: float = 1.0
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class DecodeAttention:
    """Attention of decoding sequences, per layer: ``kv_bytes`` read per token of context; ``a``, ``c1``, ``d``: the
    longest one's own time."""

    layers: int
    kv_bytes: float
    t0: float
    t_seq: float
    bw_eff: float
    a: float = 0.0
    c1: float = 0.0
    d: float = 0.0
    p: float = 4.0


@dataclass(frozen=True, slots=True)
class PrefillKernel:
    """One prefill attention kernel, per layer: ``pair_flop`` per (new token, context token) pair at ``rate`` FLOP/s.

    ``up_flop``: FLOP per cached token to expand latents again (MLA, unabsorbed), at the GEMM's rate. Pairs whose
    context lies beyond ``near_tokens`` cost ``far_factor`` as much: a context that no longer fits the L2 cache is read
    again.
    """

    pair_flop: float
    rate: float
    t0: float
    per_token: float
    up_flop: float = 0.0
    near_tokens: float = 0.0
    far_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class PrefillAttention:
    """Which kernel computes prompt tokens. ``unabsorbed_from``: cached tokens of a step from which ``plain`` is used
    again.

    ``plain`` with no cached tokens; ``absorbed`` (None: always plain) for 0 < cached < ``unabsorbed_from`` (None: for
    any cached).
    """

    layers: int
    plain: PrefillKernel
    absorbed: PrefillKernel | None = None
    unabsorbed_from: int | None = None


@dataclass(frozen=True, slots=True)
class AllReduce:
    """``count`` all-reduces per layer of ``bytes_per_token``: time = min over protocols of alpha + bytes / beta."""

    layers: int
    bytes_per_token: float
    protocols: tuple[tuple[float, float], ...]
    count: int = 2


@dataclass(frozen=True, slots=True)
class Overheads:
    """``m0`` s per layer, ``m1`` s per token and layer, ``step_cpu`` s per step; ``eager_floor`` s: least step without
    CUDA graph.

    ``graph_sizes``: captured decode batches, ascending; a batch is padded to the next one; above the largest it runs
    eagerly.
    """

    m0: float
    m1: float
    step_cpu: float = 0.0
    eager_floor: float = 0.0
    graph_sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Head:
    """The output projection: bytes read and FLOP per sequence that needs a token."""

    weight_bytes: float
    flops_per_sequence: float


@dataclass(frozen=True, slots=True)
class AnalyticInputs:
    """All components of one engine's step time. ``notes``: assumptions to print; ``measured``: coefficients exist for
    this card."""

    card: Card
    layers: int
    gemm: Gemm
    decode: DecodeAttention
    prefill: PrefillAttention
    overheads: Overheads
    head: Head
    moe: Moe | None = None
    allreduce: AllReduce | None = None
    notes: tuple[str, ...] = ()
    measured: bool = True
    scale: float = 1.0

    def changed(self, component: str, **numbers: float) -> AnalyticInputs:
        """Return a copy in which single numbers of one component are replaced."""
        return replace(self, **{component: replace(getattr(self, component), **numbers)})
