"""Measured kernel coefficients per card, and how they carry over to a card nobody measured.

Fitted to the op tables of NVIDIA aiconfigurator (commit 095f58a, Apache-2.0; SGLang 0.5.14 unless a line says
otherwise): single-op latencies in CUDA graphs on one GPU. MAPE of each fit: docs/background/time.md. Efficiencies are
fractions of the card's dense bf16 FLOP/s and memory bandwidth; t0 in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvsim.cost.inputs import Card

#: Spec values (dense bf16 FLOP/s, B/s, L2 bytes): system files of aiconfigurator 095f58a, NVIDIA data sheets for L2.
CARDS: dict[str, Card] = {
    "rtx_pro_6000": Card("RTX PRO 6000 Blackwell", 467.8e12, 1.792e12, 128e6),
    "h100": Card("H100 SXM", 989e12, 3.35e12, 50e6),
    "h200": Card("H200 SXM", 989e12, 4.8e12, 50e6),
    "b200": Card("B200 SXM", 2250e12, 7.7e12, 126e6),
    "l40s": Card("L40S", 362e12, 0.864e12, 96e6),
    "a100": Card("A100 SXM", 312e12, 2.039e12, 40e6),
}


@dataclass(frozen=True, slots=True)
class GemmFit:
    """(t0 per kernel, FLOP efficiency, cold bandwidth efficiency, p of the soft maximum)."""

    t0: float
    flops_eff: float
    bw_eff: float
    p: float


@dataclass(frozen=True, slots=True)
class MoeFit:
    """Routed experts: (t0 per layer, FLOP efficiency, bandwidth efficiency, p, padding tokens per expert hit)."""

    t0: float
    flops_eff: float
    bw_eff: float
    p: float
    pad_tokens: float


@dataclass(frozen=True, slots=True)
class DecodeFit:
    """Decode attention: (t0 per layer, per sequence, bandwidth efficiency, a, c1, d, p) of docs/background/time.md."""

    t0: float
    t_seq: float
    bw_eff: float
    a: float = 0.0
    c1: float = 0.0
    d: float = 0.0
    p: float = 4.0


@dataclass(frozen=True, slots=True)
class PrefillFit:
    """Prefill attention: (FLOP/s reached, t0 per layer, seconds per token and layer, factor on pairs beyond the L2
    cache)."""

    rate: float
    t0: float
    per_token: float
    far_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Kernels:
    """Every coefficient of one card. None: no table of this kernel exists for the card (then scaled from
    ``nearest``)."""

    gemm: GemmFit
    moe: MoeFit
    mla_decode: DecodeFit
    mla_decode_old: DecodeFit | None
    mla_plain: PrefillFit
    mla_absorbed: PrefillFit
    gqa_decode: DecodeFit
    gqa_prefill: PrefillFit
    gqa_prefill_triton: PrefillFit
    gemm_fp8: GemmFit | None = None
    #: vLLM: Triton MLA decode with fp8 KV, and its expert kernel; calibrated together with the overhead per layer
    #: (adapt.LAYER_OVERHEAD) on the 32 open DCP1 rows without speculation of the public decode matrix, see time.md
    mla_decode_vllm_fp8: DecodeFit | None = None
    moe_vllm: MoeFit | None = None
    notes: tuple[str, ...] = ()


_RTX = Kernels(
    gemm=GemmFit(2.651e-6, 0.8031, 0.8143, 2.0),
    moe=MoeFit(16.5e-6, 0.3631, 0.9069, 1.5, 7.684),
    mla_decode=DecodeFit(15.18e-6, 0.369e-6, 0.7524, 5.857e-9, 5470, 1.106e-9, 4),
    mla_decode_old=DecodeFit(12.77e-6, 1.1e-9, 0.5091, 0.7766e-9, 145400, 13.54e-9, 3),
    mla_plain=PrefillFit(268.3e12, 13e-6, 5e-9),
    mla_absorbed=PrefillFit(98.73e12, 12.67e-6, 9.745e-9),
    gqa_decode=DecodeFit(6.365e-6, 0.0, 0.817),
    # 1.37: open rows of a SGLang log, Qwen3.8-27B, contexts 3k to 345k (shared/groundtruth D1); see time.md
    gqa_prefill=PrefillFit(285e12, 6.8e-6, 3e-9, 1.37),
    gqa_prefill_triton=PrefillFit(147.5e12, 15.66e-6, 3.418e-9),
    gemm_fp8=GemmFit(11.71e-6, 2 * 0.6705, 0.6116, 4.0),
    mla_decode_vllm_fp8=DecodeFit(15.18e-6, 0.369e-6, 0.459, 0.0, 5470, 1.02e-9, 4),
    moe_vllm=MoeFit(16.5e-6, 0.3631, 0.733, 1.5, 7.684),
)
_H100 = Kernels(
    gemm=GemmFit(3.783e-6, 0.7403, 0.83, 4.0),
    moe=MoeFit(24.07e-6, 0.1788, 0.7433, 65, 17.3),
    mla_decode=DecodeFit(11.41e-6, 0.02066e-6, 0.8732, 17.11e-9, 263.3, 0.4084e-9, 2),
    mla_decode_old=None,
    mla_plain=PrefillFit(755e12, 19.2e-6, 4.0e-9),
    mla_absorbed=PrefillFit(656.4e12, 12.22e-6, 8.2e-9),
    gqa_decode=DecodeFit(9.42e-6, 0.0, 0.781),
    gqa_prefill=PrefillFit(667e12, 11e-6, 4e-9),
    gqa_prefill_triton=PrefillFit(667e12, 11e-6, 4e-9),
    notes=("H100: no Triton attention table; the fa3 kernel's rate stands in",),
)
_H200 = Kernels(
    gemm=GemmFit(3.958e-6, 0.741, 0.817, 2.0),
    moe=MoeFit(24.61e-6, 0.1783, 0.61, 65, 14.34),
    mla_decode=DecodeFit(11.3e-6, 0.01849e-6, 0.9234, 14.74e-9, 292.4, 0.1448e-9, 1),
    mla_decode_old=None,
    mla_plain=PrefillFit(741.8e12, 18.7e-6, 3.9e-9),
    mla_absorbed=PrefillFit(659.5e12, 12.16e-6, 7.07e-9),
    gqa_decode=DecodeFit(9.36e-6, 0.0, 0.732),
    gqa_prefill=PrefillFit(640e12, 10.8e-6, 3.4e-9),
    gqa_prefill_triton=PrefillFit(640e12, 10.8e-6, 3.4e-9),
    notes=("H200: no Triton attention table; the fa3 kernel's rate stands in",),
)
_B200 = Kernels(
    gemm=GemmFit(3.426e-6, 0.6772, 0.7789, 2.0),
    moe=MoeFit(34.06e-6, 0.2821, 0.8438, 1.0, 23.21),
    mla_decode=DecodeFit(10.32e-6, 0.0266e-6, 0.7234, 3.154e-9, 1038, 0.3947e-9, 3),
    mla_decode_old=None,
    mla_plain=PrefillFit(1375e12, 14.15e-6, 2.673e-9),
    mla_absorbed=PrefillFit(1375e12, 14.15e-6, 2.673e-9),
    gqa_decode=DecodeFit(9.98e-6, 0.0, 0.813),
    gqa_prefill=PrefillFit(1250e12, 11.2e-6, 2e-9),
    gqa_prefill_triton=PrefillFit(261.6e12, 19.09e-6, 3.4e-9),
    notes=("B200: no absorbed MLA prefill table; the unabsorbed kernel's rate stands in",),
)
_L40S = Kernels(
    gemm=GemmFit(2.089e-6, 0.5283, 0.7785, 4.0),
    moe=MoeFit(24.74e-6, 0.2003, 0.8387, 1.5, 0.0),
    mla_decode=DecodeFit(12.53e-6, 0.4963e-6, 0.876, 4.342e-9, 2788, 1.251e-9, 4),
    mla_decode_old=None,
    mla_plain=PrefillFit(183e12, 13.6e-6, 5e-9),
    mla_absorbed=PrefillFit(74.21e12, 9.93e-6, 13.77e-9),
    gqa_decode=DecodeFit(5.99e-6, 0.0, 0.84),
    gqa_prefill=PrefillFit(183e12, 5.6e-6, 4e-9),
    gqa_prefill_triton=PrefillFit(116.4e12, 13.62e-6, 5.1e-9),
    notes=("L40S: no unabsorbed MLA prefill table; the GQA kernel's rate stands in",),
)
_A100 = Kernels(
    gemm=GemmFit(6.186e-6, 0.7481, 0.7328, 2.0),
    moe=MoeFit(44.75e-6, 0.3059, 0.8193, 65, 14.25),
    mla_decode=DecodeFit(14.4e-6, 0.1e-6, 0.25, 0.0, 0.0, 0.0, 4),
    mla_decode_old=None,
    mla_plain=PrefillFit(154.8e12, 15.36e-6, 8.8e-9),
    mla_absorbed=PrefillFit(154.8e12, 15.36e-6, 8.8e-9),
    gqa_decode=DecodeFit(14.38e-6, 0.0, 0.396),
    gqa_prefill=PrefillFit(189e12, 14.6e-6, 7e-9),
    gqa_prefill_triton=PrefillFit(189e12, 14.6e-6, 7e-9),
    notes=("A100: MLA from TensorRT-LLM tables (no SGLang ones), dense and MoE tables of SGLang 0.5.10",),
)

KERNELS: dict[str, Kernels] = {
    "rtx_pro_6000": _RTX,
    "h100": _H100,
    "h200": _H200,
    "b200": _B200,
    "l40s": _L40S,
    "a100": _A100,
}

#: Which card's efficiencies stand in for a card without tables, by architecture generation.
NEAREST = {"blackwell_pro": "rtx_pro_6000", "hopper": "h100", "blackwell": "b200", "ada": "l40s", "ampere": "a100"}

#: All-reduce time at 8 GPUs as min over protocols of alpha + bytes / beta (bytes of the reduced tensor).
#: aic_host, h100 .. a100: fitted to aiconfigurator 095f58a; nccl_tuned: 18.9 us from a WRX90 host's small sizes, 24
#: GB/s between published bus figures of tuned PCIe hosts (37.6 to 46 GB/s); custom: one-shot PCIe kernel (community
#: wiki, 2026).
ALLREDUCE: dict[str, tuple[tuple[float, float], ...]] = {
    "aic_host": ((24.53e-6, 5.038e9), (77.06e-6, 14.04e9)),
    "nccl_tuned": ((18.9e-6, 24e9),),
    "custom_nccl": ((7.323e-6, 3.763e9), (18.9e-6, 24e9)),
    "nvlink_h100": ((3.529e-6, 46.63e9), (9.318e-6, 218.5e9)),
    "nvlink_h200": ((3.336e-6, 46.41e9), (11.94e-6, 232.8e9)),
    "nvlink_b200": ((5.01e-6, 75.7e9), (12.74e-6, 363.1e9)),
    "nvlink_a100": ((5.748e-6, 23.24e9), (14.32e-6, 121.3e9)),
    "l40s_host": ((25.19e-6, 1.062e9),),
}


def scaled(kernels: Kernels, source: Card, target: Card) -> Kernels:
    """Return the coefficients of ``source`` carried over to ``target`` by roofline.

    Efficiencies and launch times stay; rates in FLOP/s scale with the peak, times per token with the memory bandwidth.
    """
    compute, memory = target.flops / source.flops, target.mem_bw / source.mem_bw

    def prefill(fit: PrefillFit) -> PrefillFit:
        return PrefillFit(fit.rate * compute, fit.t0, fit.per_token / memory, fit.far_factor)

    def decode(fit: DecodeFit) -> DecodeFit:
        return replace(fit, a=fit.a / memory, d=fit.d / memory)

    return replace(
        kernels,
        mla_decode=decode(kernels.mla_decode),
        mla_decode_old=decode(kernels.mla_decode_old) if kernels.mla_decode_old else None,
        mla_plain=prefill(kernels.mla_plain),
        mla_absorbed=prefill(kernels.mla_absorbed),
        gqa_decode=decode(kernels.gqa_decode),
        gqa_prefill=prefill(kernels.gqa_prefill),
        gqa_prefill_triton=prefill(kernels.gqa_prefill_triton),
        mla_decode_vllm_fp8=decode(kernels.mla_decode_vllm_fp8) if kernels.mla_decode_vllm_fp8 else None,
    )


def protocols_at(protocols: tuple[tuple[float, float], ...], gpus: int) -> tuple[tuple[float, float], ...]:
    """Return 8-GPU protocols carried to another number of GPUs.

    Ring volume per GPU is 2 (n-1)/n of the tensor, so beta scales with (7/8) / ((n-1)/n); the latency is taken as
    0.23 + 0.11 (n-1) of the 8-GPU one (13.5 us at 4 GPUs against 24.2 us at 8, small NCCL sizes on PCIe).
    """
    if gpus == 8:
        return protocols
    latency = (0.227 + 0.1104 * (gpus - 1)) if gpus > 1 else 0.0
    return tuple((alpha * latency, beta * 0.875 * gpus / (gpus - 1)) for alpha, beta in protocols)
