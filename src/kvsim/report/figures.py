"""Every figure of a run, in the order in which a report shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.report import latency_figures, load_figures, memory_figures

if TYPE_CHECKING:
    from kvsim.config.resolved import Capacity
    from kvsim.record.recording import Recording
    from kvsim.report.style import Figure


def memory_pictures(capacity: Capacity) -> list[Figure]:
    """Return the memory arithmetic as pictures: the card, and host RAM if there is a host tier."""
    host = memory_figures.host(capacity)
    return [memory_figures.card(capacity), *([host] if host else [])]


def run_figures(recording: Recording, summary: dict[str, Any], capacity: Capacity) -> list[Figure]:
    """Return every figure of a recording, in reading order; those whose facts are missing are left out."""
    replicas = 1 + max((row[0] for row in recording.steps), default=0)
    figures = memory_pictures(capacity)
    if any(row.first_token_ps is not None for row in recording.requests):
        figures += [
            latency_figures.latency_distributions(recording, summary),
            latency_figures.ttft_split(recording),
            latency_figures.ttft_over_time(recording),
        ]
    if recording.steps:
        figures += [load_figures.occupancy(recording, capacity, replicas), load_figures.queue(recording)]
        figures += [load_figures.hits_over_time(recording), load_figures.hits_by_turn(recording)]
        if capacity.host_tokens or recording.transfers:
            figures.append(load_figures.links(recording, replicas))
        figures.append(load_figures.gpu(recording, replicas))
    return figures
