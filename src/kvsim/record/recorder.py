"""What the machine calls to leave facts behind; appends tuples, decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.record.recording import Recording, RequestRow

if TYPE_CHECKING:
    from kvsim.serving.port import Occupancy, Request

UNFINISHED = "unfinished"


class Recorder:
    """Appends the rows of one run; one instance per simulation, shared by its replicas."""

    def __init__(self, resolved: dict[str, Any]) -> None:
        self.recording = Recording(resolved)
        self._steps = self.recording.steps.append
        self._gaps = self.recording.gaps.append
        self._cache_seen: dict[int, tuple[int, int, int, int, int]] = {}

    def request(self, request: Request, status: str | None = None, reason: str = "") -> None:
        """Write the row of a request that ended (or is still unfinished at the horizon)."""
        spec = request.spec
        self.recording.requests.append(
            RequestRow(
                spec.id,
                spec.session,
                spec.turn,
                spec.tenant,
                request.replica,
                status or request.status,
                reason or request.reason,
                request.arrival_ps,
                request.admitted_ps,
                request.first_token_ps,
                request.end_ps,
                spec.prompt_tokens,
                request.output_done,
                request.device_hit,
                request.host_hit,
                request.recompute_hit,
                request.retractions,
                request.retracted_tokens,
                request.load_wait_ps,
                request.load_ps,
            )
        )

    def step(self, row: tuple[Any, ...]) -> None:
        """Write one row of the steps table (columns: STEP_COLUMNS)."""
        self._steps(row)

    def gap(self, replica: int, end_ps: int, gap_ps: int, count: int, repeat: int = 1, slope_ps: int = 0) -> None:
        """Write gaps between output tokens (columns: GAP_COLUMNS)."""
        self._gaps((replica, end_ps, gap_ps, count, repeat, slope_ps))

    def cache(self, replica: int, now: int, occupancy: Occupancy) -> None:
        """Write what the cache counters gained since the last call, if anything."""
        seen = (occupancy.demoted, occupancy.dropped, occupancy.host_evicted, occupancy.backed_up, occupancy.loaded)
        before = self._cache_seen.get(replica, (0, 0, 0, 0, 0))
        if seen != before:
            self._cache_seen[replica] = seen
            self.recording.cache.append(
                (replica, now, seen[0] - before[0], seen[1] - before[1], seen[2] - before[2], seen[3] - before[3], seen[4] - before[4])
            )

    def transfers(self, replica: int, rows: list[tuple[Any, ...]]) -> None:
        """Write completed copies: (direction, submit_ps, start_ps, end_ps, tokens, bytes)."""
        self.recording.transfers.extend((replica, *row) for row in rows)
