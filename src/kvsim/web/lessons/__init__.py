"""The arithmetic and small worlds behind the lessons in docs/lessons, and exercises that check answers.

A right answer is computed by the library it teaches, never typed in; typical wrong answers carry what went wrong.
"""

from __future__ import annotations

from kvsim.web.lessons.exercise import Exercise, Verdict

__all__ = ["Exercise", "Verdict", "exercises", "LESSONS"]

#: Lesson -> (title, minutes, what it shows).
LESSONS: dict[str, tuple[str, int, str]] = {
    "bytes": ("Where do the bytes go?", 30, "KV bytes per token, the pool, the host tier per rank and in total"),
    "prefix": ("Why a prefix cache works, and how it fails", 40, "prefixes, pages, the last token, one changed word"),
    "trip": ("When is RAM worth the trip?", 40, "load back or recompute: break-even; the link as a queue"),
    "knee": ("Why the knee is sharp", 40, "working set, LRU, scans, the ratio"),
    "scheduler": ("What the scheduler does to your latency", 45, "prefill first, batch cap, retraction, speculation"),
}


def exercises(lesson: str) -> tuple[Exercise, ...]:
    """Return the exercises of a lesson by its key in LESSONS."""
    import importlib

    module = importlib.import_module(f"kvsim.web.lessons.{lesson}")
    found: tuple[Exercise, ...] = module.exercises()
    return found
