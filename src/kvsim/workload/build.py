"""Builds the client that a scenario's ``workload`` and ``clients`` blocks describe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from kvsim.errors import ConfigError
from kvsim.workload.clients import Impatient, OpenLoop
from kvsim.workload.spec import Client, RequestSpec

if TYPE_CHECKING:
    from kvsim.workload.read import TraceReader


def build_client(workload: Any, *, seed: int, clients: Any) -> Client:
    """Return the client. Raises ConfigError when the scenario has no workload, TraceError for a bad file."""
    if workload is None:
        raise ConfigError("workload: is missing; give a trace or a recipe, for example workload: {kind: poisson, rate_per_s: 1}")
    client = _of_trace(workload, clients) if workload.kind == "trace" else _of_recipe(workload, seed)
    if workload.kind != "trace" and clients.timeout is not None:
        client = Impatient(client, round(clients.timeout * 1e12))
    if clients.concurrency is not None:
        from kvsim.workload.closed import Limited

        client = Limited(client, clients.concurrency)
    return client


def reader_of(workload: Any) -> TraceReader:
    """Return the reader of a trace workload."""
    from kvsim.workload.read import open_trace

    options = {
        key: value for key, value in workload.model_dump(exclude_none=True).items() if key not in ("kind", "trace", "format", "rate_scale")
    }
    return open_trace(workload.trace, workload.format, **options)


def _of_trace(workload: Any, clients: Any) -> Client:
    timeout = None if clients.timeout is None else round(clients.timeout * 1e12)
    reader = reader_of(workload)
    if clients.loop != "closed":
        return OpenLoop(reader, workload.rate_scale, timeout_ps=timeout)
    from kvsim.workload.closed import recorded_sessions

    think = None if clients.think_time is None else round(clients.think_time * 1e12)
    sessions, kept = recorded_sessions(
        _with_timeout(reader, timeout), workload.rate_scale, outputs_cached=workload.outputs_cached, think_ps=think,
        again=None if reader.path == "-" else lambda: _with_timeout(reader_of(workload), timeout),
    )  # fmt: skip
    sessions.kept = kept
    return sessions


def _with_timeout(specs: Iterable[RequestSpec], timeout: int | None) -> Iterator[RequestSpec]:
    for spec in specs:
        if timeout is not None:
            spec.timeout_ps = timeout
        yield spec


def _of_recipe(workload: Any, seed: int) -> Client:
    if workload.kind == "bench_multiturn":
        from kvsim.workload.closed import BenchClient

        return BenchClient(workload, seed)
    from kvsim.workload import synthetic

    return synthetic.multi_turn(workload, seed) if workload.kind == "multi_turn" else synthetic.poisson(workload, seed)
