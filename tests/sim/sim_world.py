"""A list of requests as a client, and a toy machine changed by --set: for tests of the machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvsim.config.load import load
from kvsim.config.resolve import resolve
from kvsim.measure.summary import summarise
from kvsim.record.recording import Recording
from kvsim.sim.simulate import simulate
from kvsim.workload.spec import RequestSpec


class ListClient:
    """Sends each request at its own time."""

    def __init__(self, specs: Iterable[RequestSpec]) -> None:
        self.specs = sorted(specs, key=lambda spec: spec.arrival_ps)
        self.at = 0
        self.ended_log: list[tuple[str, int, bool]] = []

    def next_send(self) -> int | None:
        return self.specs[self.at].arrival_ps if self.at < len(self.specs) else None

    def send(self, now: int) -> list[RequestSpec]:
        start = self.at
        while self.at < len(self.specs) and self.specs[self.at].arrival_ps <= now:
            self.at += 1
        return self.specs[start : self.at]

    def ended(self, request_id: str, now: int, ok: bool) -> None:
        self.ended_log.append((request_id, now, ok))

    def unsent(self) -> Iterable[RequestSpec]:
        return self.specs[self.at :]


def request(number: int, at_s: float, prompt: int, output: int, *, first: int | None = None, runs: Any = None) -> RequestSpec:
    """Return a request; without ``runs`` its content is its own."""
    start = (number + 1) * 10_000_000 if first is None else first
    content = runs if runs is not None else ((start, prompt),)
    return RequestSpec(
        id=str(number),
        arrival_ps=round(at_s * 1e12),
        prompt=content,
        prompt_tokens=prompt,
        output_tokens=output,
        output_first=(number + 1) * 10_000_000 + 5_000_000,
    )


def toy(*overrides: str, client: Any = None) -> Recording:
    """Run the toy world with overrides."""
    return simulate(resolve(load("toy", list(overrides))), client=client)


def run_specs(specs: Sequence[RequestSpec], *overrides: str) -> Recording:
    """Run given requests in the toy world."""
    return toy(*overrides, client=ListClient(specs))


def summary_of(recording: Recording) -> dict[str, Any]:
    """Return a recording's summary."""
    return summarise(recording)
