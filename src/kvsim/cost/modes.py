"""How an engine copies KV between device and host: ``kernel``, ``batch``, ``direct``, ``page_contig``; what each can
reach.

Sources of the constants: docs/background/time.md, "Copies". A descriptor is one contiguous piece that one copy command
moves: page and layer (K and V apart unless the model stores one latent), or a page with all its layers for
``page_contig``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log

from kvsim.errors import UnknownName

MODES = ("kernel", "batch", "direct", "page_contig", "constant")

#: (descriptor bytes, B/s) of cuMemcpyBatchAsync host to device, Gen5 x16, 50k-100k descriptors (vLLM pull request
#: 42212, 2026).
BATCH_CURVE: tuple[tuple[float, float], ...] = (
    (4096, 3.9e9),
    (8192, 5.3e9),
    (16384, 6.3e9),
    (24576, 6.8e9),
    (28672, 42e9),
    (65536, 51.5e9),
    (1048576, 55e9),
)

#: One cudaMemcpyAsync per piece (DMA): seconds per command and the large-copy rate, fitted to the curve of a vLLM blog
#: of January 2026 (H100, Gen5 x16, 1,000 blocks of 4 kB to 16 MB, read off a figure, +-1 GB/s).
DMA_COMMAND_S, DMA_RATE = 3.45e-6, 51e9

#: Copy kernels of vLLM on the same machine: (block bytes, B/s) host to device and device to host.
KERNEL_CURVE_H2D: tuple[tuple[float, float], ...] = (
    (4e3, 12.5e9),
    (8e3, 24.4e9),
    (16e3, 30.6e9),
    (32e3, 35.9e9),
    (64e3, 41.9e9),
    (128e3, 44.0e9),
    (512e3, 46.9e9),
    (16.4e6, 47.8e9),
)
KERNEL_CURVE_D2H: tuple[tuple[float, float], ...] = (
    (4e3, 5.2e9),
    (8e3, 22e9),
    (16e3, 30.6e9),
    (32e3, 34.1e9),
    (64e3, 41e9),
    (128e3, 45.5e9),
    (512e3, 48e9),
    (16.4e6, 48.9e9),
)


def on_curve(curve: Sequence[tuple[float, float]], size: float) -> float:
    """Return B/s at a descriptor size: log-log between points; below the first in proportion to size, above the last
    constant."""
    if size <= curve[0][0]:
        return curve[0][1] * size / curve[0][0]
    for (x0, y0), (x1, y1) in pairwise(curve):
        if size <= x1:
            return exp(log(y0) + (log(y1) - log(y0)) * (log(size) - log(x0)) / (log(x1) - log(x0)))
    return curve[-1][1]


@dataclass(frozen=True, slots=True)
class Layout:
    """How one GPU's KV lies: ``page`` tokens, ``layers``, ``token_layer_bytes`` of one descriptor's row, ``parts`` (2:
    K and V apart)."""

    page: int
    layers: int
    token_layer_bytes: float
    parts: int = 1

    def descriptor_bytes(self, mode: str) -> float:
        """Return the size of one contiguous piece under a copy mode."""
        if mode == "page_contig":
            return self.page * self.layers * self.parts * self.token_layer_bytes
        return self.page * self.token_layer_bytes

    def commands_per_token(self, mode: str) -> float:
        """Return copy commands per token of one GPU."""
        return 1 / self.page if mode == "page_contig" else self.layers * self.parts / self.page


@dataclass(frozen=True, slots=True)
class CopyCosts:
    """Constants of the copy modes (SI). ``kernel_d2h_page_first``: stores into a page-first host pool."""

    kernel_h2d: float = 30e9
    kernel_d2h: float = 28e9
    kernel_d2h_page_first: float = 20e9
    interference: float = 0.05
    batch_curve: tuple[tuple[float, float], ...] = BATCH_CURVE
    command_s: float = 3e-6
    setup_s: float = 20e-6
    layer_s: float = 10e-6


def mode_rates(mode: str, layout: Layout, costs: CopyCosts, *, page_first: bool = False) -> tuple[float, float]:
    """Return the (h2d, d2h) limit in B/s that a copy mode sets to one GPU. Raises UnknownName."""
    if mode == "kernel":
        return costs.kernel_h2d, costs.kernel_d2h_page_first if page_first else costs.kernel_d2h
    size = layout.descriptor_bytes(mode)
    if mode in {"batch", "page_contig"}:
        rate = on_curve(costs.batch_curve, size)
        return rate, rate
    if mode == "direct":
        return size / costs.command_s, size / costs.command_s
    raise UnknownName("copy mode", mode, MODES)


def dma_rate(block_bytes: float, *, command_s: float = DMA_COMMAND_S, rate: float = DMA_RATE) -> float:
    """Return B/s of back-to-back single DMA commands of this size: size / (command + size / rate)."""
    return block_bytes / (command_s + block_bytes / rate)
