"""Laws that hold after every iteration of random tight worlds, whatever the rules decide."""

from __future__ import annotations

import pytest
from sched_world import Copies, Drive, random_world

from kvsim.kv.invariants import check
from kvsim.kv.tiers import EngineFailure
from kvsim.serving.port import ABORTED, FINISHED
from kvsim.serving.sglang.request import SglangRequest

WORLDS = 60
LONG_WORLDS = 1500


def requests_of(drive: Drive) -> list[SglangRequest]:
    return [r for r in drive.log.requests.values() if isinstance(r, SglangRequest)]


def check_memory(drive: Drive) -> None:
    """Every slot has one owner, every lock a holder, each request's tree path is its own content."""
    holdings = []
    for request in requests_of(drive):
        if request.joined:
            request.kv.committed = request.slots  # as it would be if it left now
        if request.kv.node is not None or request.kv.committed:
            holdings.append(request.kv)
    check(drive.scheduler.cache, holdings)


def check_cohort(drive: Drive) -> None:
    """The cohort's sums are those of its members."""
    scheduler = drive.scheduler
    cohort, members = scheduler.cohort, [r for r in requests_of(drive) if r.joined]
    assert cohort.size == len(members)
    assert sorted(id(r) for r in scheduler.running if not r.finished) == sorted(id(r) for r in members)
    assert cohort.context == sum(r.slots for r in members)
    if not members:
        return
    assert cohort.longest() == max(r.slots for r in members)
    assert cohort.pages_now() == sum(r.slots % cohort.page == 0 for r in members)
    waits = [-r.slots % cohort.page for r in members]
    crossings = cohort.crossings()
    for steps in (1, 2, cohort.page, cohort.page + 3):
        taken = sum(-(-(steps - wait) // cohort.page) for wait in waits if wait < steps)
        assert crossings.until(steps) == taken
        assert crossings.until(crossings.most_steps(taken)) <= taken < crossings.until(crossings.most_steps(taken) + 1)


def check_requests(drive: Drive) -> None:
    """Nobody is in two places, nobody is lost, outputs and hits stay within what was asked for."""
    scheduler = drive.scheduler
    waiting = {id(r) for r in scheduler.waiting}
    assert len(waiting) == len(scheduler.waiting)
    pending = {id(r) for r in scheduler.pending()}
    for request in requests_of(drive):
        ended = request.status in (FINISHED, ABORTED)
        assert (id(request) in pending) is not ended
        assert not (id(request) in waiting and request.joined)
        assert request.output_done <= request.length
        assert request.device_hit + request.host_hit <= request.spec.prompt_tokens - 1


def watch(seed: int, every: int) -> None:
    params, specs, delays = random_world(seed)
    drive = Drive(params, specs, Copies(*delays, waits=params.write_policy == "write_back"), closed=seed % 2 == 0)
    try:
        while drive.at < 4000 and drive.idle < 4:
            drive.at += 1
            drive.iterate()
            if drive.at % every == 0:
                check_memory(drive)
                check_cohort(drive)
                check_requests(drive)
    except EngineFailure:
        return
    assert all(r.status in (FINISHED, ABORTED) for r in requests_of(drive))
    cache = drive.scheduler.cache
    cache.flush(drive.at)
    cache.poll(drive.at + 1000)
    assert (cache.protected, cache.free + cache.evictable) == (0, cache.device_tokens)


def test_memory_members_and_requests_are_conserved_in_random_worlds() -> None:
    for seed in range(500, 500 + WORLDS):
        watch(seed, every=3)


@pytest.mark.long
def test_memory_members_and_requests_are_conserved_in_many_random_worlds() -> None:
    for seed in range(200_000, 200_000 + LONG_WORLDS):
        watch(seed, every=1)
