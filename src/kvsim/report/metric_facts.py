"""The facts behind engine metrics at given times: gauges, cumulative counters and histograms of one replica."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.measure.latency import tpot_ps
from kvsim.record.recording import CACHE_COLUMNS, STEP_COLUMNS
from kvsim.report.frames import PS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np
    import numpy.typing as npt

    from kvsim.config.resolved import Capacity
    from kvsim.record.recording import Recording, RequestRow

    Floats = npt.NDArray[np.float64]


class Facts:
    """One replica's recording, asked for values at sample times (ps, ascending)."""

    def __init__(self, recording: Recording, capacity: Capacity, replica: int, times: list[int]) -> None:
        import numpy as np

        self.capacity = capacity
        self.times = np.asarray(times, dtype=np.float64)
        self.rows = [row for row in recording.requests if row.replica == replica]
        self.admitted = [row for row in self.rows if row.admitted_ps is not None]
        self.steps = [row for row in recording.steps if row[0] == replica]
        self.cache = [row for row in recording.cache if row[0] == replica]
        self.transfers = [row for row in recording.transfers if row[0] == replica]
        self.gaps = [row for row in recording.gaps if row[0] == replica]

    # ---- gauges and counters
    def series(self, fact: str) -> dict[str, list[float]]:
        """Return the values of a gauge or counter at each sample time, by value of its extra label ("" without one)."""
        if fact == "cached_by_source":
            return {
                "device": self._list(self._by_admission(lambda r: r.device_hit)),
                "host": self._list(self._by_admission(lambda r: r.host_hit)),
            }
        if fact == "finished_by_reason":
            return {"length": self._list(self._ended("finished")), "abort": self._list(self._ended("aborted"))}
        return {"": self._list(getattr(self, f"_{fact}")())}

    @staticmethod
    def _list(values: Floats) -> list[float]:
        return [float(value) for value in values]

    def _held(self, column: str) -> Floats:
        """Return the value of a steps column at each sample: that of the last step that ended."""
        import numpy as np

        if not self.steps:
            return np.zeros(len(self.times))
        place = STEP_COLUMNS.index(column)
        ends = np.fromiter((row[3] for row in self.steps), dtype=np.float64)
        values = np.fromiter((row[place] for row in self.steps), dtype=np.float64)
        order = np.argsort(ends, kind="stable")
        at = np.searchsorted(ends[order], self.times, side="right") - 1
        return np.where(at >= 0, values[order][np.maximum(at, 0)], 0.0)

    def _cumulative(self, when: Iterable[int], amount: Iterable[float]) -> Floats:
        """Return the sum of amounts up to and including each sample time."""
        import numpy as np

        t = np.fromiter(when, dtype=np.float64)
        if not len(t):
            return np.zeros(len(self.times))
        order = np.argsort(t, kind="stable")
        total = np.concatenate([[0.0], np.cumsum(np.fromiter(amount, dtype=np.float64)[order])])
        return total[np.searchsorted(t[order], self.times, side="right")]

    def _by_admission(self, amount: Callable[[RequestRow], float]) -> Floats:
        return self._cumulative((row.admitted_ps or 0 for row in self.admitted), (amount(row) for row in self.admitted))

    def _step_sum(self, column: str) -> Floats:
        place = STEP_COLUMNS.index(column)
        return self._cumulative((row[3] for row in self.steps), (row[place] for row in self.steps))

    def _cache_sum(self, *columns: str) -> Floats:
        places = [CACHE_COLUMNS.index(column) for column in columns]
        return self._cumulative((row[1] for row in self.cache), (sum(row[p] for p in places) for row in self.cache))

    def _ended(self, status: str) -> Floats:
        rows = [row for row in self.rows if row.status == status and row.end_ps is not None]
        return self._cumulative((row.end_ps or 0 for row in rows), (1.0 for _ in rows))

    def _constant(self, value: float) -> Floats:
        import numpy as np

        return np.full(len(self.times), float(value))

    def _presence(self, start: Callable[[RequestRow], int | None], end: Callable[[RequestRow], int | None]) -> Floats:
        entered = [t for row in self.rows if (t := start(row)) is not None]
        left = [t for row in self.rows if start(row) is not None and (t := end(row)) is not None]
        return self._cumulative(entered, [1.0] * len(entered)) - self._cumulative(left, [1.0] * len(left))

    def _running(self) -> Floats:
        return self._presence(lambda r: r.admitted_ps, lambda r: r.end_ps)

    def _waiting(self) -> Floats:
        return self._presence(lambda r: r.arrival_ps, lambda r: r.admitted_ps if r.admitted_ps is not None else r.end_ps)

    def _device_locked(self) -> Floats:
        return self._held("device_used") - self._held("device_evictable")

    def _device_share(self) -> Floats:
        return self._device_locked() / max(self.capacity.device_tokens, 1)

    def _host_used(self) -> Floats:
        return self._held("host_used")

    def _device_tokens(self) -> Floats:
        return self._constant(self.capacity.device_tokens)

    def _host_tokens(self) -> Floats:
        return self._constant(self.capacity.host_tokens)

    def _prompt(self) -> Floats:
        return self._by_admission(lambda r: r.prompt_tokens)

    def _device_hit(self) -> Floats:
        return self._by_admission(lambda r: r.device_hit)

    def _host_hit(self) -> Floats:
        return self._by_admission(lambda r: r.host_hit)

    def _device_miss(self) -> Floats:
        return self._by_admission(lambda r: r.prompt_tokens - r.device_hit)

    def _hit_rate(self) -> Floats:
        import numpy as np

        prompt = np.diff(self._prompt(), prepend=0.0)
        hits = np.diff(self._by_admission(lambda r: r.device_hit + r.host_hit), prepend=0.0)
        return np.divide(hits, prompt, out=np.zeros_like(hits), where=prompt > 0)

    def _output(self) -> Floats:
        return self._step_sum("emitted")

    def _output_per_s(self) -> Floats:
        import numpy as np

        return np.diff(self._output(), prepend=0.0) / (np.diff(self.times, prepend=0.0) * PS)

    def _retracted(self) -> Floats:
        return self._step_sum("retracted")

    def _retracted_now(self) -> Floats:
        import numpy as np

        return np.diff(self._retracted(), prepend=0.0)

    def _finished(self) -> Floats:
        return self._ended("finished")

    def _aborted(self) -> Floats:
        return self._ended("aborted")

    def _evicted(self) -> Floats:
        return self._cache_sum("demoted", "dropped")

    def _loaded(self) -> Floats:
        return self._cache_sum("loaded")

    # ---- histograms
    def histogram(self, fact: str, bounds: tuple[float, ...]) -> tuple[Any, Floats]:
        """Return cumulative counts (sample x bound, the last column +Inf) and sums in seconds at every sample time."""
        import numpy as np

        if fact == "itl_s":
            return self._gap_histogram(bounds)
        pairs = list(self._observations(fact))
        when = np.fromiter((t for t, _ in pairs), dtype=np.float64)
        values = np.fromiter((v for _, v in pairs), dtype=np.float64) * PS
        at = np.searchsorted(self.times, when, side="left")
        keep = at < len(self.times)
        counts = np.zeros((len(self.times), len(bounds) + 1))
        sums = np.zeros(len(self.times))
        place = np.searchsorted(np.asarray(bounds), values, side="left")
        np.add.at(counts, (at[keep], place[keep]), 1.0)
        np.add.at(sums, at[keep], values[keep])
        return counts.cumsum(axis=1).cumsum(axis=0), sums.cumsum()

    def _observations(self, fact: str) -> Iterable[tuple[int, float]]:
        """Yield (time of observation, duration in ps)."""
        for row in self.rows:
            first, admitted, end = row.first_token_ps, row.admitted_ps, row.end_ps
            done = end is not None and row.status == "finished"
            if fact == "queue_s" and admitted is not None:
                yield admitted, admitted - row.arrival_ps
            elif fact == "ttft_s" and first is not None:
                yield first, first - row.arrival_ps
            elif fact == "e2e_s" and done:
                yield end or 0, (end or 0) - row.arrival_ps
            elif fact == "prefill_s" and done and first is not None and admitted is not None:
                yield end or 0, first - admitted
            elif fact == "decode_s" and done and first is not None:
                yield end or 0, (end or 0) - first
            elif fact == "tpot_s" and done and (tpot := tpot_ps(row)) is not None:
                yield end or 0, tpot
        if fact == "load_s":
            yield from ((row[4], row[4] - row[3]) for row in self.transfers if row[1] == "h2d")

    def _gap_histogram(self, bounds: tuple[float, ...]) -> tuple[Any, Floats]:
        import numpy as np

        pieces = [piece for row in self.gaps for piece in self._pieces(row)]
        counts = np.zeros((len(self.times), len(bounds) + 1))
        sums = np.zeros(len(self.times))
        if pieces:
            at, gap, count, repeat, slope = np.asarray(pieces, dtype=np.float64).T
            inside = np.asarray(bounds) / PS
            fits = np.where(
                slope[:, None] > 0,
                np.clip(np.floor((inside[None, :] - gap[:, None]) / np.maximum(slope, 1)[:, None]) + 1, 0, repeat[:, None]),
                np.where(gap[:, None] <= inside[None, :], repeat[:, None], 0.0),
            )
            fits = np.column_stack([fits, repeat]) * count[:, None]
            np.add.at(counts, at.astype(int), fits)
            np.add.at(sums, at.astype(int), count * (gap * repeat + slope * repeat * (repeat - 1) / 2) * PS)
        return counts.cumsum(axis=0), sums.cumsum()

    def _pieces(self, row: tuple[Any, ...]) -> Iterable[tuple[int, int, int, int, int]]:
        """Cut a run of gaps at the sample times: (sample, first gap, count, repeat, slope)."""
        import bisect

        _, end, gap, count, repeat, slope = row
        done, size = 0, len(self.times)
        while done < repeat:
            now = _ends_at(end, gap, slope, done)
            at = bisect.bisect_left(self.times, now)
            if at >= size:
                return
            limit, low, high = self.times[at], done, repeat - 1
            while low < high:
                middle = (low + high + 1) // 2
                if _ends_at(end, gap, slope, middle) <= limit:
                    low = middle
                else:
                    high = middle - 1
            yield at, gap + done * slope, count, low + 1 - done, slope
            done = low + 1


def _ends_at(end: int, gap: int, slope: int, i: int) -> int:
    """Return when the i-th gap of a run ended (gap 0 ended at ``end``)."""
    return end + i * gap + slope * (i * (i + 1) // 2)
