"""Field reports run in the toy world with their own input files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvsim.config.load import load
from kvsim.config.resolve import resolve
from kvsim.measure.summary import summarise
from kvsim.record.recording import Recording, RequestRow
from kvsim.sim.simulate import simulate


def case(shared: Path, file: str, *overrides: str, block: int = 100, page: int | None = None) -> Recording:
    """Run a case file in the toy world; blocks of ``block`` tokens, pages of the same size unless given."""
    sets = [
        f"workload={{kind: trace, trace: '{shared / 'cases' / file}', format: mooncake, block_size: {block}}}",
        f"engine.page_size={page or block}",
    ]
    return simulate(resolve(load("toy", [*sets, *overrides])))


def rows(recording: Recording) -> list[RequestRow]:
    """Return the requests in order of arrival (and of the file)."""
    return sorted(recording.requests, key=lambda row: (row.arrival_ps, int(row.id)))


def ttft(row: RequestRow) -> float:
    """Return a request's TTFT in seconds."""
    assert row.first_token_ps is not None
    return (row.first_token_ps - row.arrival_ps) * 1e-12


def summary(recording: Recording) -> dict[str, Any]:
    """Return a recording's summary."""
    return summarise(recording)


HOST = "engine.hicache.host_tokens={}"
POLICY = "engine.hicache.write_policy={}"
