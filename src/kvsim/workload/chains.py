"""Block ids as runs of tokens: equal id, equal whole prefix. Checks that it is so, and makes it so where it is not."""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice

from kvsim.content import Run, Runs

#: Ids made here start above every id of a block of a Mooncake file.
MADE = 1 << 55
STRETCHES = 16  # a list of more stretches than this is taken id by id


class Chains:
    """Turns block ids into runs of tokens, checking that every id has one parent; otherwise (parent, id) pairs are interned.

    Most files number their ids in the order in which they come, so nearly all stand behind the number before them: of those only
    spans ``(first, last)`` are kept in which every id was seen, and by name the ids that stand behind another one.
    """

    def __init__(self, block: int) -> None:
        self.block = block
        self._spans: list[tuple[int, int]] = [(0, -1)]  # ascending; only the last one grows
        self._named: dict[int, int] = {}
        self._breaks: list[int] = []  # ascending: the named ids inside spans
        self._interned: dict[tuple[int, int], int] = {}

    def runs(self, ids: list[int], tokens: int) -> Runs:
        """Return the content of ``tokens`` tokens in blocks ``ids``; the last block may be partial: (-1, n) is a tail without an id."""
        block, size = self.block, len(ids)
        out: list[Run] = []
        at, previous = 0, -1
        named, spans = self._named, self._spans
        top = spans[-1][1]
        while at < size:
            given = ids[at]
            if given > top:
                taken = 1 if at + 1 == size or ids[at + 1] != given + 1 else _ascending(ids, at, size)
                self._add(given, taken, previous)
                top = given + taken - 1
            elif named.get(given, given - 1) != previous:
                taken = 0
            elif at + 1 == size or ids[at + 1] != given + 1:
                taken = 1 if given in named or self._stretch(given) else 0
            else:
                taken = _ascending(ids, at, min(at + self._stretch(given), size))
            if not taken or len(out) == STRETCHES:
                return _fitted(self._one_by_one(ids, at, out), tokens, size * block)
            if at and previous == given - 1:
                out[-1] = (out[-1][0], out[-1][1] + taken * block)
            else:
                out.append((given * block, taken * block))
            previous = given + taken - 1
            at += taken
        return _fitted(out, tokens, size * block)

    def _add(self, given: int, count: int, previous: int) -> None:
        """Note ``count`` new ids from ``given`` on, behind ``previous``."""
        start, top = self._spans[-1]
        if given > top + 1:
            self._spans.append((given, given + count - 1))
        else:
            self._spans[-1] = (start, given + count - 1)
            if previous == top and previous >= 0:
                return
        self._named[given] = previous
        self._breaks.append(given)

    def _stretch(self, given: int) -> int:
        """Return how many known ids from ``given`` on stand behind one another; 0 if it is in no span."""
        start, top = self._spans[-1]
        if given < start:
            span = self._span_of(given)
            if span is None:
                return 0
            top = span[1]
        following = bisect_right(self._breaks, given)
        end = self._breaks[following] if following < len(self._breaks) else top + 1
        return min(end, top + 1) - given

    def _one_by_one(self, ids: list[int], at: int, out: list[Run]) -> list[Run]:
        """Return ``out`` with the ids from ``at`` on, whatever they are."""
        block, named, breaks = self.block, self._named, self._breaks
        start, top = low, high = self._spans[-1]  # low, high: the span in which the last id was found
        first, length = out.pop() if out else (-1, 0)
        first, length = first // block, length // block
        previous = first + length - 1 if length else -1
        for given in islice(ids, at, None):
            if low <= given <= high:
                parent = named.get(given, given - 1)
            elif given == top + 1:
                low, high, top, parent = start, given, given, previous
                if previous != given - 1 or previous < 0:
                    named[given] = previous
                    breaks.append(given)
            elif (known := named.get(given)) is not None:
                parent = known
            elif start <= given <= top:
                low, high, parent = start, top, given - 1
            elif given < top and (span := self._span_of(given)):
                low, high = span
                parent = given - 1
            else:
                named[given] = parent = previous
                if given > top:
                    breaks.append(given)
                    self._spans[-1] = (start, top)
                    self._spans.append((given, given))
                    low = high = start = top = given
            own = given if parent == previous else self._other(previous, given)
            if own == previous + 1 and length:
                length += 1
            else:
                if length:
                    out.append((first * block, length * block))
                first, length = own, 1
            previous = own
        self._spans[-1] = (start, top)
        if length:
            out.append((first * block, length * block))
        return out

    def _span_of(self, given: int) -> tuple[int, int] | None:
        """Return the span that holds an id, or None."""
        at = bisect_right(self._spans, (given, MADE)) - 1
        return self._spans[at] if at >= 0 and given <= self._spans[at][1] else None

    def _other(self, parent: int, given: int) -> int:
        """Return a fresh id for a block id that appears behind another parent: other content, so another token run."""
        return self._interned.setdefault((parent, given), MADE + 2 * len(self._interned))


def _ascending(ids: list[int], at: int, end: int) -> int:
    """Return how many ids from ``at`` on, before ``end``, count up by one, found by bisection and then checked; 0 if the check fails."""
    if end <= at:
        return 0
    given = ids[at]
    base = given - at
    if ids[end - 1] - base != end - 1:
        low, end = at, end - 1
        while end - low > 1:
            middle = (low + end) // 2
            if ids[middle] - base == middle:
                low = middle
            else:
                end = middle
    return end - at if ids[at:end] == list(range(given, base + end)) else 0


def _fitted(out: list[Run], tokens: int, have: int) -> Runs:
    if have > tokens and out:
        first, count = out[-1]
        out[-1] = (first, count - (have - tokens))
    elif have < tokens:
        out.append((-1, tokens - have))  # a partial tail without an id: made unique by the caller
    return tuple(out)
