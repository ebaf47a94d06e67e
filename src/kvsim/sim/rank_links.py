"""The links of ranks in lockstep: each rank copies for itself, over its own GPUs' links."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.cost.links import Links


class RankLinks:
    """One ``Links`` per rank, drained and asked as one.

    Each rank has the rate it would have if all ranks copied at once, so what the GPUs share (a switch, host memory) is never shared too
    generously.
    """

    def __init__(self, ranks: list[Links]) -> None:
        self.ranks = ranks

    def next_done(self, now: int) -> int | None:
        """Return when the next copy of any rank ends, or None if none is under way."""
        ends = [end for links in self.ranks if (end := links.next_done(now)) is not None]
        return min(ends, default=None)

    def drain_completed(self) -> list[tuple[str, int, int, int, int, int]]:
        """Return every rank's copies not returned before, by submission."""
        return sorted((row for links in self.ranks for row in links.drain_completed()), key=lambda row: row[1:3])


def links_of_rank(links: Links | RankLinks, rank: int) -> Links:
    """Return the links of one rank; an engine without ranks has one set."""
    return links.ranks[rank] if isinstance(links, RankLinks) else links
