"""Lesson 2, why a prefix cache works and how it fails: small worlds in which every hit can be counted by hand."""

from __future__ import annotations

from functools import cache

from kvsim.report.style import DataTable
from kvsim.web.lessons.exercise import Exercise
from kvsim.web.world import Settings, World, build_world

FIRST = """
# seconds  prompt                    output
0          sys:400 anna:200          20
2          sys ben:250               20     # the same system prompt
4          sys anna @1 anna2:50      20     # Anna's second turn: it contains the first answer
6          date:1 sys cleo:200       20     # something new in front: a date
"""


@cache
def world(page_size: int = 1) -> World:
    """Return the lesson's small world with pages of so many tokens."""
    return build_world(FIRST, settings(page_size))


def hits(made: World) -> dict[str, int]:
    """Return the tokens each request found in the cache, by its number."""
    return {row.id: row.device_hit + row.host_hit for row in made.recording.requests}


def exercises() -> tuple[Exercise, ...]:
    """Return the exercises of lesson 2."""
    found, paged = hits(world()), hits(world(64))
    return (
        Exercise(
            "prefix-1",
            "How many tokens does request 2 find in the cache?",
            found["2"],
            "tokens",
            "The system prompt is the same; what follows is not.",
            (
                (600, "only the common beginning counts, and Ben's text is not Anna's."),
                (0, "the system prompt was computed for request 1."),
            ),
        ),
        Exercise(
            "prefix-2",
            "How many tokens does Anna's second turn (request 3) find?",
            found["3"],
            "tokens",
            "400 + 200 + 19: KV of the last generated token is never computed, so the answer is cached but for one token.",
            (
                (620, "close: the last token of an answer is generated but never computed, so its KV is not there."),
                (600, "the first answer is part of the second prompt, and it was cached while it was generated."),
                (400, "Anna's own text is still there too."),
            ),
            tolerance=1e-6,
        ),
        Exercise(
            "prefix-3",
            "How many tokens does request 4 find, which has one new token in front?",
            found["4"],
            "tokens",
            "A prefix cache compares from the first token on: one new word in front and nothing matches.",
            ((400, "the system prompt is there, but not at the beginning any more."),),
        ),
        Exercise(
            "prefix-4",
            "And request 2, if the cache keeps whole pages of 64 tokens?",
            paged["2"],
            "tokens",
            "6 whole pages: 384. The rest of the seventh page has to be computed again.",
            ((400, "only whole pages are shared."), (448, "a page that matches in part does not match.")),
            tolerance=1e-6,
        ),
    )


def settings(page_size: int) -> Settings:
    """Return the lesson's server with pages of so many tokens: roomy, without a host tier."""
    return Settings(device_tokens=5120, host_tokens=0, page_size=page_size)


def hit_table(single: World, paged: World) -> DataTable:
    """Return what each request found, with pages of one token and with larger ones."""
    found, whole = hits(single), hits(paged)
    rows = tuple(
        (
            row.id,
            single.script.label(single.script.specs[int(row.id) - 1].prompt),
            str(row.prompt_tokens),
            str(found[row.id]),
            str(whole[row.id]),
        )
        for row in sorted(single.recording.requests, key=lambda r: int(r.id))
    )
    return DataTable(("request", "prompt", "tokens", "found, page 1", "found, page 64"), rows)


#: The script the lab starts with: a device that is too small, and a host tier that catches what leaves it.
TIERS = """
0   sys:400 anna:200        20
1   sys ben:250             20
2   sys cleo:300            20
3   sys anna @1 anna2:50    20   # Anna comes back: her text is on the host
"""
