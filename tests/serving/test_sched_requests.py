"""Arrival, refusal, clipping, aborts and failures, and what a step says about its work."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sched_world import Copies, Drive, drive, request, server

from kvsim.kv.tiers import EngineFailure
from kvsim.rules.sglang import RULES, SglangParams
from kvsim.serving.lockstep import LockstepScheduler, round_robin
from kvsim.serving.port import ABORTED, FINISHED, REFUSED
from kvsim.serving.sglang.delayer import PrefillDelayer
from kvsim.serving.sglang.scheduler import SglangScheduler

TOY = SglangParams(
    rules=RULES["sglang-0.5.9"], page_size=100, device_tokens=10_000, overlap=False, clip_max_new_tokens=0,
    chunked_prefill_size=None, max_prefill_tokens=1 << 40, max_running_requests=100,
)  # fmt: skip


def scheduler(params: SglangParams) -> SglangScheduler:
    return SglangScheduler(params, Copies(1, 1))


def test_the_toy_world_refuses_what_is_longer_than_the_pool_with_the_numbers() -> None:
    refused = scheduler(TOY).submit(request("a", 9_000, 3_010), 1)
    assert (refused.status, refused.reason) == (REFUSED, "needs 12 010, pool 10 000")


def test_the_toy_world_serves_a_request_that_fills_the_pool() -> None:
    log = drive(TOY, [request("a", 9_000, 1_000)], closed=True)
    assert log.requests["a"].status == FINISHED


def test_a_refused_request_leaves_the_queue_alone() -> None:
    engine = scheduler(TOY)
    engine.submit(request("a", 9_000, 3_000), 1)
    assert engine.counts() == (0, 0)
    assert not engine.has_work()


def test_prompts_of_the_limit_are_refused_and_one_token_less_is_taken() -> None:
    params = server(device_tokens=10_000, max_input_tokens=9_994, max_total_len=9_999)
    engine = scheduler(params)
    refused = engine.submit(request("a", 9_994, 10), 1)
    assert "9 994 >= 9 994" in refused.reason
    assert engine.submit(request("b", 9_993, 10), 1).reason == ""


@pytest.mark.parametrize(("rules", "clipped"), [("sglang-0.5.9", 998), ("sglang-0.5.23", 998)])
def test_the_output_limit_is_clipped_so_that_a_request_alone_fits(rules: str, clipped: int) -> None:
    params = server(rules, device_tokens=10_000, max_input_tokens=9_994, max_total_len=9_999)
    log = drive(params, [request("a", 9_000, 2_000)], closed=True)
    assert log.requests["a"].output_done == clipped
    assert log.requests["a"].status == FINISHED


def test_0_5_23_leaves_a_page_when_it_clips() -> None:
    params = server("sglang-0.5.23", page_size=64, device_tokens=9_984, max_input_tokens=9_978, max_total_len=9_983)
    one = scheduler(params).submit(request("a", 9_000, 2_000), 1)
    assert one.mnt == 9_984 - 9_024 - 64 - 1  # type: ignore[attr-defined]


def test_the_queue_limit_refuses_the_newcomer() -> None:
    engine = scheduler(server(max_queued_requests=1))
    engine.submit(request("a", 5, 5), 1)
    assert engine.submit(request("b", 5, 5), 1).reason == "the request queue is full"


def test_the_queue_limit_ejects_the_worst_queued_request_under_priorities() -> None:
    engine = scheduler(server(max_queued_requests=1, priority_scheduling=True))
    worst = engine.submit(request("a", 5, 5, priority=1), 1)
    better = engine.submit(request("b", 5, 5, priority=2), 1)
    assert (worst.status, better.status) == (ABORTED, "queued")
    assert engine.ended == [worst]
    assert engine.submit(request("c", 5, 5, priority=2), 1).status == REFUSED


def test_a_queued_request_that_is_given_up_is_forgotten_at_once() -> None:
    engine = scheduler(server())
    one = engine.submit(request("a", 5, 5), 1)
    engine.abort(one, 3)
    assert (one.status, one.end_ps, engine.has_work()) == (ABORTED, 3, False)


def test_a_running_request_that_is_given_up_ends_at_its_next_result_and_is_cached() -> None:
    world = Drive(server(overlap=False), [request("a", 20, 50)], Copies(1, 1), closed=True)
    for _ in range(3):
        world.at += 1
        world.iterate()
        if world.at >= 50:
            break
        world.scheduler.abort(world.log.requests["a"], world.at)
    one = world.log.requests["a"]
    assert one.status == ABORTED
    assert one.reason == "the client gave up"
    assert world.scheduler.cache.evictable >= 20
    assert world.scheduler.cache.protected == 0


def test_a_request_given_up_in_the_middle_of_a_run_ends_it() -> None:
    engine = scheduler(server(overlap=False))
    one = engine.submit(request("a", 20, 100), 1)
    engine.settle(engine.plan(1), 1)  # type: ignore[arg-type]
    engine.plan(2)
    assert engine.quiet(None) > 50
    engine.abort(one, 2)
    assert engine.quiet(None) == 0


def _starved(**settings: object) -> tuple[SglangParams, list[object]]:
    """Three requests whose limits were underestimated: the pool is too small even for one."""
    params = server(device_tokens=60, clip_max_new_tokens=0, **settings)
    return params, [request(name, 12, 70) for name in "abc"]


def test_0_5_9_fails_when_not_even_the_last_request_fits() -> None:
    params, specs = _starved(stop_at_engine_failure=True)
    log = drive(params, specs)  # type: ignore[arg-type]
    assert "sglang-0.5.9 fails here: out of memory with one request left" in log.failure


def test_a_simulation_goes_on_without_the_request_with_which_0_5_9_fails() -> None:
    params, specs = _starved()
    log = drive(params, specs)  # type: ignore[arg-type]
    assert {r.status for r in log.requests.values()} == {ABORTED}
    assert all("sglang-0.5.9 fails here" in r.reason for r in log.requests.values())


def test_0_5_23_aborts_the_last_request() -> None:
    params, specs = _starved()
    log = drive(replace(params, rules=RULES["sglang-0.5.23"]), specs)  # type: ignore[arg-type]
    assert {r.reason for r in log.requests.values()} == {"not even this one request fits the pool"}


def run_iterations(engine: SglangScheduler, count: int) -> None:
    for now in range(1, count):
        step = engine.plan(now)
        assert step is not None
        engine.settle(step, now)


def test_a_continued_chunk_without_room_fails_as_the_engine_does() -> None:
    params = server(device_tokens=100, chunked_prefill_size=8, mixed_chunk=True, clip_max_new_tokens=0, overlap=False)
    specs = [request("a", 40, 50), request("b", 55, 40, at=2)]
    engine = SglangScheduler(params, Copies(1, 1))
    for spec in specs:
        engine.submit(spec, 1)
    with pytest.raises(EngineFailure, match="prefill out of memory"):
        run_iterations(engine, 60)


@pytest.mark.parametrize(("rules", "lost"), [("sglang-0.5.9", True), ("sglang-0.5.23", False)])
def test_a_preempted_request_is_lost_in_0_5_9_if_nothing_was_admitted_then(rules: str, lost: bool) -> None:
    params = server(rules, device_tokens=100, max_running_requests=1, priority_scheduling=True, stop_at_engine_failure=True)
    engine = SglangScheduler(params, Copies(1, 1))
    victim = engine.submit(request("v", 20, 60, priority=0), 1)
    engine.settle(engine.plan(1), 1)  # type: ignore[arg-type]
    urgent = engine.submit(request("u", 100, 20, priority=50), 2)
    engine.plan(2)
    assert urgent.status == "queued"
    assert victim.retractions == 1
    assert (victim in engine.pending()) is not lost


def test_a_prefill_step_says_what_it_computes() -> None:
    engine = scheduler(server())
    first = request("a", 20, 1)
    engine.submit(first, 1)
    engine.settle(engine.plan(1), 1)  # type: ignore[arg-type]
    engine.plan(2)
    again = request("b", [*first.prompt, (9, 5)], 3)
    engine.submit(again, 3)
    step = engine.plan(3)
    assert step is not None
    assert (step.new_tokens, step.cached_tokens, step.pairs2) == (5, 20, 5 * (2 * 20 + 6))
    assert (step.decode_batch, step.load_tokens, step.load_ticket) == (0, 0, None)
    assert [r.device_hit for r in step.admitted] == [20]


def test_a_decode_step_reads_all_tokens_with_the_new_one() -> None:
    engine = scheduler(server(overlap=False))
    for spec in (request("a", 20, 9), request("b", 7, 9)):
        engine.submit(spec, 1)
    engine.settle(engine.plan(1), 1)  # type: ignore[arg-type]
    step = engine.plan(2)
    assert step is not None
    assert (step.kind, step.decode_batch, step.sum_context, step.max_context) == ("decode", 2, 29, 21)


def test_a_load_back_is_one_copy_of_the_batch_and_a_host_hit_of_its_request() -> None:
    params = server(device_tokens=100, host_tokens=400, overlap=False)
    first = request("a", 60, 1)
    specs = [first, request("x", 80, 2, at=10), request("b", [*first.prompt, (5, 3)], 2, at=30)]
    log = drive(params, specs)
    back = log.requests["b"]
    assert (back.device_hit, back.host_hit) == (0, 60)
    loads = [step for step in log.steps if step[10]]
    assert [step[10] for step in loads] == [60]


def test_a_retraction_counts_the_tokens_thrown_away_and_the_second_prefill_is_counted_apart() -> None:
    specs = [request("a", 8, 12), request("b", 5, 14, at=2), request("c", 6, 14, at=3)]
    log = drive(server(device_tokens=34, schedule_conservativeness=0.1), specs)
    a = log.requests["a"]
    assert (a.retractions, a.retracted_tokens, a.device_hit) == (1, 10, 0)


def test_waiting_requests_do_not_cut_runs_while_the_batch_is_full() -> None:
    engine = scheduler(server(device_tokens=100, overlap=False))
    for spec in (request("a", 40, 50), request("b", 40, 50)):
        engine.submit(spec, 1)
    engine.settle(engine.plan(1), 1)  # type: ignore[arg-type]
    engine.plan(2)
    assert not engine.arrival_matters()
    assert engine.quiet(None) > 20


@pytest.mark.parametrize("overlap", [True, False])
def test_the_last_token_is_never_cached_under_the_rule_that_says_so(overlap: bool) -> None:
    plain = server(overlap=overlap)
    strict = replace(plain, rules=replace(plain.rules, last_token_cached=False))
    assert drive(plain, [request("a", 10, 4)]).end["evictable"] == (14 if overlap else 13)
    assert drive(strict, [request("a", 10, 4)]).end["evictable"] == 13


def test_the_prefill_delayer_waits_for_the_other_ranks_and_gives_up_in_the_end() -> None:
    ranks = [scheduler(server(overlap=False)) for _ in range(2)]
    delayer = PrefillDelayer(ranks, most_passes=3)
    both = LockstepScheduler(list(ranks), round_robin, delayer.before_plan)
    both.submit(request("a", 10, 30), 1)
    assert [both.plan(now) for now in (1, 2, 3)] == [None] * 3
    step = both.plan(4)
    assert step is not None
    assert [r.spec.id for r in step.admitted] == ["a"]


def test_the_prefill_delayer_lets_prefills_of_all_ranks_go_at_once() -> None:
    ranks = [scheduler(server(overlap=False)) for _ in range(2)]
    both = LockstepScheduler(list(ranks), round_robin, PrefillDelayer(ranks).before_plan)
    both.submit(request("a", 10, 30), 1)
    assert both.plan(1) is None
    both.submit(request("b", 10, 30), 2)
    step = both.plan(2)
    assert step is not None
    assert [r.spec.id for r in step.admitted] == ["a", "b"]


@pytest.mark.parametrize("rules", ["sglang-0.5.9", "sglang-0.5.23"])
@pytest.mark.parametrize("host", [0, 3_000])
def test_a_request_that_can_never_be_admitted_is_aborted_and_the_others_are_served(rules: str, host: int) -> None:
    params = server(rules, page_size=64, device_tokens=1_024, host_tokens=host)
    log = drive(params, [request("a", 990, 1, mnt=500), request("b", 100, 5, at=2), request("c", 50, 5, at=9)])
    assert [log.requests[name].status for name in "abc"] == [ABORTED, FINISHED, FINISHED]
    assert log.requests["a"].reason.startswith("can never be admitted: 990 tokens and what it may generate")


def test_chunks_smaller_than_a_page_never_start() -> None:
    log = drive(server(page_size=64, device_tokens=1_024, chunked_prefill_size=32), [request("a", 200, 5)])
    assert (log.requests["a"].status, log.end["at"] < 10) == (ABORTED, True)
    assert "in chunks of 32, less than a page of 64" in log.requests["a"].reason
