"""Every figure of a run, in the order in which a report shows them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kvsim.report import latency_figures, load_figures, memory_figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.config.resolved import Capacity
    from kvsim.record.recording import Recording
    from kvsim.report.style import Figure


def memory_pictures(capacity: Capacity) -> list[Figure]:
    """Return the memory arithmetic as pictures: the card, and host RAM if there is a host tier."""
    host = memory_figures.host(capacity)
    return [memory_figures.card(capacity), *([host] if host else [])]


def builders(recording: Recording, summary: dict[str, Any], capacity: Capacity) -> dict[str, Callable[[], Figure]]:
    """Return what draws each figure of a recording, by key, in reading order; figures whose facts are missing are left out."""
    replicas = 1 + max((row[0] for row in recording.steps), default=0)
    made: dict[str, Callable[[], Figure]] = {figure.key: partial(_same, figure) for figure in memory_pictures(capacity)}
    if any(row.first_token_ps is not None for row in recording.requests):
        made["latency"] = partial(latency_figures.latency_distributions, recording, summary)
        made["ttft-split"] = partial(latency_figures.ttft_split, recording)
        made["ttft-time"] = partial(latency_figures.ttft_over_time, recording)
    if recording.steps:
        made["occupancy"] = partial(load_figures.occupancy, recording, capacity, replicas)
        made["queue"] = partial(load_figures.queue, recording)
        made["hits-time"] = partial(load_figures.hits_over_time, recording)
        made["hits-turn"] = partial(load_figures.hits_by_turn, recording)
        if capacity.host_tokens or recording.transfers:
            made["links"] = partial(load_figures.links, recording, replicas)
        made["gpu"] = partial(load_figures.gpu, recording, replicas)
    return made


def _same(figure: Figure) -> Figure:
    return figure


def run_figures(recording: Recording, summary: dict[str, Any], capacity: Capacity) -> list[Figure]:
    """Return every figure of a recording, in reading order."""
    return [build() for build in builders(recording, summary, capacity).values()]
