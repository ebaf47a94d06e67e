"""A recording without its warm-up: what happened from a moment on, with times counted from it."""

from __future__ import annotations

from kvsim.record.recording import Recording


def measured_part(recording: Recording, start_ps: int, *, what: str) -> Recording:
    """Return the part of a recording from ``start_ps`` on: requests that arrived then or later, and the rows that ended later.

    Times are counted from ``start_ps``; a row that began before keeps the part behind it (a decode run is cut as a whole row, so counts of
    steps are kept and its start is moved). Requests of the warm-up that were still running go on using the machine and are not counted.
    """
    out = Recording(recording.resolved, manifest=dict(recording.manifest), events=recording.events)
    for row in recording.requests:
        if row.arrival_ps >= start_ps:
            for name in ("arrival_ps", "admitted_ps", "first_token_ps", "end_ps"):
                value = getattr(row, name)
                if value is not None:
                    setattr(row, name, value - start_ps)
            out.requests.append(row)
    out.steps = [(*row[:2], max(row[2] - start_ps, 0), row[3] - start_ps, *row[4:]) for row in recording.steps if row[3] > start_ps]
    out.transfers = [
        (*row[:2], max(row[2] - start_ps, 0), max(row[3] - start_ps, 0), row[4] - start_ps, *row[5:])
        for row in recording.transfers
        if row[4] > start_ps
    ]
    out.cache = [(row[0], row[1] - start_ps, *row[2:]) for row in recording.cache if row[1] > start_ps]
    out.gaps = [(row[0], row[1] - start_ps, *row[2:]) for row in recording.gaps if row[1] > start_ps]
    out.manifest["end_ps"] = max(0, recording.manifest.get("end_ps", 0) - start_ps)
    out.manifest["warm_start"] = what
    return out
