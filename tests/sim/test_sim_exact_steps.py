"""The closed-form run and the step-by-step reference give the same bytes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sim_world import request, run_specs, summary_of

#: No shrinking: a failing world is printed as it was drawn, and stays small enough to read.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[object], list[str]]:
    page = draw(st.sampled_from([1, 16, 64]))
    device = page * draw(st.integers(8, 40)) if page > 1 else draw(st.integers(200, 900))
    policy = draw(st.sampled_from(["write_through", "write_through_selective", "write_back"]))
    host = 0 if draw(st.booleans()) else device * draw(st.sampled_from([2, 4])) + page
    prefixes = [
        (
            (
                7_000_000 * (k + 1),
                draw(st.integers(page, max(device // 3, page))),
            ),
        )
        for k in range(3)
    ]
    specs = []
    at = 0.0
    for i in range(draw(st.integers(3, 18))):
        at += draw(st.sampled_from([0.0, 0.0, 0.003, 0.0101, 0.05, 0.4]))
        prefix = draw(st.sampled_from([*prefixes, ()]))
        tail = draw(st.integers(1, max(device // 4, 2)))
        runs = (*prefix, ((i + 1) * 10_000_000, tail))
        total = sum(count for _, count in runs)
        output = draw(st.integers(1, max(device // 3, 2)))
        specs.append(request(i, at, total, output, runs=runs))
    rules = draw(st.sampled_from(["sglang-0.5.9", "sglang-0.5.23"]))
    overrides = [
        f"engine.rules={rules}",
        f"engine.device_tokens={device}",
        f"engine.page_size={page}",
        f"engine.hicache.host_tokens={host}",
        f"engine.hicache.write_policy={policy}",
        f"engine.disable_overlap_schedule={str(draw(st.booleans())).lower()}",
        f"engine.clip_max_new_tokens={draw(st.sampled_from([0, 8, 4096]))}",
        f"engine.chunked_prefill_size={draw(st.sampled_from([-1, 64, 128]))}",
        f"engine.max_running_requests={draw(st.sampled_from([3, 100]))}",
        f"engine.enable_mixed_chunk={str(draw(st.booleans())).lower()}",
        f"engine.schedule_policy={draw(st.sampled_from(['fcfs', 'lpm']))}",
        "links.h2d=1GB/s",
        "links.d2h=1GB/s",
        f"costs.decode_per_context={draw(st.sampled_from(['0s', '1us']))}",
    ]
    return specs, overrides


def comparable(specs: list[object], overrides: list[str], exact: bool) -> tuple[object, ...]:
    recording = run_specs(specs, *overrides, f"run.exact_steps={str(exact).lower()}")  # type: ignore[arg-type]
    summary = summary_of(recording)
    itl = summary["itl_s"]
    cache = summary["cache"]
    return (
        [msgspec.to_builtins(row) for row in recording.requests],
        itl,
        cache,
        summary["throughput"],
        summary["retractions"],
        recording.transfers,
    )  # type: ignore[return-value]


def check(world: tuple[list[object], list[str]]) -> None:
    from kvsim.errors import Infeasible

    specs, overrides = world
    outcomes = []
    for exact in (False, True):
        try:
            outcomes.append(comparable(specs, overrides, exact))
        except Infeasible as failure:
            outcomes.append(("fails", type(failure).__name__))  # type: ignore[arg-type]
    assert outcomes[0] == outcomes[1]


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(worlds())
def test_a_run_in_closed_form_equals_its_steps(world: tuple[list[object], list[str]]) -> None:
    check(world)


@pytest.mark.long
@settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(worlds())
def test_many_runs_in_closed_form_equal_their_steps(world: tuple[list[object], list[str]]) -> None:
    check(world)
