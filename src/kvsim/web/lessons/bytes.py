"""Lesson 1, where do the bytes go: a toy card whose numbers come out even, then the anchor machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from kvsim.report.style import DataTable
from kvsim.web.lessons.exercise import Exercise

ANCHOR = "hicache-ratio"
GB = 10**9


@dataclass(frozen=True, slots=True)
class Toy:
    """A toy server: ``layers`` x 2 (key and value) x ``kv_heads`` x ``head_dim`` x ``bytes_each``; memory in bytes."""

    layers: int = 10
    kv_heads: int = 5
    head_dim: int = 10
    bytes_each: int = 2
    card: int = 10 * GB
    weights: int = 6 * GB
    mem_fraction: float = 0.9
    ranks: int = 4
    ratio: float = 2.0

    @property
    def bytes_per_token(self) -> int:
        """KV bytes of one token on one rank."""
        return self.layers * 2 * self.kv_heads * self.head_dim * self.bytes_each

    @property
    def pool_bytes(self) -> int:
        """Bytes of the KV pool: the static share of the card without the weights."""
        return max(round(self.card * self.mem_fraction) - self.weights, 0)

    @property
    def device_tokens(self) -> int:
        """Tokens that fit on the device."""
        return self.pool_bytes // self.bytes_per_token

    @property
    def host_bytes_total(self) -> float:
        """Host RAM of all ranks together."""
        return self.ratio * self.device_tokens * self.bytes_per_token * self.ranks


@cache
def anchor_capacity(ratio: float | None = None) -> Any:
    """Return the capacity of the anchor machine (the bundled experiment), at its own or another ratio."""
    from kvsim.api import load, resolve

    return resolve(load(ANCHOR, [] if ratio is None else [f"engine.hicache.ratio={ratio}"])).capacity


def exercises() -> tuple[Exercise, ...]:
    """Return the exercises of lesson 1."""
    toy = Toy()
    anchor = anchor_capacity()
    return (
        Exercise(
            "bytes-1",
            "Toy server: how many bytes of KV does one token need on one rank?",
            toy.bytes_per_token,
            "bytes",
            "10 layers x 2 (key and value) x 5 heads x 10 numbers x 2 bytes.",
            ((toy.bytes_per_token / 2, "a token has a key and a value: twice that."), (200, "that is one layer only.")),
        ),
        Exercise(
            "bytes-2",
            "Toy server: how many tokens fit into the KV pool?",
            toy.device_tokens,
            "tokens",
            "0.9 x 10 GB - 6 GB = 3 GB, divided by 2,000 bytes.",
            (
                (
                    (toy.card - toy.weights) / toy.bytes_per_token,
                    "only the static fraction (0.9) of the card is given to weights and pool.",
                ),
            ),
        ),
        Exercise(
            "bytes-3",
            "Toy server: how much host RAM do all 4 ranks take at ratio 2?",
            toy.host_bytes_total / GB,
            "GB",
            "2 x 3 GB per rank, and every rank keeps its own.",
            (
                (toy.host_bytes_total / GB / toy.ranks, "that is one rank; the server has 4."),
                (toy.host_bytes_total / GB / 2, "the ratio is 2: the host pool is twice the device pool."),
            ),
        ),
        Exercise(
            "bytes-4",
            "Anchor machine: how many bytes of KV does one token need on one rank?",
            anchor.kv_bytes_per_token,
            "bytes",
            "MLA keeps one latent of 512 + 64 numbers per layer, on every rank.",
            (
                (
                    anchor.kv_bytes_per_token / anchor.ranks,
                    "an MLA latent is not divided over the ranks: each keeps all of it.",
                ),
                (anchor.kv_bytes_per_token * 2, "MLA stores one latent for key and value together."),
            ),
        ),
        Exercise(
            "bytes-5",
            "Anchor machine: what would ratio 4 take of host RAM in total, in GB (1e9)?",
            4 * anchor.device_tokens * anchor.kv_bytes_per_token * anchor.ranks / GB,
            "GB",
            "4 x device tokens x bytes per token x 8 ranks: stock HiCache keeps a copy per rank.",
            (
                (
                    4 * anchor.device_tokens * anchor.kv_bytes_per_token / GB,
                    "that is one rank; each of the 8 keeps its own copy.",
                ),
            ),
            tolerance=0.02,
        ),
    )


def toy_table(toy: Toy) -> DataTable:
    """Return the toy server's arithmetic, line by line."""
    rows = (
        (
            "bytes per token and rank",
            f"{toy.bytes_per_token:,} B",
            f"{toy.layers} layers x 2 x {toy.kv_heads} heads x {toy.head_dim} x {toy.bytes_each} B",
        ),
        (
            "KV pool of one rank",
            f"{toy.pool_bytes / GB:g} GB",
            f"{toy.mem_fraction:g} x {toy.card / GB:g} GB - {toy.weights / GB:g} GB of weights",
        ),
        ("tokens on the device", f"{toy.device_tokens:,}", "pool / bytes per token"),
        ("tokens in host RAM", f"{int(toy.ratio * toy.device_tokens):,}", f"{toy.ratio:g} x device tokens"),
        ("host RAM per rank", f"{toy.host_bytes_total / toy.ranks / GB:g} GB", "host tokens x bytes per token"),
        ("host RAM in total", f"{toy.host_bytes_total / GB:g} GB", f"{toy.ranks} ranks, each with its own"),
    )
    return DataTable(("what", "value", "how"), rows)
