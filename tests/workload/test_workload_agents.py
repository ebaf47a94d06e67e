"""Agents that fan out and join: small worlds worked by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.workload.closed import recorded_sessions
from kvsim.workload.read import open_trace
from kvsim.workload.spec import RequestSpec
from kvsim.workload.write import lines_for, write_lines

S = 10**12


def call(t: float, took: float | None, tokens: int = 1000, **other: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "in": tokens, "out": 1, **({} if took is None else {"api_time": took}), **other}


def sub(agent: str, *requests: dict[str, Any]) -> dict[str, Any]:
    return {"type": "subagent", "agent_id": agent, "requests": list(requests)}


def specs(folder: Path, *requests: dict[str, Any], **other: Any) -> list[RequestSpec]:
    file = folder / "w.jsonl"
    file.write_text(json.dumps({"id": "w", "block_size": 64, "requests": requests, **other}) + "\n")
    return list(open_trace(str(file)))


def drive(client: Any, service_ps: int, failing: str = "") -> dict[str, float]:
    """Answer everything after ``service_ps``; return when each request left, in seconds."""
    running: list[tuple[int, str]] = []
    left: dict[str, float] = {}
    while True:
        when = client.next_send()
        if running and (when is None or running[0][0] <= when):
            end, name = running.pop(0)
            client.ended(name, end, name != failing)
        elif when is None:
            return left
        else:
            for spec in client.send(when):
                left[spec.id] = spec.arrival_ps / S
                running.append((when + service_ps, spec.id))


#: The caller asks at 0 (ends 1). It calls a (1.5 to 3.5, 4 to 5) and b (2 to 3), and goes on at 6, a second after the last of them.
FAN = (call(0, 1), sub("a", call(1.5, 2), call(4, 1)), sub("b", call(2, 1)), call(6, 1))


def test_a_caller_waits_for_all_it_called_and_then_its_own_think_time(tmp_path: Path) -> None:
    client, kept = recorded_sessions(specs(tmp_path, *FAN), 1.0)
    # every answer takes 3 s: a leaves 0.5 s and b 1 s after 3; a's second turn 0.5 s after 6.5; the caller 1 s after 10 (b ended at 7)
    assert drive(client, 3 * S) == {"w#0": 0, "w/a#0": 3.5, "w/b#0": 4, "w/a#1": 7, "w#1": 11}
    assert "agents wait" in kept


def test_with_quick_answers_the_join_is_early(tmp_path: Path) -> None:
    client, _ = recorded_sessions(specs(tmp_path, *FAN), 1.0)
    # 0.1 s each: a 0.6 to 0.7, 1.2 to 1.3; b 1.1 to 1.2; the caller at 2.3
    assert drive(client, S // 10) == pytest.approx({"w#0": 0, "w/a#0": 0.6, "w/b#0": 1.1, "w/a#1": 1.2, "w#1": 2.3})


def test_a_subagent_in_the_background_is_not_waited_for_until_it_was_recorded_to_be_over(tmp_path: Path) -> None:
    rows = (call(0, 1), sub("slow", call(1, 9)), call(2, 1), call(12, 1))
    client, _ = recorded_sessions(specs(tmp_path, *rows), 1.0)
    # 2 s each: slow 2 to 4; the second turn 1 s after 2; the third waits for both (4, 5) and then 2 s (12 - 10)
    assert drive(client, 2 * S) == {"w#0": 0, "w/slow#0": 2, "w#1": 3, "w#2": 7}


def test_subagents_call_subagents(tmp_path: Path) -> None:
    inner = sub("y", call(2, 1))
    rows = (call(0, 1), sub("x", call(1, 1), inner, call(3, 1)), call(4, 1))
    client, _ = recorded_sessions(specs(tmp_path, *rows), 1.0)
    assert drive(client, 2 * S) == {"w#0": 0, "w/x#0": 2, "w/x/y#0": 4, "w/x#1": 6, "w#1": 8}


def test_a_failed_subagent_ends_and_its_caller_goes_on(tmp_path: Path) -> None:
    client, _ = recorded_sessions(specs(tmp_path, *FAN), 1.0)
    # a fails at 6.5 and its second turn is never sent; b ends at 7: the caller at 8
    assert drive(client, 3 * S, failing="w/a#0") == {"w#0": 0, "w/a#0": 3.5, "w/b#0": 4, "w#1": 8}
    assert [spec.id for spec in client.unsent()] == ["w/a#1"]


def test_a_failed_caller_calls_nobody(tmp_path: Path) -> None:
    client, _ = recorded_sessions(specs(tmp_path, *FAN), 1.0)
    assert drive(client, 3 * S, failing="w#0") == {"w#0": 0}
    assert sorted(spec.id for spec in client.unsent()) == ["w#1", "w/a#0", "w/a#1", "w/b#0"]


def test_without_recorded_ends_the_traces_think_time_counts_from_the_join(tmp_path: Path) -> None:
    rows = (call(0, None), sub("a", call(1, None, think_time=0.25)), call(6, None, think_time=0.5))
    client, _ = recorded_sessions(specs(tmp_path, *rows), 1.0)
    assert drive(client, 3 * S) == {"w#0": 0, "w/a#0": 3.25, "w#1": 6.75}


def test_one_agent_called_twice_goes_on_with_its_own_conversation(tmp_path: Path) -> None:
    rows = (call(0, 1), sub("a", call(1, 1)), call(3, 1), sub("a", call(4, 1, 2000)), call(6, 1))
    found = specs(tmp_path, *rows)
    assert [(r.id, r.turn, r.after) for r in found if r.session == "w/a"] == [("w/a#0", 0, ("w#0",)), ("w/a#1", 1, ("w#1",))]
    client, _ = recorded_sessions(found, 1.0)
    assert drive(client, 2 * S) == {"w#0": 0, "w/a#0": 2, "w#1": 5, "w/a#1": 7, "w#2": 10}


def test_times_smaller_than_the_subagents_start_count_from_it(tmp_path: Path) -> None:
    relative = {**sub("a", call(0, 1), call(2, 1)), "t": 5.0}
    assert [r.arrival_ps // S for r in specs(tmp_path, call(0, 1), relative)] == [0, 5, 7]


def test_conversations_begin_at_the_rate_asked_for_or_all_at_once(tmp_path: Path) -> None:
    file = tmp_path / "w.jsonl"
    file.write_text("".join(json.dumps({"id": f"c{n}", "block_size": 64, "requests": [call(0, 1), call(3, 1)]}) + "\n" for n in range(3)))
    assert [r.arrival_ps // S for r in open_trace(str(file))] == [0, 0, 0, 3, 3, 3]
    paced = open_trace(str(file), arrivals={"rate_per_s": 0.5})
    assert [(r.session, r.arrival_ps // S) for r in paced] == [("c0", 0), ("c1", 2), ("c0", 3), ("c2", 4), ("c1", 5), ("c2", 7)]
    assert paced.report.out_of_order == 0


def test_the_simulator_gives_the_times_worked_by_hand(tmp_path: Path) -> None:
    from kvsim.config.load import load
    from kvsim.config.resolve import resolve
    from kvsim.sim.simulate import simulate

    file = tmp_path / "w.jsonl"
    file.write_text(json.dumps({"id": "w", "block_size": 64, "requests": FAN}) + "\n")
    sets = [f"workload={{kind: trace, trace: '{file}'}}", "clients.loop=closed", "engine.device_tokens=50000"]
    found = simulate(resolve(load("toy", sets)))
    # 1,000 fresh tokens at 10,000 a second: 0.1 s each, no two at once
    left = {row.id: row.arrival_ps / S for row in found.requests}
    assert left == pytest.approx({"w#0": 0, "w/a#0": 0.6, "w/b#0": 1.1, "w/a#1": 1.2, "w#1": 2.3})
    assert "agents wait" in found.manifest["client"]


def test_dynamos_parent_sessions_call_and_join_by_the_same_rule(tmp_path: Path) -> None:
    def event(name: str, session: str, start_ms: int, took_ms: int, parent: str | None = None) -> dict[str, Any]:
        context = {"session_id": session} if parent is None else {"session_id": session, "parent_session_id": parent}
        request = {"request_id": name, "input_tokens": 64, "output_tokens": 1, "request_received_ms": 1787481184000 + start_ms, "total_time_ms": took_ms}
        return {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "agent_context": context, "request": request}

    # the world of FAN, written as requests end
    rows = [event("w0", "w", 0, 1000), event("b0", "b", 2000, 1000, "w"), event("a0", "a", 1500, 2000, "w"), event("a1", "a", 4000, 1000, "w"), event("w1", "w", 6000, 1000)]
    file = tmp_path / "d.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = list(open_trace(str(file)))
    assert {r.id: r.after for r in found} == {"w0": (), "a0": ("w0",), "b0": ("w0",), "a1": (), "w1": ("a1", "b0")}
    client, _ = recorded_sessions(found, 1.0)
    assert drive(client, 3 * S) == {"w0": 0, "a0": 3.5, "b0": 4, "a1": 7, "w1": 11}
    again = tmp_path / "e.jsonl"
    write_lines(lines_for(list(open_trace(str(file))), "dynamo", 64), str(again))
    assert [(r.id, r.after) for r in open_trace(str(again))] == [(r.id, r.after) for r in open_trace(str(file))]
