"""Fluid sharing of links: flows over capacitated resources, max-min fair. Pure functions, integer bytes per second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction


def max_min_rates(flows: Sequence[Sequence[str]], capacity: Mapping[str, float], caps: Sequence[float | None]) -> list[int]:
    """Return the max-min fair rate of each flow, in whole B/s (rounded down, so no capacity is ever exceeded).

    ``flows[i]``: names of the resources flow i crosses; ``capacity``: B/s of each; ``caps[i]``: a limit of flow i
    itself (its copy mode), or None. Progressive filling (Bertsekas and Gallager, Data Networks, 6.5.2): all rates rise
    together until a resource is full or a flow meets its own limit; those flows are frozen, the rest go on rising.
    """
    left = {name: Fraction(value) for name, value in capacity.items()}
    rates: list[Fraction | None] = [None] * len(flows)
    level = Fraction(0)
    while any(rate is None for rate in rates):
        active = [i for i, rate in enumerate(rates) if rate is None]
        room = [Fraction(cap) - level for i in active if (cap := caps[i]) is not None]
        users = {name: count for name in left if (count := sum(flows[i].count(name) for i in active))}
        room += [left[name] / count for name, count in users.items()]
        if not room:
            raise ValueError("a flow without any limit has no finite rate")
        rise = max(min(room), Fraction(0))
        level += rise
        for name, count in users.items():
            left[name] -= rise * count
        for i in active:
            cap = caps[i]
            if (cap is not None and level >= cap) or any(left[name] <= 0 for name in flows[i] if name in users):
                rates[i] = level
    return [int(rate) for rate in rates if rate is not None]
