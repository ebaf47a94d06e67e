"""Warm starts: requests that fill the caches before anything is measured.

``first 10min``: the workload's own first ten minutes. A trace: its requests are sent before the workload's, at their recorded times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kvsim.errors import ConfigError
from kvsim.workload.clients import OpenLoop
from kvsim.workload.spec import Client, RequestSpec

UNITS_S = {"s": 1, "min": 60, "h": 3600}
TAG = "warm:"


def first_of(text: str) -> int | None:
    """Return the picoseconds of ``first 10min``, or None if the text names a trace. Raises ConfigError."""
    if not text.startswith("first "):
        return None
    found = re.fullmatch(r"first\s+(\d+(?:\.\d+)?)\s*(s|min|h)", text.strip())
    if found is None:
        raise ConfigError(f"run.warm_start: '{text}' must be a trace, or first with a time, for example first 10min")
    return round(float(found[1]) * UNITS_S[found[2]] * 1e12)


class AfterWarmUp:
    """A client that sends a trace first and then lets another client begin, ``offset_ps`` later than it would alone."""

    def __init__(self, trace: Iterable[RequestSpec], client: Client) -> None:
        self._warm = sorted(trace, key=lambda spec: spec.arrival_ps)
        for spec in self._warm:
            spec.id = TAG + spec.id
        self.offset_ps = self._warm[-1].arrival_ps + 1 if self._warm else 0
        self._first = OpenLoop(self._warm)
        self._client = client

    def next_send(self) -> int | None:
        """Return when the next request leaves."""
        later = self._client.next_send()
        times = [time for time in (self._first.next_send(), None if later is None else later + self.offset_ps) if time is not None]
        return min(times) if times else None

    def send(self, now: int) -> list[RequestSpec]:
        """Return what is due; the second client's times are moved."""
        out = self._first.send(now)
        if now >= self.offset_ps:
            for spec in self._client.send(now - self.offset_ps):
                spec.arrival_ps += self.offset_ps
                out.append(spec)
        return out

    def ended(self, request_id: str, now: int, ok: bool) -> None:
        """Tell the second client of its own requests."""
        if not request_id.startswith(TAG):
            self._client.ended(request_id, now - self.offset_ps, ok)

    def unsent(self) -> Iterator[RequestSpec]:
        """Yield what was never sent."""
        yield from self._first.unsent()
        yield from self._client.unsent()

    def describe(self) -> str:
        """Return which times are kept."""
        describe = getattr(self._client, "describe", None)
        return f"after a warm-up of {len(self._warm)} requests; {describe() if describe else 'its own times'}"


def warmed(client: Client, text: str | None) -> tuple[Client, int, str]:
    """Return (client, when measuring starts in ps, words) of a ``run.warm_start``. Raises ConfigError, TraceError."""
    if text is None:
        return client, 0, ""
    first = first_of(text)
    if first is not None:
        return client, first, f"the {text} fill the caches and are not counted"
    from kvsim.workload.read import open_trace

    after = AfterWarmUp(open_trace(text), client)
    return after, after.offset_ps, f"{text} fills the caches first and is not counted"
