"""Rules that no recording decides, worked examples of the notes, and what the machine's seam adds."""

from __future__ import annotations

import pytest
from vllm_world import MS, Fifo, random_world, simulate

from kvsim.rules.vllm import OFFLOADING, RULES, SIMPLE, VllmParams
from kvsim.serving.port import ABORTED, REFUSED
from kvsim.serving.vllm.scheduler import VllmScheduler
from kvsim.workload.spec import RequestSpec


def params(**changes: object) -> VllmParams:
    given = {"num_gpu_blocks": 40, "max_model_len": 200, "max_num_batched_tokens": 64, "max_num_seqs": 8}
    return VllmParams(RULES["vllm-0.24.0"], **{**given, **changes})


def spec(name: str, prompt: int, output: int, *, at: int = 0, first: int | None = None, limit: int | None = None) -> RequestSpec:
    start = 1000 * (int(name) + 1) if first is None else first
    return RequestSpec(
        id=name,
        arrival_ps=at,
        prompt=((start, prompt),),
        prompt_tokens=prompt,
        output_tokens=output,
        output_first=1_000_000 * (int(name) + 1),
        max_new_tokens=output if limit is None else limit,
    )


def work(step) -> list[tuple[str, int]]:
    return [(request.spec.id, count) for request, count, _ in step.work]


def test_without_chunking_a_prompt_above_the_budget_left_waits() -> None:
    scheduler = VllmScheduler(params(enable_chunked_prefill=False, async_scheduling=False), Fifo(1))
    scheduler.submit(spec("0", 40, 5), 0)
    scheduler.submit(spec("1", 30, 5), 0)
    step = scheduler.plan(0)
    assert work(step) == [("0", 40)]
    scheduler.settle(step, 1)
    assert work(scheduler.plan(1)) == [("1", 30)]


def test_with_chunking_the_prompt_gets_the_budget_left() -> None:
    scheduler = VllmScheduler(params(async_scheduling=False), Fifo(1))
    scheduler.submit(spec("0", 40, 5), 0)
    scheduler.submit(spec("1", 30, 5), 0)
    assert work(scheduler.plan(0)) == [("0", 40), ("1", 24)]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_request_at_max_model_len_ends_there_and_gets_no_further_step(overlap: bool) -> None:
    settings = params(async_scheduling=overlap, max_model_len=48, server_limits=False)
    recording, scheduler = simulate(settings, [spec("0", 40, 100)], exact_steps=True)
    assert recording.requests[0].output_tokens == 8
    assert sum(row[5] for row in recording.steps if row[1] == "decode") == 7
    assert scheduler.pool.free == 39


def test_a_stop_token_costs_one_wasted_step_asynchronously() -> None:
    rows = {}
    for overlap in (False, True):
        recording, _ = simulate(params(async_scheduling=overlap), [spec("0", 40, 5, limit=50)], exact_steps=True)
        rows[overlap] = sum(row[5] for row in recording.steps)
        assert recording.requests[0].output_tokens == 5
    assert rows[True] == rows[False] + 1


def test_a_length_stop_is_foreseen() -> None:
    recording, _ = simulate(params(), [spec("0", 40, 5)], exact_steps=True)
    assert sum(row[5] for row in recording.steps) == 4


def test_a_fully_cached_prompt_of_whole_blocks_recomputes_its_last_block() -> None:
    specs = [spec("0", 64, 1, first=7000), spec("1", 64, 1, at=500 * MS, first=7000)]
    recording, _ = simulate(params(), specs, exact_steps=False)
    assert [row.device_hit for row in recording.requests] == [0, 48]


def test_reset_forgets_the_cache_only_while_nothing_is_in_use() -> None:
    scheduler = VllmScheduler(params(async_scheduling=False), Fifo(1))
    scheduler.submit(spec("0", 40, 1), 0)
    step = scheduler.plan(0)
    assert not scheduler.reset_prefix_cache()
    scheduler.settle(step, 1)
    assert scheduler.pool.hashed == 2
    assert scheduler.reset_prefix_cache()
    assert scheduler.pool.hashed == 0
    assert scheduler.pool.free == 39


def test_too_long_prompts_and_limits_are_refused_with_the_reason() -> None:
    scheduler = VllmScheduler(params(), Fifo(1))
    long, limit = scheduler.submit(spec("0", 200, 1), 0), scheduler.submit(spec("1", 150, 1, limit=60), 0)
    assert (long.status, limit.status) == (REFUSED, REFUSED)
    assert "max_model_len 200" in long.reason
    assert "150 + max_tokens 60" in limit.reason
    assert not scheduler.has_work()


def test_a_request_that_outgrows_the_pool_is_refused_instead_of_stalling() -> None:
    scheduler = VllmScheduler(params(num_gpu_blocks=5, max_model_len=80), Fifo(1))
    assert "wait for ever" in scheduler.submit(spec("0", 40, 39), 0).reason
    assert scheduler.submit(spec("1", 40, 20), 0).reason == ""


def test_an_engine_that_stalls_gives_the_blocking_request_up() -> None:
    settings = params(num_gpu_blocks=5, max_model_len=80, server_limits=False)
    recording, _ = simulate(settings, [spec("0", 40, 39), spec("1", 20, 3, at=MS)], exact_steps=False)
    rows = {row.id: row for row in recording.requests}
    assert (rows["0"].status, rows["1"].status) == (ABORTED, "finished")
    assert "stalls" in rows["0"].reason


@pytest.mark.parametrize("connector", [OFFLOADING, SIMPLE])
@pytest.mark.parametrize("overlap", [False, True])
def test_blocks_lost_on_the_device_are_loaded_from_the_cpu(connector: str, overlap: bool) -> None:
    settings = params(
        num_gpu_blocks=13,
        max_model_len=180,
        max_num_batched_tokens=256,
        connector=connector,
        cpu_blocks=64,
        async_scheduling=overlap,
    )
    specs = [spec("0", 64, 8), spec("1", 150, 8, at=1000 * MS), spec("2", 70, 8, at=3000 * MS, first=1000)]
    recording, scheduler = simulate(settings, specs, exact_steps=False)
    last = recording.requests[-1]
    assert last.device_hit + last.host_hit == 64
    assert last.host_hit > 0
    assert last.load_wait_ps > 0
    assert last.first_token_ps - last.arrival_ps >= last.load_wait_ps
    assert scheduler.occupancy.loaded == last.host_hit
    assert scheduler.occupancy.demoted + scheduler.occupancy.dropped == scheduler.pool.evicted * 16


@pytest.mark.parametrize("connector", ["", OFFLOADING, SIMPLE])
def test_every_request_is_accounted_for_and_every_block_comes_back(connector: str) -> None:
    settings = params(num_gpu_blocks=20, connector=connector, cpu_blocks=30)
    specs = [spec(str(i), 20 + 7 * (i % 9), 3 + i % 40, at=i * 20 * MS, first=1000 * (i % 4)) for i in range(60)]
    recording, scheduler = simulate(settings, specs, exact_steps=False)
    assert sorted(row.id for row in recording.requests) == sorted(one.id for one in specs)
    assert all(row.output_tokens == 3 + int(row.id) % 40 for row in recording.requests)
    assert scheduler.pool.free == scheduler.pool.usable
    assert scheduler.pool.hashed == scheduler.pool.idle_hashed


@pytest.mark.parametrize("connector", [OFFLOADING, SIMPLE])
def test_a_reset_of_the_connector_empties_the_cpu_tier(connector: str) -> None:
    settings = params(connector=connector, cpu_blocks=30)
    _, scheduler = simulate(settings, [spec("0", 100, 20)], exact_steps=False)
    scheduler.connector.poll_idle(10**15)
    assert scheduler.occupancy.host_used > 0
    assert scheduler.reset_prefix_cache(reset_connector=True)
    assert scheduler.occupancy.host_used == 0


def test_an_engine_that_goes_in_a_circle_gives_a_request_up() -> None:
    settings, specs = random_world(1117)  # chunks of 40 tokens, blocks of 64, asynchronous, with a connector
    recording, _ = simulate(settings, specs, exact_steps=False)
    assert len(recording.requests) == len(specs)
    assert any("in a circle" in row.reason for row in recording.requests)
