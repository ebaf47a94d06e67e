"""Constant rates: the toy world in which answers are arithmetic."""

from __future__ import annotations

from fractions import Fraction

from kvsim.cost.piecewise import Curve, PiecewiseDecode
from kvsim.errors import ConfigError

PS_PER_S = 10**12


class ConstantTime(PiecewiseDecode):
    """A fixed number of prompt tokens per second and a fixed decode step, whatever the batch and context.

    ``prefill_tokens_per_s`` > 0; ``decode_step_s`` >= 0; ``per_step_s`` is added to every step that computes prompt tokens.
    A mixed step takes its prompt tokens' time plus one decode step. ``decode_per_context_s``: seconds a decode step grows
    per token of context read (0: none). Rounded to whole picoseconds per step.
    """

    def __init__(
        self,
        prefill_tokens_per_s: float,
        decode_step_s: float,
        *,
        layers: int = 1,
        per_step_s: float = 0.0,
        decode_per_context_s: float = 0.0,
    ) -> None:
        super().__init__()
        if (
            not prefill_tokens_per_s > 0
            or decode_step_s < 0
            or per_step_s < 0
            or decode_per_context_s < 0
            or layers < 1
        ):
            raise ConfigError(
                f"costs: the prefill rate must be positive and times not negative, got prefill {prefill_tokens_per_s} tokens/s, "
                f"decode step {decode_step_s} s, per step {per_step_s} s, layers {layers}"
            )
        self.layers = layers
        self._token_ps = PS_PER_S / Fraction(str(prefill_tokens_per_s))
        self._step_ps = _ps(per_step_s)
        self._decode_ps = max(1, _ps(decode_step_s))
        self._slope_ps = _ps(decode_per_context_s)

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
        """Return the time of a step that computes prompt tokens."""
        rate = self._token_ps
        time = new_tokens * rate.numerator // rate.denominator + self._step_ps
        return time + (self._decode_ps + self._slope_ps * sum_context if decode_batch else 0)

    def _make_curve(self, batch: int) -> Curve:
        return [0], [self._decode_ps], [self._slope_ps]


def _ps(seconds: float) -> int:
    return round(Fraction(str(seconds)) * PS_PER_S)
