"""How busy the machine was: time-weighted counts, occupancy, link use, Little's law, and whether it was overloaded."""

from __future__ import annotations

from operator import mul, sub
from typing import TYPE_CHECKING, Any

from kvsim.measure.verdict import WINDOWS, Watched, levels, load_verdict
from kvsim.record.recording import STEP_COLUMNS

if TYPE_CHECKING:
    from kvsim.record.recording import Recording

    _Columns = dict[str, tuple[Any, ...]]


def load_statistics(recording: Recording) -> dict[str, Any]:
    """Return the keys ``load``, ``cache``, ``links``, ``little``, ``overload`` of a summary."""
    span = recording.manifest.get("end_ps", 0)
    columns = _columns(recording)
    return {
        "load": _load(recording, span, columns),
        "cache": _cache(recording),
        "links": _links(recording, span),
        "little": _little(recording, span),
        "overload": overload_verdict(recording, span, columns),
    }


def _columns(recording: Recording) -> _Columns:
    """Return the steps by column; empty without any."""
    return dict(zip(STEP_COLUMNS, zip(*recording.steps, strict=True), strict=True)) if recording.steps else {}


def _load(recording: Recording, span: int, columns: _Columns) -> dict[str, Any] | None:
    if span <= 0:
        return None
    waiting = sum(_until(row.admitted_ps, row.end_ps, span) - row.arrival_ps for row in recording.requests)
    running = sum(_until(row.end_ps, None, span) - row.admitted_ps for row in recording.requests if row.admitted_ps is not None)
    columns = columns or dict(zip(STEP_COLUMNS, zip((0, "idle", *(0,) * (len(STEP_COLUMNS) - 2))), strict=True))
    durations = list(map(sub, columns["end_ps"], columns["start_ps"]))
    busy, replicas = sum(durations), len(set(columns["replica"]))
    prefill = sum([duration for duration, kind in zip(durations, columns["kind"], strict=True) if kind != "decode"])

    def while_busy(name: str) -> float:
        """Return the mean of an occupancy over busy time (each row's value holds at its end)."""
        return sum(map(mul, columns[name], durations)) / busy if busy else 0.0

    return {
        "running_mean": running / span,
        "waiting_mean": waiting / span,
        "waiting_definition": "before the first admission; a retracted request counts as running",
        "running_max": max(columns["running"]),
        "waiting_max": max(columns["waiting"]),
        "gpu_busy": busy / (span * replicas),
        "prefill_share": prefill / (span * replicas),
        "steps": sum(columns["steps"]),
        "device_tokens_mean": while_busy("device_used"),
        "host_tokens_mean": while_busy("host_used"),
        "device_tokens_max": max(columns["device_used"]),
        "host_tokens_max": max(columns["host_used"]),
    }


def _until(first: int | None, second: int | None, otherwise: int) -> int:
    if first is not None:
        return first
    return otherwise if second is None else second


def _cache(recording: Recording) -> dict[str, int]:
    names = ("demoted_tokens", "dropped_tokens", "host_evicted_tokens", "backed_up_tokens", "loaded_tokens")
    totals = dict.fromkeys(names, 0)
    for row in recording.cache:
        for name, value in zip(names, row[2:], strict=True):
            totals[name] += value
    totals["evicted_tokens"] = totals["demoted_tokens"] + totals["dropped_tokens"]
    return totals


def _links(recording: Recording, span: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    replicas = len({row[0] for row in recording.steps}) or 1
    for direction in ("h2d", "d2h"):
        rows = [row for row in recording.transfers if row[1] == direction]
        busy = sum(min(row[4], span) - min(row[3], span) for row in rows)
        out[direction] = {
            "transfers": len(rows),
            "tokens": sum(row[5] for row in rows),
            "bytes_per_rank": sum(row[6] for row in rows),
            "utilisation": busy / (span * replicas) if span else 0.0,
        }
    return out


def _little(recording: Recording, span: int) -> dict[str, Any] | None:
    """Return Little's law on the middle of the run: L (time average), lambda (arrivals) and W (their mean stay), and L / (lambda W) - 1.

    L is an integral over the window of everybody present; lambda and W belong to those who arrived in it: they agree up to the
    window's edges, and disagree if a request is lost or counted twice.
    """
    low, high = span // 10, span - span // 10
    if high <= low:
        return None
    present = 0
    stays = []
    for row in recording.requests:
        end = span if row.end_ps is None else row.end_ps
        overlap = min(end, high) - max(row.arrival_ps, low)
        if overlap > 0:
            present += overlap
        if low <= row.arrival_ps < high:
            stays.append(end - row.arrival_ps)
    if not stays or not present:
        return None
    level = present / (high - low)
    product = len(stays) / (high - low) * (sum(stays) / len(stays))
    return {"in_system_mean": level, "arrivals_times_stay": product, "residual": level / product - 1 if product else None}


def overload_verdict(recording: Recording, span: int, columns: _Columns | None = None) -> dict[str, Any]:
    """Return whether the machine kept up with its load, with the reasons (see ``verdict.load_verdict``)."""
    rows = [row for row in recording.requests if row.status != "refused"]
    arrivals = sorted(row.arrival_ps for row in rows)
    first, last = (arrivals[0], arrivals[-1]) if rows else (0, 0)
    edges = [first + (last - first) * i // WINDOWS for i in range(WINDOWS + 1)] if last > first else []
    ends = sorted(row.end_ps for row in rows if row.end_ps is not None)
    busy, waited = _shares(_columns(recording) if columns is None else columns, edges)
    unserved = sum(1 for row in rows if row.first_token_ps is None and row.status == "unfinished")
    drain = (span - last) / (last - first) if edges else 0.0
    return load_verdict(Watched(busy, waited, levels(arrivals, ends, edges), len(rows), unserved, drain))


def _shares(columns: _Columns, edges: list[int]) -> tuple[list[float], list[float]]:
    """Return the shares of each window between edges in which GPUs worked, and worked while a request waited."""
    import numpy as np

    windows = len(edges) - 1
    if not columns or not edges:
        return [0.0] * windows, [0.0] * windows
    start, end = (np.array(columns[name], dtype=np.float64) for name in ("start_ps", "end_ps"))
    queued = np.array(columns["waiting"]) > 0
    window = (edges[-1] - edges[0]) / windows * len(set(columns["replica"]))
    at = np.array(edges, dtype=np.float64)

    def until(times: Any) -> Any:
        """Return the sum of min(time, edge) over all times, for each edge."""
        times = np.sort(times, kind="stable")
        below = np.searchsorted(times, at)
        return np.concatenate(([0.0], np.cumsum(times)))[below] + at * (len(times) - below)

    def share(starts: Any, ends: Any) -> list[float]:
        return [float(value) for value in np.clip(np.diff(until(ends) - until(starts)) / window, 0.0, 1.0)]

    return share(start, end), share(start[queued], end[queued])
