"""The machine as a queue whose answers are known: one request at a time, service times given through prompt lengths."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvsim.config.resolve import resolve
from kvsim.measure.latency import Latencies
from kvsim.measure.steady import mean_with_halfwidth, replication_estimate
from kvsim.measure.summary import summarise
from kvsim.sim.simulate import simulate

sys.path.insert(0, str(Path(__file__).parents[1] / "study"))
from study_world import QUEUE, SERVICE_S, md1_wait_below, queue_scenario

EXPONENTIAL = 'workload.prompt_tokens={"dist": "exponential", "mean": 1000}'
UNIFORM = 'workload.prompt_tokens={"dist": "uniform", "low": 1, "high": 1999}'


def waits(seed: int, rate: float, requests: int, *overrides: str) -> list[float]:
    """Times in queue: TTFT less the service."""
    recording = simulate(
        resolve(queue_scenario(f"workload.rate_per_s={rate}", f"workload.requests={requests}", f"run.seed={seed}", *overrides))
    )
    return Latencies(recording).queue


def theory(rate: float, second_moment: float) -> float:
    """Pollaczek and Khinchine: W = rate E[S^2] / (2 (1 - rate E[S]))."""
    return rate * second_moment / (2 * (1 - rate * SERVICE_S))


CASES = {
    "M/D/1": ((), SERVICE_S**2),
    "M/M/1": ((EXPONENTIAL,), 2 * SERVICE_S**2),
    "M/G/1 uniform": ((UNIFORM,), 4 / 3 * SERVICE_S**2),
}


@pytest.mark.parametrize("name", CASES)
def test_waiting_times_agree_with_pollaczek_and_khinchine(name: str):
    rate = 6.0
    overrides, moment = CASES[name]
    means = [mean_with_halfwidth(waits(seed, rate, 2000, *overrides)).mean for seed in range(5)]
    found = replication_estimate(means)
    assert found.half_width is not None
    assert abs(found.mean - theory(rate, moment)) <= 1.6 * found.half_width  # 2.776 s -> 99 % of a t with 4 degrees of freedom


def test_the_whole_distribution_of_md1_waits_agrees():
    rate, all_waits = 7.0, [wait for seed in range(3) for wait in waits(seed, 7.0, 3000)[300:]]
    for limit in (0.05, 0.1, 0.2, 0.4):
        share = sum(wait <= limit for wait in all_waits) / len(all_waits)
        assert share == pytest.approx(md1_wait_below(rate, SERVICE_S, limit), abs=0.04)


def test_littles_law_holds_on_every_run():
    for seed in range(2):
        recording = simulate(resolve(queue_scenario("workload.rate_per_s=8", "workload.requests=3000", f"run.seed={seed}")))
        assert abs(summarise(recording)["little"]["residual"]) < 0.05


def test_a_load_above_one_is_overloaded_and_below_is_not():
    for rate, expected in ((5.0, False), (14.0, True)):
        recording = simulate(resolve(queue_scenario(f"workload.rate_per_s={rate}", "workload.requests=2000")))
        assert summarise(recording)["overload"]["overloaded"] is expected


@pytest.mark.long
def test_ciw_gives_the_same_waits_as_a_second_opinion():
    ciw = pytest.importorskip("ciw")
    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Exponential(rate=7.0)],
        service_distributions=[ciw.dists.Exponential(rate=1 / SERVICE_S)],
        number_of_servers=[1],
    )
    theirs = []
    for seed in range(5):
        ciw.seed(seed)
        simulation = ciw.Simulation(network)
        simulation.simulate_until_max_time(600)
        theirs.append(mean_with_halfwidth([record.waiting_time for record in simulation.get_all_records()]).mean)
    ours = [mean_with_halfwidth(waits(seed, 7.0, 4000, EXPONENTIAL)).mean for seed in range(5)]
    a, b = replication_estimate(theirs), replication_estimate(ours)
    assert a.half_width is not None
    assert b.half_width is not None
    assert abs(a.mean - b.mean) <= 1.2 * (a.half_width + b.half_width)
    assert QUEUE


@pytest.mark.long
def test_the_simulated_hit_rate_is_within_half_a_point_of_the_curve(shared):
    from kvsim.config.load import load_parts
    from kvsim.content import join
    from kvsim.measure.curve import hit_curve
    from kvsim.measure.references import references
    from kvsim.workload.read import open_trace

    trace = str(shared / "traces/mooncake_conversation.jsonl")
    prompts = answers = 0

    def with_answers():
        """Answers are kept too and take room, 2.8 % of it here; nobody asks for them again."""
        nonlocal prompts, answers
        for spec in open_trace(trace):
            prompts, answers = prompts + spec.prompt_tokens, answers + spec.output_tokens
            spec.prompt = join(spec.prompt, ((spec.output_first, spec.output_tokens),))
            spec.prompt_tokens += spec.output_tokens
            yield spec

    curve = hit_curve(references(with_answers(), 512))
    for ratio in (0, 1, 2, 4, 8, 14, 20, 32, 64):
        scenario = load_parts(
            "8x-rtx-pro-6000", "kimi-k2.5-int4", None,
            [f"workload.trace={trace}", "workload.rate_scale=0.1667", "hardware.host_ram=unlimited", "engine.max_total_num_tokens=640000",
             "costs={kind: constant, prefill_tokens_per_s: 40000, decode_step: 10ms}", "links={kind: constant}", f"engine.hicache.ratio={ratio}"],
        )  # fmt: skip
        hits = summarise(simulate(resolve(scenario)))["hits"]["hit_rate"]
        expected = curve.rate(640_000 * max(ratio, 1)) * (prompts + answers) / prompts
        assert hits == pytest.approx(expected, abs=0.005), ratio
