"""Worked examples of SGLang's scheduling rules, iteration by iteration (0.5.9, page 1, overlap, unless stated)."""

from __future__ import annotations

from typing import Any

import pytest
from sched_world import Copies, Drive, request, server

from kvsim.rules.sglang import SglangParams
from kvsim.serving.port import Step
from kvsim.serving.sglang.scheduler import SglangScheduler
from kvsim.workload.spec import RequestSpec


def words(step: Step | None) -> str:
    if step is None:
        return "-"
    prefills = " ".join(f"{r.spec.id}({prefix},{new})" for r, prefix, new in step.prefills)
    decoders = " ".join(r.spec.id for r in step.requests[len(step.prefills) :])
    if step.kind == "mixed":
        return f"MIXED {prefills}+{decoders}"
    return f"EXTEND {prefills}" if step.prefills else f"DECODE {decoders}"


class Watch(Drive):
    """A drive that keeps each iteration in words and the state after it."""

    def __init__(self, params: SglangParams, specs: list[RequestSpec], delays: tuple[int, int] = (2, 2)) -> None:
        super().__init__(params, specs, Copies(*delays), closed=False)
        self.said: list[str] = []
        plan = self.scheduler.plan

        def watched(now: int) -> Step | None:
            step = plan(now)
            self.said.append(words(step))
            return step

        self.scheduler.plan = watched  # type: ignore[method-assign]

    def watch(self) -> Watch:
        self.run()
        while self.said and self.said[-1] == "-":
            self.said.pop()
        return self

    @property
    def states(self) -> list[tuple[int, int, int]]:
        return self.log.states


def watch(params: SglangParams, specs: list[RequestSpec]) -> Watch:
    return Watch(params, specs).watch()


def upto(said: list[str], count: int) -> list[str]:
    return said[:count]


def test_e1_overlap_wastes_a_step_and_caches_the_last_token() -> None:
    seen = watch(server(), [request("A", 10, 3), request("B", 5, 2)])
    assert seen.said == ["EXTEND A(0,10) B(0,5)", "DECODE A B", "DECODE A B", "DECODE A"]
    assert seen.states[:4] == [(185, 0, 0), (183, 0, 15), (181, 7, 10), (180, 20, 0)]
    assert seen.scheduler.ratio == 0.7


def test_e1_without_overlap_nothing_is_wasted_and_the_last_token_is_not_cached() -> None:
    drive = Watch(server(overlap=False), [request("A", 10, 3), request("B", 5, 2)])
    for _ in range(3):
        drive.at += 1
        drive.iterate()
    assert drive.said == ["EXTEND A(0,10) B(0,5)", "DECODE A B", "DECODE A"]
    assert drive.states == [(185, 0, 15), (183, 6, 10), (182, 18, 0)]
    assert drive.scheduler.ratio == pytest.approx(0.7 - 2 * 0.602 / 600)


def test_e2_a_long_prompt_is_computed_in_chunks_and_its_last_chunk_has_company() -> None:
    seen = watch(server(chunked_prefill_size=8), [request("A", 20, 2), request("B", 3, 2)])
    assert seen.said == [
        "EXTEND A(0,8)", "EXTEND A(8,8)", "EXTEND A(16,4) B(0,3)", "DECODE A B", "DECODE A B",
    ]  # fmt: skip
    assert seen.states[4] == (173, 27, 0)


def test_e3_at_least_one_token_is_always_computed() -> None:
    first = request("A", 10, 1)
    same = request("A2", first.prompt, 1, at=10)
    answer = request("A3", [*first.prompt, (first.output_first, 1), (77, 2)], 1, at=20)
    seen = watch(server(), [first, same, answer])
    assert [said for said in seen.said if said.startswith("EXTEND")] == [
        "EXTEND A(0,10)", "EXTEND A2(9,1)", "EXTEND A3(11,2)",
    ]  # fmt: skip


def test_e3_in_0_5_23_a_length_finish_leaves_the_last_token_out() -> None:
    first = request("A", 10, 1)
    same = request("A2", first.prompt, 1, at=10)
    answer = request("A3", [*first.prompt, (first.output_first, 1), (77, 2)], 1, at=20)
    seen = watch(server("sglang-0.5.23"), [first, same, answer])
    assert [said for said in seen.said if said.startswith("EXTEND")] == [
        "EXTEND A(0,10)",
        "EXTEND A2(9,1)",
        "EXTEND A3(10,3)",
    ]


def test_e4_whole_pages_are_taken_and_cached() -> None:
    first = request("A", 10, 3)
    seen = watch(server(page_size=4), [first, request("A2", first.prompt, 3, at=12)])
    assert seen.states[0] == (188, 0, 0)
    assert seen.states[1] == (188, 0, 8)
    assert seen.states[3][1] == 12
    assert "EXTEND A2(8,2)" in seen.said


def test_e5_a_refusal_for_tokens_stops_the_pass_and_sticks() -> None:
    specs = [request("A", 40, 50), request("B", 10, 20), request("C", 5, 4)]
    drive = Watch(server(device_tokens=100), specs)
    for _ in range(2):
        drive.at += 1
        drive.iterate()
        assert drive.scheduler.counts()[1] == 2
        assert drive.scheduler.full
    assert drive.said == ["EXTEND A(0,40)", "DECODE A"]


def test_e5_a_flag_set_while_nothing_runs_is_lost_with_the_batch() -> None:
    specs = [request("A", 40, 50), request("B", 10, 10), request("C", 5, 4)]
    seen = watch(server(device_tokens=100), specs)
    assert upto(seen.said, 3) == ["EXTEND A(0,40)", "EXTEND B(0,10)", "DECODE A B"]
    assert seen.said.index("EXTEND C(0,5)") > 8


def test_e6_retraction_takes_the_longest_prompt_among_equals_and_frees_its_prefix() -> None:
    specs = [request("A", 8, 12), request("B", 5, 14, at=2), request("C", 6, 14, at=3)]
    drive = Watch(server(device_tokens=34, schedule_conservativeness=0.1), specs)
    while not drive.log.retracted:
        drive.at += 1
        drive.iterate()
    scheduler = drive.scheduler
    assert drive.log.retracted[0][1] == ["A"]
    assert [r.spec.id for r in scheduler.waiting] == ["C", "A"]
    assert scheduler.ratio == 1.0
    assert drive.said[-1] == "DECODE B"
    retracted = drive.log.requests["A"]
    assert (retracted.retractions, retracted.retracted_tokens, retracted.output_done) == (1, 10, 10)
    log = drive.run()
    assert log.requests["A"].recompute_hit == 0
    assert "EXTEND A(0,18)" in drive.said


def test_e7_the_slot_limit_makes_a_bubble() -> None:
    specs = [request(name, 6, 3) for name in "ABC"]
    seen = watch(server(device_tokens=500, max_running_requests=2), specs)
    assert upto(seen.said, 6) == [
        "EXTEND A(0,6) B(0,6)",
        "DECODE A B",
        "DECODE A B",
        "DECODE A B",
        "-",
        "EXTEND C(0,6)",
    ]


def test_e8_mixed_chunk_lets_decoders_ride_along() -> None:
    specs = [request("A", 4, 6), request("B", 12, 3, at=2)]
    seen = watch(server(mixed_chunk=True, chunked_prefill_size=8), specs)
    assert upto(seen.said, 4) == ["EXTEND A(0,4)", "MIXED B(0,7)+A", "MIXED B(7,5)+A", "DECODE B A"]


@pytest.mark.parametrize(
    ("rules", "batches"),
    [
        ("sglang-0.5.9", ["EXTEND A(0,10)", "EXTEND B(0,10)", "EXTEND C(0,10)"]),
        ("sglang-0.5.23", ["EXTEND A(0,10) B(0,10)", "EXTEND C(0,10)"]),
    ],
)
def test_e9_max_prefill_tokens_refuses_in_0_5_9_and_is_soft_in_0_5_23(rules: str, batches: list[str]) -> None:
    params = server(rules, max_prefill_tokens=16, chunked_prefill_size=64)
    seen = watch(params, [request(name, 10, 8) for name in "ABC"])
    assert upto(seen.said, len(batches)) == batches


def test_e9_a_first_request_longer_than_max_prefill_tokens_is_taken_whole() -> None:
    seen = watch(server(max_prefill_tokens=16, chunked_prefill_size=64), [request("A", 40, 2)])
    assert seen.said[0] == "EXTEND A(0,40)"


def test_e10_lpm_orders_by_prefix_and_sends_copies_of_a_new_prefix_to_the_back() -> None:
    warm = request("W", 50, 1)
    shared = (500_000, 40)
    later = [
        request("P1", [shared, (1, 1)], 4, at=10),
        request("P2", [shared, (3, 1)], 4, at=10),
        request("Q", [*warm.prompt, (5, 1)], 4, at=10),
        request("R", 10, 4, at=10),
    ]
    seen = watch(server(device_tokens=400, schedule_policy="lpm"), [warm, *later])
    assert "EXTEND Q(50,1) P1(0,41) R(0,10) P2(0,41)" in seen.said


def test_e11_an_urgent_request_preempts_the_least_urgent_one() -> None:
    specs = [
        request("L1", 10, 30, priority=0),
        request("L2", 10, 10, priority=5),
        request("H", 10, 5, priority=20, at=4),
    ]
    drive = Watch(server(device_tokens=60, max_running_requests=2, priority_scheduling=True), specs)
    while drive.at < 4:
        drive.at += 1
        drive.iterate()
    assert drive.said[-1] == "EXTEND H(0,10)"
    assert [r.spec.id for r in drive.scheduler.waiting] == ["L1"]
    assert drive.log.requests["L1"].retractions == 1
    assert drive.run().requests["L1"].status == "finished"


def test_e11_a_difference_at_the_threshold_does_not_preempt() -> None:
    specs = [
        request("L1", 10, 30, priority=10),
        request("L2", 10, 10, priority=15),
        request("H", 10, 5, priority=20, at=4),
    ]
    drive = Watch(server(device_tokens=60, max_running_requests=2, priority_scheduling=True), specs)
    while drive.at < 4:
        drive.at += 1
        drive.iterate()
    assert drive.said[-1] == "DECODE L2 L1"  # sorted by priority when they were admitted


@pytest.mark.parametrize(("rules", "after"), [("sglang-0.5.9", (10, 10)), ("sglang-0.5.23", (0, 20))])
def test_e12_0_5_9_evicts_the_full_amount_and_0_5_23_what_is_missing(rules: str, after: tuple[int, int]) -> None:
    params = server(rules, device_tokens=40, overlap=False)
    cached = [request(name, 10, 1, at=1 + 3 * i) for i, name in enumerate("abc")]
    seen = watch(params, [*cached, request("D", 20, 1, at=20)])
    at = seen.said.index("EXTEND D(0,20)")
    free, evictable, protected = seen.states[at]
    assert (free, evictable + protected - 20) == after


def test_e13_a_prefix_is_visible_one_step_after_its_prefill_or_two_with_overlap() -> None:
    specs = [request(f"P{i}", [(1000, 50), (i, 1)], 6, at=i) for i in (1, 2, 3)]
    with_overlap = watch(server(device_tokens=400), specs)
    assert upto(with_overlap.said, 3) == ["EXTEND P1(0,51)", "EXTEND P2(0,51)", "EXTEND P3(50,1)"]
    without = watch(server(device_tokens=400, overlap=False), specs)
    assert upto(without.said, 3) == ["EXTEND P1(0,51)", "EXTEND P2(50,1)", "EXTEND P3(50,1)"]


def test_e13_a_chunk_is_visible_at_once() -> None:
    first = request("P1", 60, 3)
    start = first.prompt[0][0]
    second = request("P2", [(start, 32), (7, 1)], 3, at=2)
    seen = watch(server(device_tokens=400, chunked_prefill_size=32), [first, second])
    assert seen.said[1] == "EXTEND P1(32,28) P2(32,1)"


def test_e14_estimates_clip_the_output_limit() -> None:
    specs = [request("A", 1000, 100, mnt=100_000), request("B", 500, 100, mnt=1000)]
    seen = watch(server(device_tokens=6000), specs)
    assert upto(seen.said, 2) == ["EXTEND A(0,1000)", "EXTEND B(0,500)"]


def test_e15_only_the_first_chunk_ends_on_a_page() -> None:
    params = server(page_size=4, chunked_prefill_size=10)
    seen = watch(params, [request("A", 21, 2), request("B", 3, 2)])
    assert upto(seen.said, 3) == ["EXTEND A(0,8)", "EXTEND A(8,10)", "EXTEND A(18,3) B(0,3)"]


def test_e16_a_finish_before_a_prefill_step_does_not_cache_the_last_token() -> None:
    seen = watch(server(), [request("A", 10, 2), request("B", 7, 2, at=3)])
    assert upto(seen.said, 3) == ["EXTEND A(0,10)", "DECODE A", "EXTEND B(0,7)"]
    assert seen.log.requests["A"].offered == 11  # type: ignore[attr-defined]


@pytest.mark.parametrize(("pool", "admitted"), [(91, 0), (92, 1)])
def test_e18_0_5_23_needs_one_page_more(pool: int, admitted: int) -> None:
    scheduler = SglangScheduler(server("sglang-0.5.23", device_tokens=pool), Copies(1, 1))
    scheduler.submit(request("A", 40, 50), 1)
    step = scheduler.plan(1)
    assert (0 if step is None else len(step.admitted)) == admitted


def test_e18_0_5_23_charges_a_page_per_request() -> None:
    params = server("sglang-0.5.23", page_size=64, device_tokens=1000, chunked_prefill_size=512)
    scheduler = SglangScheduler(params, Copies(1, 1))
    for spec in (request("A", 100, 50), request("B", 700, 20)):
        scheduler.submit(spec, 1)
    step = scheduler.plan(1)
    assert [r.spec.id for r in step.admitted] == ["A"]  # type: ignore[union-attr]


def planned(policy: str, specs: list[RequestSpec], running: list[RequestSpec] | None = None, **settings: Any) -> list[str]:
    """The queue's order in one pass, with nothing admitted but the order seen."""
    scheduler = SglangScheduler(server(device_tokens=4000, schedule_policy=policy, **settings), Copies(1, 1))
    for spec in running or []:
        scheduler.submit(spec, 1)
    if running:
        step = scheduler.plan(1)
        assert step is not None
    for spec in specs:
        scheduler.submit(spec, 2)
    step = scheduler.plan(2)
    assert step is not None
    return [r.spec.id for r in step.admitted]


def test_lof_takes_the_largest_limit_first() -> None:
    specs = [request("a", 5, 10), request("b", 5, 30), request("c", 5, 20, mnt=500)]
    assert planned("lof", specs) == ["c", "b", "a"]


def test_random_shuffles_with_its_seed() -> None:
    specs = [request(f"r{i}", 5, 10) for i in range(12)]
    one, same, other = (planned("random", specs, seed=seed) for seed in (1, 1, 2))
    assert one == same != other
    assert sorted(one) == sorted(r.id for r in specs)


def test_routing_key_prefers_keys_that_run_already() -> None:
    running = [
        request("x", 5, 30, routing_key="k2"),
        request("y", 5, 30, routing_key="k2"),
        request("z", 5, 30, routing_key="k1"),
    ]
    queue = [request(f"q{i}", 5, 9, routing_key=key) for i, key in enumerate(["k9", "k1", "k2", "k1", "k5"])]
    assert planned("routing-key", queue, running) == ["q2", "q1", "q3", "q4", "q0"]


def test_routing_key_leaves_the_queue_alone_when_no_running_request_has_a_key() -> None:
    queue = [request(f"q{i}", 5, 9, routing_key=key) for i, key in enumerate(["k9", "k1", "k2"])]
    assert planned("routing-key", queue, [request("x", 5, 30)]) == ["q0", "q1", "q2"]


def test_dfs_weight_goes_into_the_heavier_subtree_first() -> None:
    trunk = (100_000, 40)
    warm = [request("w1", [trunk, (1, 20)], 1), request("w2", [trunk, (200, 20)], 1, at=6)]
    queue = [
        request("light", [trunk, (1, 20), (900, 1)], 4, at=20),
        request("heavy1", [trunk, (200, 20), (910, 1)], 4, at=20),
        request("heavy2", [trunk, (200, 20), (920, 1)], 4, at=20),
        request("own", [trunk, (999, 1)], 4, at=20),
    ]
    seen = watch(server(device_tokens=600, schedule_policy="dfs-weight"), [*warm, *queue])
    assert "EXTEND heavy1(60,1) heavy2(60,1) light(60,1) own(40,1)" in seen.said


def test_hrrn_weighs_what_was_waited_against_what_is_uncached() -> None:
    engine = SglangScheduler(server("sglang-0.5.23", device_tokens=4000, schedule_policy="hrrn"), Copies(1, 1))
    for name, prompt, at in (("old", 300, 1), ("long", 200, 91), ("short", 20, 91), ("new", 20, 101)):
        engine.submit(request(name, prompt, 5), at)
    step = engine.plan(101)
    assert step is not None
    assert [r.spec.id for r in step.admitted] == ["short", "old", "long", "new"]


def test_lpm_leaves_a_queue_of_more_than_128_as_it_is() -> None:
    warm = request("W", 50, 1)

    def first(count: int) -> str:
        queue = [request(f"n{i}", 3, 2, at=10) for i in range(count - 1)] + [request("Q", [*warm.prompt, (5, 1)], 2, at=10)]
        params = server(device_tokens=9000, schedule_policy="lpm", max_running_requests=1)
        seen = watch(params, [warm, *queue])
        return next(said for said in seen.said[5:] if said.startswith("EXTEND"))

    assert first(128) == "EXTEND Q(50,1)"
    assert first(129) == "EXTEND n0(0,3)"


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(Exception, match="unknown schedule policy 'priority'"):
        SglangScheduler(server(schedule_policy="priority"), Copies(1, 1))


def test_without_a_radix_cache_ignore_eos_requests_are_tested_by_who_finishes_first() -> None:
    specs = [request("A", 10, 40, ignore_eos=True), request("B", 20, 40, ignore_eos=True)]
    for pool, both in ((72, False), (120, True)):
        scheduler = SglangScheduler(server(device_tokens=pool, radix_cache=False), Copies(1, 1))
        for spec in specs:
            scheduler.submit(spec, 1)
        step = scheduler.plan(1)
        assert step is not None
        assert len(step.admitted) == 1 + both
