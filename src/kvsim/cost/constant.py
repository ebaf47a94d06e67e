"""Constant rates: the toy world in which answers are arithmetic, and any step time that is linear in its features."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import isfinite

from kvsim.cost.piecewise import Curve, PiecewiseDecode
from kvsim.errors import ConfigError

PS_PER_S = 10**12


@dataclass(frozen=True, slots=True)
class Rates:
    """The numbers of a linear step time, seconds unless said otherwise.

    Prompt tokens: ``per_step`` + P / ``prefill_tokens_per_s`` + ``prefill_per_pair`` x (new, context) pairs. Decode:
    ``decode_step`` + ``decode_per_sequence`` x D + ``decode_per_context`` x context read + ``expert_step`` x (1 - (1 -
    ``expert_share``)^D), the last for experts whose weights are read once however many tokens use them.

    ``weight_step`` is the part of ``decode_step`` in which weights are read. Matrix products read weights and compute at
    the same time (the roofline), so in a step with prompt tokens the longer of both counts: max(``weight_step`` + the experts
    that all of the step's tokens use, P / ``prefill_tokens_per_s``), and only the rest of ``decode_step`` beside it.
    """

    prefill_tokens_per_s: float
    decode_step: float
    per_step: float = 0.0
    decode_per_sequence: float = 0.0
    decode_per_context: float = 0.0
    prefill_per_pair: float = 0.0
    expert_step: float = 0.0
    expert_share: float = 0.0
    weight_step: float = 0.0

    def __post_init__(self) -> None:
        values = [getattr(self, name) for name in self.__dataclass_fields__]
        if not all(isfinite(value) and value >= 0 for value in values) or not self.prefill_tokens_per_s > 0 or self.expert_share > 1:
            raise ConfigError(f"costs: the prefill rate must be positive, times not negative and the expert share at most 1, got {self}")
        if self.weight_step > self.decode_step:
            raise ConfigError(f"costs: weight_step is a part of decode_step ({self.decode_step} s), got {self.weight_step} s")


class ConstantTime(PiecewiseDecode):
    """A fixed number of prompt tokens per second and a fixed decode step, plus linear terms; whole picoseconds per
    step.

    A mixed step takes the larger of both fixed parts once, and everything else of its prompt tokens and of its
    decoding; computing prompt tokens hides behind the reading of weights.
    """

    def __init__(self, rates: Rates, layers: int = 1) -> None:
        super().__init__()
        self.rates, self.layers = rates, layers
        self._token = PS_PER_S / Fraction(str(rates.prefill_tokens_per_s))
        self._pair2 = Fraction(str(rates.prefill_per_pair)) * PS_PER_S / 2
        self._step_ps, self._decode_ps = _ps(rates.per_step), _ps(rates.decode_step)
        self._weight_ps = _ps(rates.weight_step)
        self._rest_ps = self._decode_ps - self._weight_ps
        self._sequence_ps, self._context_ps = _ps(rates.decode_per_sequence), _ps(rates.decode_per_context)

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
        token, pair2 = self._token, self._pair2
        time = new_tokens * token.numerator // token.denominator
        if self._weight_ps:
            time = max(time, self._weight_ps + self._experts_ps(new_tokens + decode_batch))
        elif decode_batch:
            time += self._experts_ps(decode_batch)
        if pair2:
            time += pairs2 * pair2.numerator // pair2.denominator
        if not decode_batch:
            return time + self._step_ps
        return time + max(self._step_ps, self._rest_ps) + self._sequence_ps * decode_batch + self._context_ps * sum_context

    def _experts_ps(self, tokens: int) -> int:
        """Return the time to read the experts that ``tokens`` tokens use."""
        if not self.rates.expert_step:
            return 0
        return _ps(self.rates.expert_step * (1.0 - (1.0 - self.rates.expert_share) ** tokens))

    def _make_curve(self, batch: int) -> Curve:
        return [0], [max(1, self._decode_ps + self._sequence_ps * batch + self._experts_ps(batch))], [self._context_ps]


def _ps(seconds: float) -> int:
    return round(Fraction(str(seconds)) * PS_PER_S)
