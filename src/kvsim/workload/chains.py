"""Block ids as runs of tokens: equal id, equal whole prefix. Checks that it is so, and makes it so where it is not."""

from __future__ import annotations

from bisect import bisect_right

from kvsim.content import Run, Runs

#: Ids made here start above every id of a block of a Mooncake file.
MADE = 1 << 55


class Chains:
    """Turns block ids into runs of tokens, checking that every id has one parent; otherwise (parent, id) pairs are interned.

    Most files number their ids in the order in which they come, so nearly all stand behind the number before them: of those only
    spans ``(first, last)`` are kept in which every id was seen, and by name the ids that stand behind another one.
    """

    def __init__(self, block: int) -> None:
        self.block = block
        self._spans: list[tuple[int, int]] = [(0, -1)]  # ascending; only the last one grows
        self._named: dict[int, int] = {}
        self._interned: dict[tuple[int, int], int] = {}

    def runs(self, ids: list[int], tokens: int) -> Runs:
        """Return the content of ``tokens`` tokens in blocks ``ids``; the last block may be partial: (-1, n) is a tail without an id."""
        block, named = self.block, self._named
        start, top = low, high = self._spans[-1]  # low, high: the span in which the last id was found
        out: list[Run] = []
        previous = first = -1
        length = 0
        for given in ids:
            if low <= given <= high:
                parent = named.get(given, given - 1)
            elif given == top + 1:
                low, high, top, parent = start, given, given, previous
                if previous != given - 1 or previous < 0:
                    named[given] = previous
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
        return _fitted(out, tokens, len(ids) * block)

    def _span_of(self, given: int) -> tuple[int, int] | None:
        """Return the span that holds an id, or None."""
        at = bisect_right(self._spans, (given, MADE)) - 1
        return self._spans[at] if at >= 0 and given <= self._spans[at][1] else None

    def _other(self, parent: int, given: int) -> int:
        """Return a fresh id for a block id that appears behind another parent: other content, so another token run."""
        return self._interned.setdefault((parent, given), MADE + 2 * len(self._interned))


def _fitted(out: list[Run], tokens: int, have: int) -> Runs:
    if have > tokens and out:
        first, count = out[-1]
        out[-1] = (first, count - (have - tokens))
    elif have < tokens:
        out.append((-1, tokens - have))  # a partial tail without an id: made unique by the caller
    return tuple(out)
