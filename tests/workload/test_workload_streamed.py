"""A closed loop that reads its trace as it goes sends what one in memory sends, and holds little."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.workload.closed import recorded_sessions
from kvsim.workload.spec import RequestSpec
from kvsim.workload.streamed import StreamedSessions

S = 10**12


def trace(seed: int, count: int, sessions: int) -> Iterator[RequestSpec]:
    """Turns of some sessions in a random order; some requests belong to none, some have no recorded end."""
    rng = Random(seed)
    at = 0
    turns: dict[int, int] = {}
    for number in range(count):
        at += rng.randrange(3 * S)
        who = rng.randrange(sessions + 2)
        name = f"s{who}" if who < sessions else None
        turn = turns.get(who, 0)
        turns[who] = turn + 1
        size = 10 * (turn + 1) if name else 7
        first = (who + 1) << 40 if name else (number + 1) << 50
        end = at + rng.randrange(1, 2 * S) if rng.random() < 0.8 else None
        yield RequestSpec(f"r{number}", at, ((first, size),), size, 5, (number + 9) << 60, session=name, turn=turn, recorded_end_ps=end)


def drive(client: Any, seed: int, slow: float) -> tuple[list[tuple[Any, ...]], list[str], int]:
    """Answer in random times, some never; return what was sent, what was not, and the most held."""
    rng = Random(seed)
    running: list[tuple[int, int, str]] = []
    sent: list[tuple[Any, ...]] = []
    most = 0
    while True:
        when = client.next_send()
        if running and (when is None or running[0][0] <= when):
            end, _, name = running.pop(0)
            client.ended(name, end, rng.random() > 0.05)
        elif when is None:
            return sent, sorted(spec.id for spec in client.unsent()), most
        else:
            for spec in client.send(when):
                sent.append((spec.id, spec.arrival_ps, spec.prompt))
                running.append((when + int(rng.random() * slow * S) + 1, len(sent), spec.id))
            running.sort()
        most = max(most, getattr(client, "held", 0))


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 12), st.sampled_from([0.01, 1.0, 30.0]), st.sampled_from([1.0, 2.5]))
def test_a_streamed_closed_loop_sends_the_same_at_the_same_times(seed: int, count: int, sessions: int, slow: float, scale: float) -> None:
    whole, kept = recorded_sessions(trace(seed, count, sessions), scale)
    streamed, said = recorded_sessions(trace(seed, count, sessions), scale, again=lambda: trace(seed, count, sessions), most=0)
    assert isinstance(streamed, StreamedSessions)
    assert said == kept
    assert drive(streamed, seed, slow)[:2] == drive(whole, seed, slow)[:2]


def test_what_was_never_sent_is_all_there_when_it_stops_half_way() -> None:
    client, _ = recorded_sessions(trace(1, 50, 6), 1.0, again=lambda: trace(1, 50, 6), most=0)
    sent = [spec.id for _ in range(5) for spec in client.send(client.next_send() or 0)]
    assert sorted([*sent, *(spec.id for spec in client.unsent())]) == sorted(f"r{n}" for n in range(50))


def conversations(count: int) -> Iterator[RequestSpec]:
    """A conversation of three turns begins every second."""
    for at in range(count + 20):
        for turn in range(3):
            who = at - 10 * turn
            if 0 <= who < count:
                size = 10 * (turn + 1)
                yield RequestSpec(f"r{who}.{turn}", at * S, ((who << 40, size),), size, 1, who << 50, session=f"s{who}", turn=turn, recorded_end_ps=at * S + S // 2)


def test_turns_held_do_not_grow_with_the_trace() -> None:
    def most(count: int) -> int:
        client, _ = recorded_sessions(conversations(count), 1.0, again=lambda: conversations(count), most=10)
        sent, _, held = drive(client, 3, 1.0)
        assert len(sent) > 2.5 * count
        return held

    assert most(4_000) <= most(400) + 2 < 40


def test_agents_that_come_late_in_a_trace_are_still_waited_for() -> None:
    def rows() -> Iterator[RequestSpec]:
        yield from conversations(10)
        yield RequestSpec("last", 99 * S, ((1 << 60, 5),), 5, 1, 1 << 61, after=("r0.0",))

    client, kept = recorded_sessions(rows(), 1.0, again=rows, most=5)
    assert "agents wait" in kept
    assert len(drive(client, 11, 0.1)[0]) > 25
