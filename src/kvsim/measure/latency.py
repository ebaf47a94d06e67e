"""Latency of requests from a recording: TTFT and its split, TPOT, ITL, E2E; goodput under an SLO. Seconds out, integers in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from kvsim.record.recording import Recording, RequestRow

    Floats = npt.NDArray[np.float64]

PS = 1e-12
PERCENTILES = (50, 90, 95, 99)


class Latencies:
    """Per-request latencies in seconds, in order of arrival, of requests that got that far.

    ``ttft = queue + load + prefill`` holds exactly in picoseconds for each request (recording.RequestRow).
    ``tpot`` is the mean time per output token of a request, the first one excluded; absent for one-token answers.
    """

    def __init__(self, recording: Recording) -> None:
        started = sorted((row for row in recording.requests if row.first_token_ps is not None), key=lambda row: (row.arrival_ps, row.id))
        self.started = started
        self.finished = [row for row in started if row.status == "finished"]
        self.ttft = [ttft_ps(row) * PS for row in started]
        self.queue = [(_known(row.admitted_ps) - row.arrival_ps) * PS for row in started]
        self.load = [row.load_wait_ps * PS for row in started]
        self.prefill = [(_known(row.first_token_ps) - _known(row.admitted_ps) - row.load_wait_ps) * PS for row in started]
        self.tpot = [tpot * PS for row in self.finished if (tpot := tpot_ps(row)) is not None]
        self.e2e = [(_known(row.end_ps) - row.arrival_ps) * PS for row in self.finished]


def ttft_ps(row: RequestRow) -> int:
    """Return the time from arrival to the first token."""
    return _known(row.first_token_ps) - row.arrival_ps


def tpot_ps(row: RequestRow) -> float | None:
    """Return the mean time per output token after the first, or None for a one-token answer."""
    if row.output_tokens < 2 or row.end_ps is None or row.first_token_ps is None:
        return None
    return (row.end_ps - row.first_token_ps) / (row.output_tokens - 1)


def _known(value: int | None) -> int:
    assert value is not None
    return value


def inter_token(recording: Recording, quantiles: tuple[int, ...] = PERCENTILES) -> dict[str, Any] | None:
    """Return ITL statistics over every gap between two output tokens, or None if there is none.

    Percentiles are nearest-rank over the weighted gaps (there can be millions): the smallest gap such that at least p % of all
    gaps are not larger. Exact: found by bisection on integers over the compressed rows.
    """
    if not recording.gaps:
        return None
    import numpy as np

    try:
        table = np.array(recording.gaps, dtype=np.int64)
    except OverflowError:  # a run of more than a hundred days: no gap is longer than its end is late
        table = np.array(recording.gaps, dtype=object)
    gap, count, repeat, slope = table.T[2:]
    total = int((count * repeat).sum())
    exact = sum(g * c * r + c * s * (r * (r - 1) // 2) for _, _, g, c, r, s in recording.gaps)  # Python integers: no overflow
    last = gap + slope * (repeat - 1)
    high = int(np.maximum(gap, last).max())
    out: dict[str, Any] = {"mean": exact / total * PS, "count": total}
    runs = np.stack([np.minimum(gap, last), count, repeat, np.abs(slope), np.maximum(gap, last)])  # a falling run is one that rises, backwards
    for p in quantiles:
        out[f"p{p}"] = _nearest_rank(runs, -(-total * p // 100)) * PS
    out["max"] = high * PS
    return out


def _nearest_rank(runs: npt.NDArray[np.int64], rank: int) -> int:
    """Return the smallest x such that at least ``rank`` gaps are <= x: bisection, dropping the runs that are wholly on one side.

    ``runs``: rows smallest gap, count, repeat, slope (not negative), largest gap (5 x n).
    """
    import numpy as np

    low, high = int(runs[0].min()), int(runs[4].max())
    while low < high:
        middle = (low + high) // 2
        gap, count, repeat, slope, last = runs
        fits = np.where(last <= middle, repeat, np.clip((middle - gap) // np.maximum(slope, 1) + 1, 0, repeat) * (gap <= middle))
        below = int((fits * count).sum())
        if below >= rank:
            high = middle
            runs = runs[:, gap <= middle]
        else:
            low = middle + 1
            gone = last <= middle
            rank -= int((repeat * count)[gone].sum())
            runs = runs[:, ~gone]
    return low


def meets(row: RequestRow, slo: Any) -> bool:
    """Tell whether a request meets every bound of the SLO; refused, aborted and unfinished ones miss it."""
    if row.status != "finished":
        return False
    if slo.ttft_ps is not None and ttft_ps(row) > slo.ttft_ps:
        return False
    tpot = tpot_ps(row)
    if slo.tpot_ps is not None and tpot is not None and tpot > slo.tpot_ps:
        return False
    return slo.e2e_ps is None or _known(row.end_ps) - row.arrival_ps <= slo.e2e_ps
