"""aiconfigurator-core as a source of step times: an optional library, asked once per point of a grid and interpolated.

Where it is known to be wrong is said in ``notes`` (compared with public measurements, see docs/background/time.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from kvsim.cost.piecewise import Curve, PiecewiseDecode
from kvsim.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from kvsim.config.resolved import Resolved

PS_PER_MS = 1e9
#: Contexts, batches, new and cached tokens of the grid: close enough for straight lines between neighbours.
CONTEXTS = (1, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
NEW_TOKENS = (16, 64, 256, 1024, 2048, 4096, 8192, 16384)
CACHED_TOKENS = (0, 2048, 8192, 32768, 65536, 131072, 262144)


class Estimator(Protocol):
    """The part of aiconfigurator-core's EngineHandle that is used; milliseconds."""

    def decode_step_latency(self, batch: int, context: int, osl: int) -> float:
        """Return ms of a decode step at equal contexts."""

    def predict_prefill_latency(self, batch: int, isl: int, prefix: int) -> float:
        """Return ms of a prefill; ``isl`` includes the cached prefix."""


class EstimatedTime(PiecewiseDecode):
    """Implements ``StepTime`` from an estimator; every grid point is asked at most once, when first needed.

    Decode is linear in context between grid points and in batch between grid batches, a sequence's context being the
    mean; prefill is bilinear in new and cached tokens. Beyond the grid the last straight line goes on, and ``notes``
    say so.
    """

    def __init__(self, estimator: Estimator, layers: int, notes: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.layers, self._estimator, self._notes = layers, estimator, notes
        self._decode: dict[tuple[int, int], float] = {}
        self._prefill: dict[tuple[int, int], float] = {}
        self.beyond = 0

    def notes(self) -> list[str]:
        """Return the estimator's known errors, and how often its grid was left."""
        left = [f"aiconfigurator: {self.beyond} steps lie beyond its grid and were extended linearly"] if self.beyond else []
        return [*self._notes, *left]

    def _decode_ms(self, batch: int, context: int) -> float:
        key = (batch, context)
        if key not in self._decode:
            self._decode[key] = float(self._estimator.decode_step_latency(batch, context, 2))
        return self._decode[key]

    def _prefill_ms(self, new: int, cached: int) -> float:
        key = (new, cached)
        if key not in self._prefill:
            self._prefill[key] = float(self._estimator.predict_prefill_latency(1, new + cached, cached))
        return self._prefill[key]

    def _make_curve(self, batch: int) -> Curve:
        if batch > BATCHES[-1]:
            self.beyond += 1
        low, high = _neighbours(BATCHES, batch)
        share = (batch - low) / (high - low)
        starts = [context * batch for context in CONTEXTS]
        ms = [self._decode_ms(low, c) + (self._decode_ms(high, c) - self._decode_ms(low, c)) * share for c in CONTEXTS]
        values = [max(1, round(value * PS_PER_MS)) for value in ms]
        for i in range(1, len(values)):
            values[i] = max(values[i], values[i - 1])
        slopes = [(v1 - v0) // (s1 - s0) for (s0, v0), (s1, v1) in pairwise(zip(starts, values, strict=True))]
        return [0, *starts], [values[0], *values], [0, *slopes, slopes[-1]]

    def prefill_ps(
        self,
        new_tokens: int,
        pairs2: int,
        cached_tokens: int,
        prefills: int,
        decode_batch: int,
        sum_context: int,
        max_context: int,
    ) -> int:
        """Return the time of a step that computes prompt tokens; several requests count as one with the same attention
        pairs."""
        cached = max(0, (pairs2 // max(1, new_tokens) - new_tokens - 1) // 2)
        if new_tokens > NEW_TOKENS[-1] or cached > CACHED_TOKENS[-1]:
            self.beyond += 1
        time = _bilinear(self._prefill_ms, NEW_TOKENS, CACHED_TOKENS, new_tokens, cached)
        decode = self.decode_ps(decode_batch, sum_context) if decode_batch else 0
        return max(1, round(time * PS_PER_MS)) + decode


def _neighbours(grid: tuple[int, ...], value: int) -> tuple[int, int]:
    at = min(max(1, bisect_left(grid, value)), len(grid) - 1)
    return grid[at - 1], grid[at]


def _bilinear(of: Callable[[int, int], float], xs: tuple[int, ...], ys: tuple[int, ...], x: int, y: int) -> float:
    (x0, x1), (y0, y1) = _neighbours(xs, x), _neighbours(ys, y)
    u, v = max(0.0, (x - x0) / (x1 - x0)), (y - y0) / (y1 - y0)
    low = of(x0, y0) + (of(x1, y0) - of(x0, y0)) * u
    high = of(x0, y1) + (of(x1, y1) - of(x0, y1)) * u
    return low + (high - low) * v


def known_errors(model: str, backend: str, architecture: str) -> tuple[str, ...]:
    """Return warnings about figures of aiconfigurator-core 0.12.0 that public measurements contradict."""
    notes = ["aiconfigurator-core 0.12.0: decode tables of 4 sequences or fewer are warm in the L2 cache, hence optimistic"]
    if "kimi" in model.lower() and backend == "sglang":
        notes.append("aiconfigurator-core 0.12.0 looks MLA kernels of SGLang up with 128 / tp heads: twice Kimi's attention in prefill")
        if architecture in {"blackwell_pro", "ada"}:
            notes.append(
                "aiconfigurator-core 0.12.0: cached prefixes use the absorbed "
                "Triton kernel on this card (5 to 9 times slower than flashinfer)"
            )
    if architecture == "blackwell_pro":
        notes.append("aiconfigurator-core 0.12.0: its host's all-reduce reaches 24.6 GB/s bus bandwidth; tuned hosts reach 38 to 46 GB/s")
    return tuple(notes)


def estimator_of(resolved: Resolved) -> EstimatedTime:
    """Return the estimator of a scenario. Raises MissingExtra without the library, ConfigError where it has no data."""
    try:
        from aiconfigurator_core.sdk import EngineHandle
    except ImportError:
        raise MissingExtra("costs: {kind: aiconfigurator}", "aiconfigurator") from None
    costs = resolved.scenario.costs
    if costs.system is None or costs.model is None:
        raise ConfigError(
            "costs.system and costs.model are needed: aiconfigurator's own names, e.g. rtx_pro_6000_server and moonshotai/Kimi-K2.5"
        )
    from kvsim.cost.resolve import engine_shape, model_shape

    engine, shape = engine_shape(resolved), model_shape(resolved)
    handle = _compile(EngineHandle, costs, engine.tp, engine.ep, bool(shape.experts))
    return EstimatedTime(handle, shape.layers, known_errors(costs.model, costs.backend, resolved.hardware.card.architecture))


def _compile(handle: Any, costs: Any, tp: int, ep: int, moe: bool) -> Any:
    try:
        return handle.compile(
            costs.model,
            costs.system,
            costs.backend,
            tp_size=tp,
            moe_tp_size=max(1, tp // ep) if moe else 1,
            moe_ep_size=ep if moe else 1,
            attention_dp_size=1,
            pp_size=1,
        )
    except Exception as error:  # the library raises many kinds for "no such table"
        raise ConfigError(
            f"costs: aiconfigurator has no data for {costs.model} on {costs.system} with {costs.backend}, tp {tp}: {error}"
        ) from error
