"""How long a recipe's requests are, without a simulation."""

from __future__ import annotations

from typing import Any

SAMPLE = 400


def sampled_lengths(workload: Any, *, seed: int, clients: Any, most: int = SAMPLE) -> list[int]:
    """Return the lengths (prompt and output tokens together) of the first ``most`` requests of a recipe, ascending; [] for a trace or no workload.

    Every answer is taken to come at once, so a conversation's turns are only its think times apart.
    """
    if workload is None or workload.kind == "trace":
        return []
    from kvsim.workload.build import build_client

    client = build_client(workload, seed=seed, clients=clients)
    lengths: list[int] = []
    while len(lengths) < most and (when := client.next_send()) is not None:
        for spec in client.send(when):
            lengths.append(spec.prompt_tokens + spec.output_tokens)
            client.ended(spec.id, when, True)
    return sorted(lengths)
