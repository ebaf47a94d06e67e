"""Lesson 3, when is RAM worth the trip: a copy has a fixed cost and a rate, computing has a rate; and links queue."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from kvsim.report.style import BLUE, ORANGE, RED, DataTable, altair, dashes, finish, rows_of, scale
from kvsim.report.terminal import seconds
from kvsim.web.lessons.exercise import Exercise

PS = 1e-12
WAYS = {"load back": ORANGE, "compute again": BLUE}


@dataclass(frozen=True, slots=True)
class ToyTrip:
    """A toy server: prefill and link in tokens per second, and the fixed time of a copy in seconds."""

    prefill_per_s: float = 1000.0
    link_per_s: float = 4000.0
    setup_s: float = 0.3

    def load_s(self, tokens: float) -> float:
        """Return the time to load tokens back."""
        return self.setup_s + tokens / self.link_per_s

    def compute_s(self, tokens: float) -> float:
        """Return the time to compute them again."""
        return tokens / self.prefill_per_s

    @property
    def break_even_tokens(self) -> float:
        """The prefix length at which both take equally long; infinite if the link is the slower one."""
        gain = 1 / self.prefill_per_s - 1 / self.link_per_s
        return self.setup_s / gain if gain > 0 else float("inf")


def queue_wait_s(rate_per_s: float, service_s: float) -> float:
    """Return the mean wait in front of a link with Poisson arrivals and equal copies (M/D/1, Pollaczek-Khinchine); inf
    if overloaded.
    """
    load = rate_per_s * service_s
    return load * service_s / (2 * (1 - load)) if load < 1 else float("inf")


@cache
def anchor() -> Any:
    """Return the anchor machine, resolved."""
    from kvsim.api import load, resolve
    from kvsim.web.lessons.bytes import ANCHOR

    return resolve(load(ANCHOR))


def anchor_times(tokens: int) -> tuple[float, float]:
    """Return (seconds to load, seconds to compute) a prefix of so many tokens alone on the anchor machine."""
    from kvsim.cost.build import build_links, build_step_time

    links, time = build_links(anchor()), build_step_time(anchor())
    ticket = links.load(tokens, 0)
    loaded = links.finish_time(ticket, 0) * PS
    return loaded, time.prefill_ps(tokens, tokens * (tokens + 1), 0, 1, 0, 0, 0) * PS


def exercises() -> tuple[Exercise, ...]:
    """Return the exercises of lesson 3."""
    toy = ToyTrip()
    copy_s = 1000 / toy.link_per_s
    load_s, compute_s = anchor_times(32_000)
    return (
        Exercise(
            "trip-1",
            "Toy server: from how many tokens on is loading faster than computing?",
            toy.break_even_tokens,
            "tokens",
            "0.3 s / (1/1000 - 1/4000) s per token.",
            (
                (300, "that ignores that the copy itself takes time per token, too."),
                (1200, "that is when the copy's rate part alone costs 0.3 s."),
            ),
        ),
        Exercise(
            "trip-2",
            "Toy server: how many seconds does loading save for a prefix of 4,000 tokens?",
            toy.compute_s(4000) - toy.load_s(4000),
            "s",
            "4 s - (0.3 + 1) s.",
            (
                (3.0, "the fixed 0.3 s of the copy has to be paid, too."),
                (1.3, "that is the time of loading, not the saving."),
            ),
        ),
        Exercise(
            "trip-3",
            "Copies of 0.25 s each start at random times, 2 per second: how long does a copy wait for the link on average?",
            queue_wait_s(2, copy_s),
            "s",
            "Load 0.5: 0.5 x 0.25 / (2 x 0.5) s.",
            (
                (0.0, "the link is busy half of the time, and arrivals do not know it."),
                (0.25, "that is the copy itself, or the wait if copies varied a lot."),
            ),
        ),
        Exercise(
            "trip-4",
            "And at 3.6 copies per second?",
            queue_wait_s(3.6, copy_s),
            "s",
            "Load 0.9: the wait has grown ninefold although the rate has not even doubled.",
            ((0.225, "waits do not grow in proportion to the rate: they grow like 1 / (1 - load)."),),
        ),
        Exercise(
            "trip-5",
            "Anchor machine: how many times faster is loading 32,000 tokens than computing them (nothing else running)?",
            compute_s / load_s,
            "times",
            f"{compute_s:.3g} s against {load_s:.3g} s.",
            (),
            tolerance=0.1,
        ),
    )


def sentence(toy: ToyTrip) -> str:
    """Return the break-even in words."""
    length = toy.break_even_tokens
    if length == float("inf"):
        return "this link is not faster than prefill, so RAM never pays"
    return f"break-even at {length:,.0f} tokens"


def trip_chart(toy: ToyTrip, most: int = 4000) -> Any:
    """Return the time to load and to compute a prefix against its length."""
    alt = altair()
    data = [
        {"tokens": tokens, "way": way, "seconds": seconds}
        for tokens in range(0, most + 1, 100)
        for way, seconds in (("load back", toy.load_s(tokens)), ("compute again", toy.compute_s(tokens)))
    ]
    chart = (
        alt.Chart(rows_of(data))
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("tokens:Q", title="length of the prefix (tokens)"),
            y=alt.Y("seconds:Q", title="time (s)"),
            color=alt.Color("way:N", scale=scale(WAYS), title=None),
            strokeDash=alt.StrokeDash("way:N", scale=dashes(WAYS), title=None),
        )
    )
    return finish(chart, description="Time to load and to compute")


def wait_sentence(rate_per_s: float, service_s: float = 0.25) -> str:
    """Return load and wait in words."""
    return (
        f"Load {100 * rate_per_s * service_s:.0f} %: a copy waits "
        f"{queue_wait_s(rate_per_s, service_s):.3g} s on average and takes {service_s:g} s itself."
    )


def wait_chart(rate_per_s: float, service_s: float = 0.25) -> Any:
    """Return the mean wait against the rate, the chosen rate as a rule."""
    alt = altair()
    data = [{"rate": k / 20, "seconds": queue_wait_s(k / 20, service_s)} for k in range(79)]
    line = (
        alt.Chart(rows_of(data))
        .mark_line(color=BLUE, strokeWidth=2)
        .encode(x=alt.X("rate:Q", title="copies per second"), y=alt.Y("seconds:Q", title="mean wait (s)"))
    )
    rule = alt.Chart(rows_of([{"rate": rate_per_s}])).mark_rule(color=RED, strokeDash=[4, 2]).encode(x="rate:Q")
    return finish(line + rule, height=200, description="Wait in front of the link")


def anchor_table(lengths: tuple[int, ...] = (100, 1000, 4000, 16_000, 64_000)) -> DataTable:
    """Return load and compute time on the anchor machine for several prefix lengths."""
    rows = []
    for tokens in lengths:
        loaded, computed = anchor_times(tokens)
        rows.append((f"{tokens:,}", seconds(loaded), seconds(computed), f"{computed / loaded:.3g} times"))
    return DataTable(("prefix (tokens)", "load back", "compute again", "loading is faster"), tuple(rows))
