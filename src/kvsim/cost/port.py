"""The one interface of every source of step time. All times are integer picoseconds."""

from __future__ import annotations

from typing import Protocol


class StepTime(Protocol):
    """Maps what a step computes to how long it takes.

    Exactness: ``decode_run_ps(b, s, n) == sum(decode_ps(b, s + i * b) for i in range(n))`` to the picosecond, and
    ``decode_steps_until(b, s, n, t)`` is the smallest k <= n with ``decode_run_ps(b, s, k) >= t`` (n if none).
    """

    layers: int

    def prefill_ps(
        self,
        new_tokens: int,
        pairs2: int,
        cached_tokens: int,
        prefills: int,
        decode_batch: int,
        sum_context: int,
        max_context: int,
    ) -> int:
        """Return the time of a step that computes prompt tokens (decode_batch > 0: a mixed step)."""

    def decode_ps(self, batch: int, sum_context: int) -> int:
        """Return the time of one decode step of ``batch`` sequences that read ``sum_context`` tokens."""

    def decode_run_ps(self, batch: int, sum_context: int, steps: int) -> int:
        """Return the time of ``steps`` decode steps; every step adds ``batch`` to the context read."""

    def decode_steps_until(self, batch: int, sum_context: int, steps: int, elapsed_ps: int) -> int:
        """Return the smallest k <= steps whose run takes at least ``elapsed_ps`` (``steps`` if none does)."""

    def decode_segments(self, batch: int, sum_context: int, steps: int) -> list[tuple[int, int, int]]:
        """Return the lengths of ``steps`` decode steps as (count, first_ps, slope_ps) pieces, in order and exact."""
