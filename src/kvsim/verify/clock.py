"""The clock of the recordings: transfers that complete a fixed number of ticks after their submission."""

from __future__ import annotations

from typing import Any


class Delays:
    """Copies that take ``write_delay`` and ``load_delay`` ticks (ops or iterations) each, side by side.

    Under write_back the recorded engine waits for its copies within the op, so there a write takes no time.
    """

    __slots__ = ("load_delay", "write_delay")

    def __init__(self, write_delay: int, load_delay: int) -> None:
        self.write_delay, self.load_delay = write_delay, load_delay

    @classmethod
    def of(cls, meta: dict[str, Any]) -> Delays:
        """Return the delays a recording's ``meta`` states."""
        waits = meta.get("write_policy") == "write_back"
        return cls(0 if waits else meta.get("write_delay") or 0, meta.get("load_delay") or 0)

    def write(self, tokens: int, now: int) -> int:
        """Submit a copy; the ticket is the tick at which it is complete."""
        return now + self.write_delay

    def load(self, tokens: int, now: int) -> int:
        """Submit a load; the ticket is the tick at which it is complete."""
        return now + self.load_delay

    def done(self, ticket: object, now: int) -> bool:
        """Tell whether ``ticket`` is complete at ``now``."""
        return now >= ticket  # type: ignore[operator]

    def finish_time(self, ticket: object, now: int) -> int:
        """Return the tick at which ``ticket`` completes."""
        return ticket  # type: ignore[return-value]
