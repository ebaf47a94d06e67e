"""Which points a study simulates: grids, linked variables, Latin hypercubes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.errors import ConfigError

Point = dict[str, Any]


def grid(axes: Mapping[str, Sequence[Any]]) -> list[Point]:
    """Return every combination; an axis ``a+b`` varies both keys together (its values are lists of equal length)."""
    choices: list[list[Point]] = []
    for key, values in axes.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ConfigError(f"axis {key}: needs at least one value, for example {key}=1,2,4")
        names = [name.strip() for name in key.split("+")]
        choices.append([_linked(key, names, value) for value in values])
    return [{k: v for part in parts for k, v in part.items()} for parts in itertools.product(*choices)]


def _linked(key: str, names: list[str], value: Any) -> Point:
    if len(names) == 1:
        return {names[0]: value}
    if not isinstance(value, (list, tuple)) or len(value) != len(names):
        raise ConfigError(f"axis {key}: each value must be a list of {len(names)}, not {value!r:.60}")
    return dict(zip(names, value, strict=True))


def latin_hypercube(ranges: Mapping[str, tuple[float, float]], points: int, seed: int) -> list[Point]:
    """Return ``points`` samples of a Latin hypercube over the ranges (scipy.stats.qmc), the same for equal seeds."""
    from scipy.stats import qmc

    sample = qmc.LatinHypercube(d=len(ranges), rng=seed).random(points)
    low = [bounds[0] for bounds in ranges.values()]
    high = [bounds[1] for bounds in ranges.values()]
    scaled = qmc.scale(sample, low, high)
    return [dict(zip(ranges, map(float, row), strict=True)) for row in scaled]


def parse_axis(text: str) -> tuple[str, list[Any]]:
    """Return (key, values) of ``key=v1,v2,...``. Raises ConfigError."""
    from kvsim.config.yamlfile import parse_scalar

    key, sign, values = text.partition("=")
    if not sign or not key.strip() or not values.strip():
        raise ConfigError(f"--axis {text!r:.80}: must be key=v1,v2,..., for example engine.hicache.ratio=0,1,2,4,8")
    return key.strip(), [parse_scalar(value.strip()) for value in values.split(",")]


def chosen_points(axes: Sequence[str] | None, points: int | None, seed: int) -> tuple[dict[str, list[Any]] | None, list[Point] | None]:
    """Return (axes, points) of axes as a person types them; points is None for a grid. Raises ConfigError.

    Axes given as ranges (``key=low..high``) are sampled by a Latin hypercube of ``points`` points; lists beside them are crossed with it.
    """
    if not axes:
        if points is not None:
            raise ConfigError("--points needs an axis given as a range, for example --axis engine.hicache.ratio=1..8")
        return None, None
    ranges = {key: bounds for text in axes if (found := _parse_range(text)) is not None for key, bounds in (found,)}
    lists = dict(parse_axis(text) for text in axes if _parse_range(text) is None)
    if not ranges:
        if points is not None:
            raise ConfigError("--points needs an axis given as a range, for example --axis engine.hicache.ratio=1..8")
        return lists, None
    if points is None or points < 1:
        raise ConfigError(f"axis {next(iter(ranges))} is a range: say how many points with --points")
    sample = latin_hypercube(ranges, points, seed)
    crossed = [{**left, **right} for left in grid(lists) for right in sample] if lists else sample
    keys = [*lists, *ranges]
    return {key: list(dict.fromkeys(point[key] for point in crossed if key in point)) for key in keys}, crossed


def _parse_range(text: str) -> tuple[str, tuple[float, float]] | None:
    key, _, value = text.partition("=")
    low, dots, high = value.partition("..")
    if not dots:
        return None
    try:
        bounds = float(low), float(high)
    except ValueError:
        bounds = (1.0, 0.0)
    if not bounds[0] < bounds[1]:
        raise ConfigError(f"--axis {text!r:.80}: a range is key=low..high with numbers, low below high")
    return key.strip(), bounds


def parse_range(text: str) -> tuple[str, tuple[float, float]]:
    """Return (key, (low, high)) of ``key=low..high``. Raises ConfigError."""
    found = _parse_range(text)
    if found is None:
        raise ConfigError(f"{text!r:.80}: must be key=low..high, for example engine.hicache.ratio=0..8")
    return found
