"""One seed, many named and independent streams of random numbers; the same in every process."""

from __future__ import annotations

import hashlib
import random


def stream(seed: int, *names: object) -> random.Random:
    """Return the generator of one purpose: equal seed and names give equal numbers, other names independent ones."""
    text = "/".join([str(seed), *map(str, names)])
    return random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big"))


def derived_seed(seed: int, *names: object) -> int:
    """Return a seed derived from another one and names (replications)."""
    text = "/".join([str(seed), "seed", *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
