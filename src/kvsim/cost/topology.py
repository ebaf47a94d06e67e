"""The machine's copy paths as resources: link per direction, shared uplinks, roots, host memory; and what they
allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvsim.cost.fluid import max_min_rates
from kvsim.errors import ConfigError

H2D, D2H = "h2d", "d2h"
DIRECTIONS = (H2D, D2H)

#: GT/s per lane; generations 3 to 5 code 128 bits in 130, generation 6 in flits (242 of 256 bytes carry data).
PCIE_GT_PER_S = {3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}


def pcie_ceiling(generation: int, lanes: int) -> float:
    """Return the physical ceiling of one PCIe link per direction in B/s, e.g. 32 GT/s x 16 x 128/130 / 8 = 63.0e9."""
    if generation not in PCIE_GT_PER_S:
        raise ConfigError(f"PCIe generation {generation} is unknown; known: {', '.join(map(str, PCIE_GT_PER_S))}")
    coding = 128 / 130 if generation < 6 else 242 / 256
    return PCIE_GT_PER_S[generation] * 1e9 * lanes * coding / 8


def check_possible(what: str, rate: float, generation: int | None, lanes: int = 16) -> None:
    """Raise ConfigError when ``rate`` (B/s) exceeds what the PCIe link can carry; the ceiling is shown."""
    if generation is None:
        return
    ceiling = pcie_ceiling(generation, lanes)
    if rate > ceiling:
        raise ConfigError(
            f"{what} is {rate / 1e9:.1f} GB/s, but PCIe Gen{generation} "
            f"x{lanes} carries at most {ceiling / 1e9:.1f} GB/s "
            f"({PCIE_GT_PER_S[generation]:.0f} GT/s x {lanes} x "
            f"128/130 / 8): give a value up to {ceiling / 1e9:.1f}GB/s"
        )


@dataclass(frozen=True, slots=True)
class Shared:
    """A limit that several GPUs share: ``bw`` B/s, per direction unless ``both_ways`` (host memory, where reads and
    writes add)."""

    name: str
    gpus: tuple[int, ...]
    bw: float
    both_ways: bool = False


@dataclass(frozen=True, slots=True)
class Topology:
    """The paths of one engine's GPUs. ``h2d``, ``d2h``: each GPU's link in B/s (None: unlimited).

    ``duplex``: factor on a GPU's link rate per direction while both directions are busy, (h2d, d2h). ``modes``:
    per-flow limits of the copy mode, B/s or None; ``mode_duplex``: the same factor applied to them (constant links).
    """

    gpus: int
    h2d: float | None
    d2h: float | None
    duplex: tuple[float, float] = (1.0, 1.0)
    shared: tuple[Shared, ...] = ()
    mode_caps: tuple[float | None, float | None] = (None, None)
    _rates: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[list[int], list[int]]] = field(default_factory=dict, compare=False)

    def classes(self) -> list[list[int]]:
        """Return the GPUs in groups that a load on all of them cannot tell apart (same chain of equally crowded
        limits)."""
        groups: dict[tuple[object, ...], list[int]] = {}
        for gpu in range(self.gpus):
            crossed = tuple((s.bw, s.both_ways, len(s.gpus), _crowd(s, self.shared)) for s in self.shared if gpu in s.gpus)
            groups.setdefault(crossed, []).append(gpu)
        return list(groups.values())

    def rates(self, loading: Sequence[int], storing: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the max-min fair B/s of each loading and each storing GPU when exactly these copy."""
        key = (tuple(loading), tuple(storing))
        known = self._rates.get(key)
        if known is None:
            known = self._rates[key] = self._share(*key)
        return known

    def _share(self, loading: tuple[int, ...], storing: tuple[int, ...]) -> tuple[list[int], list[int]]:
        capacity: dict[str, float] = {}
        flows, caps = [], []
        both = set(loading) & set(storing)
        for index, (way, gpus) in enumerate(zip(DIRECTIONS, (loading, storing), strict=True)):
            for gpu in gpus:
                link, factor = (self.h2d, self.d2h)[index], self.duplex[index] if gpu in both else 1.0
                limits = [x for x in (None if link is None else link * factor, self.mode_caps[index]) if x is not None]
                flows.append(self._path(gpu, way, capacity))
                caps.append(min(limits) if limits else None)
        rates = max_min_rates(flows, capacity, caps)
        return rates[: len(loading)], rates[len(loading) :]

    def _path(self, gpu: int, way: str, capacity: dict[str, float]) -> list[str]:
        path = []
        for limit in self.shared:
            if gpu in limit.gpus:
                name = limit.name if limit.both_ways else f"{limit.name}/{way}"
                capacity[name] = limit.bw
                path.append(name)
        return path


def _crowd(limit: Shared, shared: Sequence[Shared]) -> tuple[object, ...]:
    """Return how the members of a shared limit are spread over the other limits (part of what makes two GPUs alike)."""
    return tuple(sorted((other.bw, len(set(limit.gpus) & set(other.gpus))) for other in shared if other is not limit))
