"""Block ids as runs of tokens: equal id, equal whole prefix. Checks that it is so, and makes it so where it is not."""

from __future__ import annotations

from bisect import bisect_right

from kvsim.content import Run, Runs

#: Ids made here start above every id of a block of a Mooncake file.
MADE = 1 << 55


class Chains:
    """Turns block ids into runs of tokens, checking that every id has one parent; otherwise (parent, id) pairs are interned.

    Most files number their ids in the order in which they come, so nearly all stand behind the number before them: of those only
    a span ``[start, top]`` is kept in which every id was seen, and by name the ids in it that stand behind another one.
    """

    def __init__(self, block: int) -> None:
        self.block = block
        self._start, self._top = 0, -1
        self._spans: list[tuple[int, int]] = []  # older spans, ascending
        self._named: dict[int, int] = {}
        self._interned: dict[tuple[int, int], int] = {}

    def runs(self, ids: list[int], tokens: int) -> Runs:
        """Return the content of ``tokens`` tokens in blocks ``ids``; the last block may be partial: (-1, n) is a tail without an id."""
        block, named, start, top = self.block, self._named, self._start, self._top
        out: list[Run] = []
        previous = first = -1
        length = 0
        for given in ids:
            if start <= given <= top:
                parent = named.get(given, given - 1)
            elif given == top + 1:
                top = self._top = given
                parent = previous
                if previous != given - 1 or previous < 0:
                    named[given] = previous
            else:
                known = named.get(given)
                parent = self._elsewhere(given, previous) if known is None else known
                start, top = self._start, self._top
            own = given if parent == previous else self._other(previous, given)
            if own == previous + 1 and length:
                length += 1
            else:
                if length:
                    out.append((first * block, length * block))
                first, length = own, 1
            previous = own
        if length:
            out.append((first * block, length * block))
        return _fitted(out, tokens, len(ids) * block)

    def _elsewhere(self, given: int, previous: int) -> int:
        """Return the parent of an id outside the newest span that has no name, ``previous`` if it is new."""
        at = bisect_right(self._spans, (given, MADE)) - 1
        if at >= 0 and given <= self._spans[at][1]:
            return given - 1
        if given > self._top:
            if self._top >= self._start:
                self._spans.append((self._start, self._top))
            self._start = self._top = given
        self._named[given] = previous
        return previous

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
