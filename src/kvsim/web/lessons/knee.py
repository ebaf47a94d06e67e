"""Lesson 4, why the knee is sharp: users that come back in turn, and a cache that is a little too small or just large
enough.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from kvsim.report.style import BLUE, GREEN, RED, DataTable, altair, finish, rows_of, scale
from kvsim.web.lessons.bytes import anchor_capacity
from kvsim.web.lessons.exercise import Exercise
from kvsim.web.world import Settings, World, build_world

USERS, PROMPT, ROUNDS, OUTPUT = 5, 200, 4, 2


def script(users: int = USERS, rounds: int = ROUNDS, *, scan: int = 0) -> str:
    """Return a script in which users come back one after the other; ``scan``: a request of so many new tokens in each
    round.
    """
    lines, clock = [], 0
    for turn in range(rounds):
        for user in range(users):
            lines.append(f"{clock} user{user}:{PROMPT} {OUTPUT}")
            clock += 1
        if scan:
            lines.append(f"{clock} scan{turn}:{scan} {OUTPUT}")
            clock += 1
    return "\n".join(lines)


@cache
def world(host_tokens: int, *, users: int = USERS, scan: int = 0, eviction: str = "lru") -> World:
    """Return the lesson's world: a device of 500 tokens and a host tier of so many."""
    return build_world(script(users, scan=scan), Settings(device_tokens=500, host_tokens=host_tokens, eviction=eviction))


def hit_rate(made: World, *, skip: int = 0) -> float:
    """Return hit tokens / prompt tokens of all but the first ``skip`` requests."""
    rows = [row for row in made.recording.requests if int(row.id) > skip]
    return sum(row.device_hit + row.host_hit for row in rows) / sum(row.prompt_tokens for row in rows)


def curve(sizes: tuple[int, ...] = (0, 200, 400, 600, 800, 1000, 1200, 1500)) -> list[tuple[int, float]]:
    """Return (host tokens, hit rate) of the returning users for several host tiers."""
    return [(size, hit_rate(world(size))) for size in sizes]


def working_set() -> int:
    """Return the tokens that must be kept so that everybody finds his own: prompt and all but the last answer token
    each.
    """
    return USERS * (PROMPT + OUTPUT - 1)


def exercises() -> tuple[Exercise, ...]:
    """Return the exercises of lesson 4."""
    small, large = world(400), world(1500)
    scanned = world(1500, scan=450)
    return (
        Exercise(
            "knee-1",
            "5 users with 200 tokens each come back in turn; device and host keep at most 500 and 400 tokens. Hit rate in %?",
            100 * hit_rate(small),
            "%",
            "LRU throws out exactly the one who comes next: a cache that holds 80 % of the users serves nobody.",
            (
                (80, "that would be right if users came back in random order."),
                (40, "that would need the cache to keep two users, LRU keeps the wrong ones."),
            ),
        ),
        Exercise(
            "knee-2",
            "With a host tier of 1,500 tokens: hit rate in % of all 20 requests?",
            100 * hit_rate(large),
            "%",
            "Only the 5 first visits and each prompt's last token, which is always computed, miss.",
            (
                (100, "the first visit of each user finds nothing, and the last prompt token is always computed."),
                (75, "nearly: one token of each prompt is always computed, to get the first output token."),
            ),
            tolerance=0.002,
        ),
        Exercise(
            "knee-3",
            "How many tokens is the working set (what must be kept so that everybody finds his own)?",
            working_set(),
            "tokens",
            "5 x (200 prompt tokens + 1 cached answer token).",
            ((1000, "nearly: the cached token of each answer counts, too."),),
            tolerance=0.003,
        ),
        Exercise(
            "knee-4",
            "In each round somebody sends 450 tokens that never come back; host 1,500. Hit rate in % of the users' and scanner's tokens?",
            100 * hit_rate(scanned),
            "%",
            "What is never used again takes room from what is, and counts as missed itself.",
            ((100 * hit_rate(large), "the scan's own tokens miss, too."),),
            tolerance=0.02,
        ),
    )


def knee_chart(host_tokens: int, eviction: str = "lru") -> Any:
    """Return hit rate against the size of the host tier, the working set and the chosen size as rules."""
    alt = altair()
    data = [{"tokens": size, "percent": 100 * hit_rate(world(size, eviction=eviction))} for size in range(0, 1501, 100)]
    line = (
        alt.Chart(rows_of(data))
        .mark_line(point=True, color=BLUE)
        .encode(
            x=alt.X("tokens:Q", title="host tier (tokens)"),
            y=alt.Y("percent:Q", title="hit rate (%)", scale=alt.Scale(domain=[0, 100])),
        )
    )
    marks = [{"tokens": working_set(), "what": "working set"}, {"tokens": host_tokens, "what": "chosen"}]
    rules = (
        alt.Chart(rows_of(marks))
        .mark_rule(strokeDash=[4, 2])
        .encode(x="tokens:Q", color=alt.Color("what:N", scale=scale({"working set": GREEN, "chosen": RED}), title=None))
    )
    return finish(line + rules, description="Hit rate against the host tier")


def anchor_table(ratios: tuple[float, ...] = (0, 1, 2, 4, 8)) -> DataTable:
    """Return what each ratio means on the anchor machine: tokens, RAM, and whether it fits."""
    rows = []
    for ratio in ratios:
        capacity = anchor_capacity(ratio)
        fits = "; ".join(capacity.infeasible) or "yes"
        rows.append((f"{ratio:g}", f"{capacity.host_tokens:,}", f"{capacity.host_bytes_total / 1e9:,.0f} GB", fits))
    return DataTable(("ratio", "host tokens", "host RAM in total", "fits"), tuple(rows))
