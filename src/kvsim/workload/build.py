"""Builds the client that a scenario's ``workload`` and ``clients`` blocks describe."""

from __future__ import annotations

from typing import Any

from kvsim.errors import ConfigError
from kvsim.workload.clients import OpenLoop
from kvsim.workload.read import open_trace
from kvsim.workload.spec import Client


def build_client(workload: Any, *, seed: int, clients: Any) -> Client:
    """Return the client. Raises ConfigError when the scenario has no workload, TraceError for a bad file."""
    if workload is None:
        raise ConfigError("workload: is missing; give a trace or a recipe, for example workload: {kind: poisson, rate_per_s: 1}")
    if workload.kind == "trace":
        options = {
            key: value
            for key, value in workload.model_dump(exclude_none=True).items()
            if key not in ("kind", "trace", "format", "rate_scale")
        }
        timeout = None if clients.timeout is None else round(clients.timeout * 1e12)
        return OpenLoop(open_trace(workload.trace, workload.format, **options), workload.rate_scale, timeout_ps=timeout)
    from kvsim.workload import synthetic

    return synthetic.multi_turn(workload, seed) if workload.kind == "multi_turn" else synthetic.poisson(workload, seed)
