"""Field reports O19 and O30 (b), (c): closed loops beyond what KV holds, and TTFT that is mostly queueing."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from kvsim.config.load import load
from kvsim.config.resolve import resolve
from kvsim.measure.summary import summarise
from kvsim.sim.simulate import simulate
from kvsim.workload.spec import RequestSpec

sys.path.insert(0, str(Path(__file__).parents[1] / "study"))
from study_world import queue_scenario

CLIENTS, PROMPT, OUTPUT, POOL = 256, 1000, 70, 77_088


class ClosedLoop:
    """So many clients without think time, each with a fresh prompt as soon as its last answer is there."""

    def __init__(self, clients: int, requests: int) -> None:
        self.left, self.due, self.sent = requests, [0] * clients, 0

    def next_send(self) -> int | None:
        return self.due[0] if self.due and self.left else None

    def send(self, now: int) -> list[RequestSpec]:
        count = min(self.left, sum(at <= now for at in self.due))
        self.due, self.left = self.due[count:], self.left - count
        self.sent += count
        return [self._spec(number, now) for number in range(self.sent - count, self.sent)]

    def _spec(self, number: int, now: int) -> RequestSpec:
        first = (number + 1) * 10_000
        return RequestSpec(
            id=str(number),
            arrival_ps=now,
            prompt=((first, PROMPT),),
            prompt_tokens=PROMPT,
            output_tokens=OUTPUT,
            output_first=first + 5_000,
        )

    def ended(self, request_id: str, now: int, ok: bool) -> None:
        self.due.append(now)

    def unsent(self) -> Iterable[RequestSpec]:
        return ()


def closed_loop(clients: int, requests: int):
    sets = [f"engine.device_tokens={POOL}", "engine.page_size=1", "engine.max_running_requests=256"]
    return simulate(resolve(load("toy", sets)), client=ClosedLoop(clients, requests))


def middle(recording, share: float = 0.05):
    """The window between the first and the last ``share`` of completions: (low, high, rows that ended inside)."""
    ends = sorted(row.end_ps for row in recording.requests)
    low, high = ends[int(share * len(ends))], ends[-int(share * len(ends)) - 256]
    return low, high, [row for row in recording.requests if low < row.end_ps <= high]


def level(recording, column: int, low: int, high: int) -> float:
    """Time average of a column of the steps over a window."""
    rows = [(min(row[3], high) - max(row[2], low), row[column]) for row in recording.steps if row[3] > low and row[2] < high]
    return sum(span * value for span, value in rows) / sum(span for span, _ in rows)


def check_o19(requests: int) -> None:
    recording = closed_loop(CLIENTS, requests)
    low, high, ended = middle(recording)
    running, waiting = level(recording, 12, low, high), level(recording, 13, low, high)
    assert POOL / (PROMPT + OUTPUT) - 1 <= running <= POOL / PROMPT
    assert waiting == pytest.approx(CLIENTS - running, abs=1)
    rate = len(ended) / (high - low)
    stay = sum(row.end_ps - row.arrival_ps for row in ended) / len(ended)
    assert rate * stay == pytest.approx(CLIENTS, rel=0.02)
    few = closed_loop(72, requests)
    few_low, few_high, few_ended = middle(few)
    assert sum(row.retractions for row in few.requests) == 0
    assert len(few_ended) / (few_high - few_low) >= rate


def test_more_clients_than_kv_holds_wait_and_do_not_add_throughput():
    check_o19(3000)


@pytest.mark.long
def test_more_clients_than_kv_holds_over_twenty_thousand_requests():
    check_o19(20_000)


def md1(rate: float, requests: int) -> dict:
    sets = (f"workload.rate_per_s={rate}", f"workload.requests={requests}")
    return summarise(simulate(resolve(queue_scenario(*sets))))


@pytest.mark.long
def test_ttft_of_a_single_slot_is_that_of_an_md1_queue():
    half, most = md1(5, 200_000)["ttft_s"], md1(8, 200_000)["ttft_s"]
    assert half["mean_all"] == pytest.approx(0.150, rel=0.03)
    assert most["mean_all"] == pytest.approx(0.300, rel=0.03)
    assert most["p50"] == pytest.approx(0.228, rel=0.03)
    assert most["p90"] == pytest.approx(0.601, rel=0.05)
    assert most["p99"] == pytest.approx(1.136, rel=0.10)


def test_a_rate_above_capacity_is_flagged_and_its_last_arrivals_wait_two_hundred_seconds():
    recording = simulate(resolve(queue_scenario("workload.rate_per_s=12", "workload.requests=12000")))
    summary = summarise(recording)
    assert summary["overload"]["overloaded"]
    rows = sorted(recording.requests, key=lambda row: row.arrival_ps)
    waits = [(row.first_token_ps - row.arrival_ps) * 1e-12 for row in rows]
    last = sum(waits[-100:]) / 100
    assert last == pytest.approx(200, rel=0.10)  # 12,000 services of 0.1 s less 1,000 s of arrivals, whose count varies by 1 %
    assert last > sum(waits[-2000:-1900]) / 100
