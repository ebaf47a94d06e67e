"""Builds step time and links of a resolved scenario; nothing here has a number of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.cost.links import CopyMode, Links
from kvsim.cost.topology import Topology
from kvsim.errors import UnknownName

if TYPE_CHECKING:
    from kvsim.config.resolved import Resolved
    from kvsim.cost.port import StepTime

COST_KINDS = ("constant", "analytic", "table", "aiconfigurator")


def build_step_time(resolved: Resolved) -> StepTime:
    """Return the source of step time that ``costs`` names. Raises ConfigError, UnknownName, TraceError,
    MissingExtra."""
    costs = resolved.scenario.costs
    if costs.kind == "constant":
        from kvsim.cost.constant import ConstantTime, Rates

        return ConstantTime(Rates(**{name: getattr(costs, name) for name in Rates.__dataclass_fields__}), costs.layers)
    if costs.kind == "analytic":
        from kvsim.cost.resolve import analytic_time

        return analytic_time(resolved)
    if costs.kind == "table":
        from pathlib import Path

        from kvsim.cost.table import TableTime, read_steps

        return TableTime(read_steps(Path(costs.file)), resolved.model.layers, costs.outside)
    if costs.kind == "aiconfigurator":
        from kvsim.cost.aiconfigurator import estimator_of

        return estimator_of(resolved)
    raise UnknownName("kind of costs", costs.kind, COST_KINDS)


def build_links(resolved: Resolved) -> Links:
    """Return the engine's copies between device and host as ``links`` describes them; bytes per token come from the
    capacity."""
    links, capacity = resolved.scenario.links, resolved.capacity
    if links.kind == "constant":
        bytes_per_token = capacity.kv_bytes_per_token
        mode = CopyMode((bytes_per_token, bytes_per_token), setup_ps=round(links.latency * 1e12), layerwise=links.layerwise_overlap)
        return Links(Topology(1, links.h2d, links.d2h, (links.duplex, links.duplex)), mode)
    from kvsim.cost.resolve import topology_links

    return topology_links(resolved)
