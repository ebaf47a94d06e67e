"""Clients: who sends what when, with answers that end when the test says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvsim.config.load import load
from kvsim.content import common
from kvsim.workload.build import build_client
from kvsim.workload.clients import OpenLoop
from kvsim.workload.closed import BenchClient, Limited, recorded_sessions
from kvsim.workload.spec import RequestSpec

S = 10**12


def bench(**other: Any) -> BenchClient:
    given = {
        "clients": 6, "rounds": 3, "request_length": 100, "question_length": None, "output_length": 10, "max_parallel": 4, "request_rate": 10.0,
        "round_barrier": False, "ready_queue": "random", "length_factor": 1.0,
    }  # fmt: skip
    return BenchClient(SimpleNamespace(**{**given, **other}), 7)


def drive(client: Any, service_ps: int) -> tuple[list[RequestSpec], int]:
    """Run a client against a server that answers everything after ``service_ps``; return what was sent and the most in flight."""
    running: list[tuple[int, str]] = []
    sent: list[RequestSpec] = []
    most = 0
    while True:
        when = client.next_send()
        if running and (when is None or running[0][0] <= when):
            end, name = running.pop(0)
            client.ended(name, end, True)
        elif when is None:
            return sent, most
        else:
            for spec in client.send(when):
                sent.append(spec)
                running.append((when + service_ps, spec.id))
            most = max(most, len(running))


def test_the_benchmark_client_sends_every_round_of_every_client_and_keeps_its_limit() -> None:
    sent, most = drive(bench(), 2 * S)
    assert len(sent) == 18
    assert most == 4


def test_with_a_barrier_no_round_begins_before_the_round_before_it_has_ended() -> None:
    sent, _ = drive(bench(round_barrier=True), 2 * S)
    assert [spec.turn for spec in sent] == [0] * 6 + [1] * 6 + [2] * 6
    first_of = {turn: min(s.arrival_ps for s in sent if s.turn == turn) for turn in (1, 2)}
    last_of = {turn: max(s.arrival_ps for s in sent if s.turn == turn) for turn in (0, 1)}
    assert first_of[1] >= last_of[0] + 2 * S
    assert first_of[2] >= last_of[1] + 2 * S


def test_a_benchmark_prompt_is_the_history_and_a_new_question() -> None:
    sent, _ = drive(bench(), S // 10)
    for client in {spec.session for spec in sent}:
        turns = [spec for spec in sent if spec.session == client]
        assert [spec.prompt_tokens for spec in turns] == [100, 210, 320]
        assert common(turns[0].prompt, turns[1].prompt) == 100
        assert turns[1].prompt[0][0] == turns[0].prompt[0][0]


def test_the_sender_sleeps_about_one_over_the_rate_between_looks() -> None:
    sent, _ = drive(bench(clients=2000, rounds=1, max_parallel=10_000, request_rate=5.0), 1)
    assert (sent[-1].arrival_ps - sent[0].arrival_ps) / S / (len(sent) - 1) == pytest.approx(0.2, rel=0.07)


def test_a_ready_queue_may_be_random_or_in_order() -> None:
    ordered, _ = drive(bench(ready_queue="fifo", rounds=1), 1)
    mixed, _ = drive(bench(clients=30, rounds=1), 1)
    assert [spec.session for spec in ordered] == [f"c{i}" for i in range(6)]
    assert [spec.session for spec in mixed] != [f"c{i}" for i in range(30)]


def row(number: int, at: int, session: str | None = None, end: int | None = None, turn: int = 0) -> RequestSpec:
    return RequestSpec(
        f"r{number}", at, ((number << 30, 10),), 10, 2, (500 + number) << 30, session=session, turn=turn, recorded_end_ps=end
    )


def test_a_limit_holds_late_requests_back_until_one_ends() -> None:
    sent, most = drive(Limited(OpenLoop([row(i, 0) for i in range(5)]), 2), 3 * S)
    assert most == 2
    assert [spec.arrival_ps // S for spec in sent] == [0, 0, 3, 3, 6]


def test_think_time_is_from_the_recorded_end_to_the_next_start() -> None:
    client, kept = recorded_sessions([row(0, 0, "a", end=2 * S), row(1, 5 * S, "a", turn=1)], 1.0)
    sent, _ = drive(client, 10 * S)
    assert [spec.arrival_ps for spec in sent] == [0, 13 * S]
    assert "recorded end" in kept


def test_without_recorded_ends_the_gap_is_kept_and_the_double_count_is_said() -> None:
    _, kept = recorded_sessions([row(0, 0, "a"), row(1, 5 * S, "a", turn=1)], 1.0)
    assert "counted twice" in kept


def test_a_failed_turn_ends_its_session_and_the_rest_is_unsent() -> None:
    client, _ = recorded_sessions([row(i, i * S, "a", turn=i) for i in range(3)], 1.0)
    (first,) = client.send(0)
    client.ended(first.id, S, False)
    assert client.next_send() is None
    assert [spec.id for spec in client.unsent()] == ["r1", "r2"]


@pytest.mark.parametrize(
    "recipe",
    ["{kind: poisson, rate_per_s: 5, requests: 4}", "{kind: multi_turn, sessions: 2, turns: 2}", "{kind: bench_multiturn, clients: 3}"],
)
def test_recipes_obey_the_clients_timeout(recipe: str) -> None:
    scenario = load("toy", [f"workload={recipe}", "clients.timeout=7s"])
    client = build_client(scenario.workload, seed=1, clients=scenario.clients)
    when = client.next_send()
    assert when is not None
    assert {spec.timeout_ps for spec in client.send(when)} == {7 * S}
    assert "given up after 7 s" in client.describe()  # type: ignore[attr-defined]
