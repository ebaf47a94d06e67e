"""Token content as a short list of integer runs.

A token is an integer. A piece of text is a tuple of runs ``(first, count)`` meaning ``first, first+1, ...``;
adjacent runs that continue each other are always merged, so equal content has exactly one spelling
(the *canonical* form). A prompt of 100,000 tokens is typically two to five runs, so matching, cutting and
comparing cost per run, never per token. Everything here is exact to the token.
"""

from __future__ import annotations

from collections.abc import Iterable

Run = tuple[int, int]
Runs = tuple[Run, ...]

EMPTY: Runs = ()


def canonical(runs: Iterable[Iterable[int]]) -> Runs:
    """Return the one spelling of ``runs``: empty runs dropped, runs that continue each other merged.

    Raises ValueError for a negative count.
    """
    out: list[Run] = []
    for first, count in runs:
        if count < 0:
            raise ValueError(f"a run cannot have {count} tokens")
        if count == 0:
            continue
        if out and out[-1][0] + out[-1][1] == first:
            out[-1] = (out[-1][0], out[-1][1] + count)
        else:
            out.append((first, count))
    return tuple(out)


def length(runs: Runs) -> int:
    """Return the number of tokens."""
    total = 0
    for _, count in runs:
        total += count
    return total


def join(left: Runs, right: Runs) -> Runs:
    """Return ``left`` followed by ``right``, canonical if both were."""
    if not left:
        return right
    if not right:
        return left
    first, count = left[-1]
    if first + count == right[0][0]:
        return (*left[:-1], (first, count + right[0][1]), *right[1:])
    return left + right


def cut(runs: Runs, start: int, stop: int) -> Runs:
    """Return tokens ``[start, stop)``; positions beyond the end are clipped."""
    out: list[Run] = []
    at = 0
    for first, count in runs:
        end = at + count
        if end > start:
            lo = start - at if start > at else 0
            hi = stop - at if stop < end else count
            if hi > lo:
                out.append((first + lo, hi - lo))
        if end >= stop:
            break
        at = end
    return tuple(out)


def common(a: Runs, b: Runs) -> int:
    """Return the length of the longest common prefix, in tokens. Both must be canonical."""
    total = 0
    for (fa, ca), (fb, cb) in zip(a, b, strict=False):
        if fa != fb:
            return total
        if ca != cb:
            return total + (ca if ca < cb else cb)
        total += ca
    return total


def tokens(runs: Runs) -> list[int]:
    """Return every token: for tests and small worlds only."""
    return [first + i for first, count in runs for i in range(count)]
