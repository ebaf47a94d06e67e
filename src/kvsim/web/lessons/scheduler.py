"""Lesson 5, what the scheduler does to your latency: prefill first, batch cap, retraction, speculation."""

from __future__ import annotations

from functools import cache
from typing import Any

from kvsim.report.style import BLUE, GREEN, DataTable, altair, finish, rows_of, scale
from kvsim.report.terminal import seconds
from kvsim.web.lessons.exercise import Exercise
from kvsim.web.world import Settings, World, build_world

PS = 1e-12

#: One request decodes; at 0.5 s a long prompt arrives.
INTERRUPTED = """
0    short:100   200
0.5  long:2000   10
"""
#: Four requests at once.
CROWD = "\n".join(f"0 user{i}:100 100" for i in range(4))
#: Two requests that together outgrow 1,000 slots: the second was admitted because the first seemed to need little more.
TIGHT = """
0    a:100  700
4    b:100  300
"""


@cache
def interrupted(chunk: int | None = None) -> World:
    """Return the world in which a long prompt arrives during decode; ``chunk``: chunked prefill size."""
    return build_world(INTERRUPTED, Settings(device_tokens=5000, host_tokens=0, chunked_prefill_size=chunk))


@cache
def crowd(cap: int) -> World:
    """Return the world of four requests at once with a batch cap."""
    return build_world(CROWD, Settings(device_tokens=5000, host_tokens=0, max_running_requests=cap))


@cache
def tight() -> World:
    """Return the world in which memory runs out while both requests decode."""
    return build_world(TIGHT, Settings(device_tokens=1000, host_tokens=0))


def longest_gap_s(made: World) -> float:
    """Return the longest time anybody waited between two tokens, in seconds."""
    longest: int = max(gap + (repeat - 1) * slope for _, _, gap, _, repeat, slope in made.recording.gaps)
    return longest * PS


def last_ttft_s(made: World) -> float:
    """Return the longest time to the first token, in seconds."""
    return max((row.first_token_ps or 0) - row.arrival_ps for row in made.recording.requests) * PS


def speculative_tpot(step_s: float, accepted: float, cost: float) -> float:
    """Return the time per token when a step costs ``cost`` times as much and yields ``accepted`` tokens."""
    return step_s * cost / accepted


def exercises() -> tuple[Exercise, ...]:
    """Return the exercises of lesson 5."""
    whole, chunked = longest_gap_s(interrupted()), longest_gap_s(interrupted(500))
    narrow = last_ttft_s(crowd(2))
    lost = sum(row.retracted_tokens for row in tight().recording.requests)
    return (
        Exercise(
            "scheduler-1",
            "A request decodes at 10 ms per token; a prompt of 2,000 tokens arrives (prefill: "
            "1,000 tokens/s). Longest gap between two tokens, in s?",
            whole,
            "s",
            "Prefill goes first: everybody who decodes waits for all of it.",
            (
                (0.01, "decode and prefill do not run side by side: prefill goes first."),
                (2.0, "and then the step that produces the token itself."),
            ),
            tolerance=0.004,
        ),
        Exercise(
            "scheduler-2",
            "The same with chunks of 500 tokens (without mixed batches)?",
            chunked,
            "s",
            "Chunks follow each other without a decode step between them: without mixed batches chunking bounds memory, not the gap.",
            (
                (0.5, "that is what one expects; but the next chunk is prefill, too, and prefill goes first."),
                (0.51, "the next chunk is prefill, too, and prefill goes first."),
            ),
            tolerance=0.004,
        ),
        Exercise(
            "scheduler-3",
            "4 requests at once (100 tokens in, 100 out), at most 2 run: the longest time to the first token, in s?",
            narrow,
            "s",
            "The second pair waits until the first has finished: their prefill, their 99 decode steps, then its own prefill.",
            ((0.4, "that would be without the cap."), (0.2, "that is the first pair.")),
            tolerance=0.02,
        ),
        Exercise(
            "scheduler-4",
            "1,000 slots. Request a: 100 tokens in, 700 out. 4 s later request b: 100 "
            "in, 300 out. When memory runs out, how "
            "many computed tokens does b lose?",
            lost,
            "tokens",
            "The newest request gives up its KV and starts again later; its prompt is still in the tree, its answer is not.",
            (
                (lost + 100, "the prompt's KV stays in the tree as long as nobody needs the room."),
                (0, "100 + 700 + 100 + 300 tokens do not fit into 1,000 slots."),
            ),
            tolerance=0.03,
        ),
        Exercise(
            "scheduler-5",
            "Speculation: a step costs 1.5 times as much and yields 3 tokens. 10 ms per step before: what is the time per token, in ms?",
            1e3 * speculative_tpot(0.010, 3.0, 1.5),
            "ms",
            "10 ms x 1.5 / 3.",
            ((3.3333, "the step has become dearer, too."), (15, "that is the step; it yields 3 tokens.")),
            tolerance=0.02,
        ),
    )


def gap_sentence(made: World) -> str:
    """Return the longest wait between two tokens in words."""
    return f"Longest wait between two tokens of an answer: {longest_gap_s(made):.3g} s (without the newcomer: 0.01 s)."


def steps_chart(made: World) -> Any:
    """Return the steps over time, one bar each, by kind."""
    alt = altair()
    data = [{"start": row[2] * PS, "stop": row[3] * PS, "kind": row[1], "new": row[8], "batch": row[5]} for row in made.recording.steps]
    colours = {"prefill": BLUE, "decode": GREEN}
    chart = (
        alt.Chart(rows_of(data))
        .mark_bar(height=18)
        .encode(
            x=alt.X("start:Q", title="simulated time (s)"),
            x2="stop:Q",
            y=alt.Y("kind:N", sort=list(colours), title=None),
            color=alt.Color("kind:N", scale=scale(colours), legend=None),
            tooltip=["kind:N", "start:Q", "stop:Q", "new:Q", "batch:Q"],
        )
    )
    return finish(chart, height=90, description="Steps over time")


def cap_table() -> DataTable:
    """Return first and last token of the crowd for every batch cap."""
    rows = []
    for cap in (1, 2, 3, 4):
        made = crowd(cap).recording
        ends = max(row.end_ps or 0 for row in made.requests) * PS
        rows.append((str(cap), f"{last_ttft_s(crowd(cap)):.3g} s", f"{ends:.3g} s"))
    return DataTable(("cap", "longest time to first token", "all done after"), tuple(rows))


def retraction_table() -> DataTable:
    """Return what happened to the two requests that did not fit together."""
    rows = tuple(
        (
            "ab"[int(row.id) - 1],
            str(row.retractions),
            str(row.retracted_tokens),
            f"{((row.end_ps or 0) - row.arrival_ps) * PS:.3g} s",
        )
        for row in sorted(tight().recording.requests, key=lambda r: int(r.id))
    )
    return DataTable(("request", "retractions", "computed tokens lost", "time in the system"), rows)


def anchor_table(batches: tuple[int, ...] = (1, 4, 16, 64, 128), context: int = 20_000) -> DataTable:
    """Return the decode step of the anchor machine for several batch sizes."""
    from kvsim.cost.build import build_step_time
    from kvsim.web.lessons.trip import anchor

    time = build_step_time(anchor())
    rows = []
    for batch in batches:
        step = time.decode_ps(batch, batch * context) * PS
        rows.append((str(batch), seconds(step), f"{batch / step:,.0f} tokens/s"))
    return DataTable(("requests in the step", "step = time per token of each", "all together"), tuple(rows))
