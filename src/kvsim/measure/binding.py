"""Which resource binds: what requests wait for, in shares of the machine's busy time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsim.record.recording import Recording

FULL = 0.8  # a pool whose held (not evictable) part is above this leaves no room for the next prompt
WORDS = {
    "kv": "KV memory: requests wait although slots are free, while others hold the device pool",
    "slots": "slots: requests wait while the running batch is at max_running_requests",
    "prefill": "prefill: most of the GPU's time goes into computing prompts",
    "decode": "decode: most of the GPU's time goes into generating tokens",
    "link": "the link to host RAM: a large part of TTFT is exposed waiting for load-backs",
    "nothing": "nothing: the machine is idle for a large part of the time and requests hardly wait",
}


def binding(recording: Recording, device_tokens: int, max_running: int) -> dict[str, Any]:
    """Return the shares of busy time (``kv``, ``slots``, ``prefill``), of TTFT (``link``, ``queue``), GPU ``busy``, and the ``resource``.

    ``kv``: somebody waits and more than 80 % of the pool is held by running requests; ``slots``: somebody waits and the batch is full.
    """
    busy = waiting = kv = slots = prefill = 0
    for row in recording.steps:
        span = row[3] - row[2]
        busy += span
        if row[1] != "decode":
            prefill += span
        if row[13]:
            waiting += span
            kv += span if row[14] - row[15] > FULL * device_tokens else 0
            slots += span if row[12] >= max_running else 0
    started = [row for row in recording.requests if row.first_token_ps is not None]
    ttft = sum((row.first_token_ps or 0) - row.arrival_ps for row in started)
    queue = sum((row.admitted_ps or 0) - row.arrival_ps for row in started)
    load = sum(row.load_wait_ps for row in started)
    span = recording.manifest.get("end_ps", 0) * (len({row[0] for row in recording.steps}) or 1)
    shares = {
        "kv": kv / busy if busy else 0.0,
        "slots": slots / busy if busy else 0.0,
        "prefill": prefill / busy if busy else 0.0,
        "link": load / ttft if ttft else 0.0,
        "queue": queue / ttft if ttft else 0.0,
        "busy": busy / span if span else 0.0,
    }
    shares["waiting"] = waiting / busy if busy else 0.0
    return {**shares, "resource": _resource(shares)}


def _resource(shares: dict[str, float]) -> str:
    if shares["link"] > 0.3:
        return "link"
    if shares["waiting"] > 0.2 and shares["slots"] > 0.3 * shares["waiting"]:
        return "slots"
    if shares["waiting"] > 0.2 and shares["kv"] > 0.3 * shares["waiting"]:
        return "kv"
    if shares["busy"] < 0.7 and shares["queue"] < 0.3:
        return "nothing"
    return "prefill" if shares["prefill"] >= 0.5 else "decode"
