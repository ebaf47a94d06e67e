from __future__ import annotations

from itertools import pairwise

from kvsim.content import common
from kvsim.study.resample import BLOCK_PS, SHIFT, resample, sessions_of
from kvsim.workload.spec import RequestSpec

MINUTE = 60 * 10**12


def spec(number: int, at_ps: int, runs: list[tuple[int, int]], session: str | None = None) -> RequestSpec:
    return RequestSpec(str(number), at_ps, tuple(runs), sum(n for _, n in runs), 5, (1 << 60) + 100 * number, session=session)


def trace(blocks: int = 6) -> list[RequestSpec]:
    """One conversation of three turns per minute, all behind one shared beginning of 1,024 tokens."""
    out = []
    for minute in range(5 * blocks):
        own = (minute + 1) * 1_000_000
        out += [spec(10 * minute + turn, minute * MINUTE + turn * 10**12, [(0, 1024), (own, 1024 * (turn + 1))]) for turn in range(3)]
    return out


def test_turns_that_continue_each_other_are_one_session():
    sessions = sessions_of(trace())
    assert [len(session.requests) for session in sessions] == [3] * 30


def test_what_several_sessions_begin_with_is_known_as_shared():
    assert {session.shared for session in sessions_of(trace())} == {1024}


def test_named_sessions_are_taken_as_given():
    rows = [spec(0, 0, [(0, 600)], "a"), spec(1, 1, [(5000, 600)], "a"), spec(2, 2, [(0, 600)], "b")]
    assert [len(session.requests) for session in sessions_of(rows)] == [2, 1]


def test_a_resampling_is_seeded_and_another_seed_gives_another():
    one, same, other = (resample(trace(), seed) for seed in (1, 1, 2))
    assert one == same
    assert [row.id for row in one] != [row.id for row in other]


def test_blocks_keep_their_length_and_sessions_stay_whole():
    rows = resample(trace(), 3)
    by_session: dict[str, list[RequestSpec]] = {}
    for row in rows:
        slot, _, name = row.id.partition(":")
        by_session.setdefault(f"{slot}:{int(name) // 10}", []).append(row)
    assert {len(turns) for turns in by_session.values()} == {3}
    for turns in by_session.values():
        assert [b.arrival_ps - a.arrival_ps for a, b in pairwise(turns)] == [10**12, 10**12]
        assert common(turns[0].prompt, turns[1].prompt) == turns[0].prompt_tokens


def test_copies_of_a_block_share_only_what_sessions_share():
    rows = next(
        rows for rows in (resample(trace(2), seed) for seed in range(99)) if len({r.id.partition(":")[2] for r in rows}) < len(rows)
    )
    names = [row.id.partition(":")[2] for row in rows]
    twice = next(name for name in names if names.count(name) > 1)
    a, b = [row for row in rows if row.id.partition(":")[2] == twice][:2]
    assert common(a.prompt, b.prompt) == 1024
    assert b.output_first - a.output_first == SHIFT


def test_nothing_arrives_after_the_end_of_the_trace():
    last = max(row.arrival_ps for row in trace())
    for seed in range(10):
        assert max(row.arrival_ps for row in resample(trace(), seed)) <= last
    assert last > 5 * BLOCK_PS


def test_resampled_reuse_of_the_mooncake_trace_stays_near_the_recorded(shared):
    from kvsim.measure.curve import hit_curve
    from kvsim.measure.references import references
    from kvsim.workload.read import open_trace

    def rows() -> list[RequestSpec]:
        return list(open_trace(str(shared / "traces/mooncake_conversation.jsonl")))

    recorded = hit_curve(references(rows(), 512)).rate(6_400_000)
    rates = [hit_curve(references(resample(rows(), seed), 512)).rate(6_400_000) for seed in range(2)]
    assert abs(sum(rates) / 2 - recorded) < 0.05
