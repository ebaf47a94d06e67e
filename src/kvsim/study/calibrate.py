"""From observations to constants of the analytic time model: least squares on log error, with bounds and uncertainty.

Only constants that the data can tell are fitted: they are chosen by how well the data determines each one once the
others are known (orthogonalised sensitivities). What is left out is named with the reason. numpy and scipy are
imported inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import median
from typing import TYPE_CHECKING, Any

from kvsim.cost.adapt import with_overrides
from kvsim.cost.analytic import AnalyticTime
from kvsim.cost.inputs import AnalyticInputs
from kvsim.errors import ConfigError, UnknownName
from kvsim.study.calibrate_read import DECODE, PREFILL, Observation, groups_of

if TYPE_CHECKING:
    import numpy as np

#: Constants that may be fitted: bounds (SI, or a fraction of the card's peak) and how uncertain the default is
#: (relative): where two constants act alike on the data, the one whose default is worth less is fitted.
CANDIDATES: dict[str, tuple[float, float, float]] = {
    "overheads.m0": (1e-6, 5e-4, 0.5),
    "prefill.rate": (2e12, 3e15, 0.3),
    "decode.bw_eff": (0.1, 1.0, 0.3),
    "allreduce.beta": (2e8, 1e12, 0.5),
    "moe.dispersion": (0.2, 50.0, 0.5),
    "gemm.bw_eff": (0.2, 1.0, 0.1),
    "gemm.flops_eff": (0.1, 2.0, 0.1),
    "moe.bw_eff": (0.2, 1.0, 0.15),
    "moe.flops_eff": (0.05, 1.0, 0.2),
    "decode.d": (1e-11, 1e-7, 0.3),
    "overheads.m1": (1e-9, 5e-6, 0.5),
    "allreduce.alpha": (1e-6, 5e-4, 0.3),
    "prefill.per_token": (1e-10, 1e-6, 0.5),
}
#: Relative error of one measurement assumed while constants are chosen (the fit itself estimates it).
ASSUMED_NOISE = 0.03
#: A constant is fitted if its standard error under that noise is at most this (relative), the ones chosen before being
#: free too.
IDENTIFIABLE = 0.20
CONFIDENCE = 0.99


@dataclass(frozen=True, slots=True)
class Constant:
    """One fitted constant: default, value, and the interval of CONFIDENCE that holds for all constants together."""

    name: str
    default: float
    value: float
    low: float
    high: float
    at_bound: bool

    @property
    def moved(self) -> bool:
        """Tell whether the default lies outside the interval."""
        return not self.low <= self.default <= self.high


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors |model / measured - 1|: median, 95th percentile and worst of ``count`` observations."""

    count: int
    median: float
    p95: float
    worst: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """The outcome: constants, residuals, held-out error per group, and what this data cannot tell (constant -> why)."""

    constants: tuple[Constant, ...]
    before: Errors
    after: Errors
    held_out: dict[str, Errors]
    held_out_all: Errors | None
    untold: dict[str, str]
    residuals: tuple[tuple[Observation, float], ...]
    noise: float
    warnings: tuple[str, ...] = field(default=())

    def overrides(self) -> dict[str, float]:
        """Return the fitted constants as ``costs.constants``."""
        return {constant.name: constant.value for constant in self.constants}


def predict(time: AnalyticTime, row: Observation, chunk: int | None) -> float:
    """Return the model's seconds for an observation."""
    if row.kind == DECODE:
        return time.decode_s(row.batch, row.sum_context)
    if row.kind == PREFILL:
        return _prefill(time, row.new_tokens, row.cached_tokens, chunk)
    step = time.decode_s(row.batch, row.sum_context)
    stalls = (row.batch - 1) * _prefill(time, row.new_tokens, 0, chunk) / max(1, row.output_tokens)
    return step + stalls  # every other user's prompt is computed once while this one decodes


def _prefill(time: AnalyticTime, new: int, cached: int, chunk: int | None) -> float:
    total = 0.0
    while new > 0:
        now = new if chunk is None else min(new, chunk)
        total += time.prefill_s(now, now * (2 * cached + now + 1), cached, 1)
        new, cached = new - now, cached + now
    return total


class Problem:
    """The observations as a least-squares problem in the logarithms of constants."""

    def __init__(self, inputs: AnalyticInputs, rows: Sequence[Observation], chunk: int | None) -> None:
        self.inputs, self.rows, self.chunk = inputs, list(rows), chunk

    def defaults(self, names: Sequence[str]) -> list[float]:
        """Return the present values of constants."""
        return [value_of(self.inputs, name) for name in names]

    def log_errors(self, names: Sequence[str], logs: Sequence[float], rows: Sequence[Observation] | None = None) -> np.ndarray:
        """Return log(model / measured) with constants at exp(logs)."""
        import numpy as np

        values = dict(zip(names, (exp(x) for x in logs), strict=True))
        time = AnalyticTime(with_overrides(self.inputs, values))
        return np.array([np.log(predict(time, row, self.chunk) / row.seconds) for row in (self.rows if rows is None else rows)])

    def sensitivities(self, names: Sequence[str], logs: Sequence[float]) -> np.ndarray:
        """Return d log(time) / d log(constant), one column per constant, by central differences of 1 %."""
        import numpy as np

        columns = []
        for i in range(len(names)):
            up, down = list(logs), list(logs)
            up[i] += 0.01
            down[i] -= 0.01
            columns.append((self.log_errors(names, up) - self.log_errors(names, down)) / 0.02)
        return np.array(columns).T

    def fit(self, names: Sequence[str], rows: Sequence[Observation] | None = None) -> list[float]:
        """Return the best logarithms of constants within their bounds."""
        import numpy as np
        from scipy.optimize import least_squares

        low = np.log([CANDIDATES[name][0] for name in names])
        high = np.log([CANDIDATES[name][1] for name in names])
        start = np.clip(np.log(self.defaults(names)), low + 1e-6, high - 1e-6)

        def errors(logs: np.ndarray) -> np.ndarray:
            return self.log_errors(names, [float(x) for x in logs], rows)

        result = least_squares(errors, start, bounds=(low, high), xtol=1e-12, ftol=1e-12, gtol=1e-12)
        return [float(x) for x in result.x]


def value_of(inputs: AnalyticInputs, name: str) -> float:
    """Return a constant's value, 0 where the model has no such component."""
    component, _, number = name.partition(".")
    if component == "allreduce":
        return inputs.allreduce.protocols[-1][0 if number == "alpha" else 1] if inputs.allreduce else 0.0
    part: Any = inputs.prefill.plain if component == "prefill" else getattr(inputs, component)
    return float(getattr(part, number)) if part is not None else 0.0


def choose(problem: Problem, allowed: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the constants this data determines, and for each of the others why it is left at its default."""
    import numpy as np

    names = [name for name in allowed if value_of(problem.inputs, name) > 0]
    columns = problem.sensitivities(names, [log(value) for value in problem.defaults(names)])
    doubt = np.array([CANDIDATES[name][2] for name in names])
    chosen: list[int] = []
    rest = columns.copy()
    limit = min(len(problem.rows) - 2, len(names))
    open_ = list(range(len(names)))
    while open_ and len(chosen) < limit:
        best = max(open_, key=lambda i: float(doubt[i] * np.linalg.norm(rest[:, i])))
        open_.remove(best)
        if not _determined(columns, [*chosen, best]):
            continue
        chosen.append(best)
        basis, _ = np.linalg.qr(columns[:, chosen])
        rest = columns - basis @ (basis.T @ columns)
    untold = {names[i]: _why(columns, chosen, i, names) for i in range(len(names)) if i not in chosen}
    return [names[i] for i in sorted(chosen)], untold


def _determined(columns: np.ndarray, chosen: list[int]) -> bool:
    import numpy as np

    part = columns[:, chosen]
    try:
        covariance = np.linalg.inv(part.T @ part)
    except np.linalg.LinAlgError:
        return False
    return bool(np.all(ASSUMED_NOISE * np.sqrt(np.diag(covariance)) <= IDENTIFIABLE))


def _why(columns: np.ndarray, chosen: list[int], i: int, names: Sequence[str]) -> str:
    import numpy as np

    norm = float(np.linalg.norm(columns[:, i]))
    if norm * IDENTIFIABLE < ASSUMED_NOISE:
        return "hardly moves any of these measurements"
    alike = [(abs(float(columns[:, i] @ columns[:, j])) / norm / float(np.linalg.norm(columns[:, j])), j) for j in chosen]
    cosine, j = max(alike, default=(0.0, -1))
    return f"acts like {names[j]} on this data (similarity {cosine:.2f})" if j >= 0 else "too few measurements"


def calibrate(
    inputs: AnalyticInputs,
    rows: Sequence[Observation],
    *,
    chunk: int | None = 8192,
    constants: Sequence[str] | None = None,
    hold_out: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Calibration:
    """Return the constants that fit the observations best, with uncertainty and held-out error. Raises ConfigError,
    UnknownName."""
    unknown = [name for name in constants or () if name not in CANDIDATES]
    if unknown:
        raise UnknownName("constant to calibrate", unknown[0], CANDIDATES)
    if len(rows) < 3:
        raise ConfigError(f"calibrate: {len(rows)} measurements are too few; at least 3 are needed, 10 to 30 are worth having")
    problem = Problem(inputs, rows, chunk)
    names, untold = (list(constants), {}) if constants else choose(problem, list(CANDIDATES))
    if not names:
        raise ConfigError(
            "calibrate: this data determines none of the model's constants: " + "; ".join(f"{k} {v}" for k, v in untold.items())
        )
    before = problem.log_errors((), ())
    logs = problem.fit(names)
    after = problem.log_errors(names, logs)
    fitted, noise = _intervals(problem, names, logs, after)
    held, held_all = _leave_one_group_out(problem, names, progress) if hold_out else ({}, None)
    residuals = tuple((row, exp(float(error)) - 1.0) for row, error in zip(problem.rows, after, strict=True))
    return Calibration(fitted, _summary(before), _summary(after), held, held_all, untold, residuals, noise, _warnings(fitted, rows))


def _intervals(problem: Problem, names: Sequence[str], logs: Sequence[float], errors: np.ndarray) -> tuple[tuple[Constant, ...], float]:
    """Return constants with intervals that hold together with CONFIDENCE (Bonferroni, Student's t, linearised)."""
    import numpy as np
    from scipy.stats import t as student

    free = max(1, len(problem.rows) - len(names))
    noise = float(np.sqrt(float(errors @ errors) / free))
    columns = problem.sensitivities(names, logs)
    spread = noise * np.sqrt(np.diag(np.linalg.pinv(columns.T @ columns)))
    factor = float(student.ppf(1 - (1 - CONFIDENCE) / (2 * len(names)), free))
    constants = []
    for name, log_value, deviation, default in zip(names, logs, spread, problem.defaults(names), strict=True):
        low, high, _ = CANDIDATES[name]
        value, half = exp(log_value), factor * float(deviation)
        at_bound = value <= low * 1.001 or value >= high * 0.999
        constants.append(Constant(name, default, value, value * exp(-half), value * exp(half), at_bound))
    return tuple(constants), noise


def _leave_one_group_out(
    problem: Problem, names: Sequence[str], progress: Callable[[str], None] | None
) -> tuple[dict[str, Errors], Errors | None]:
    """Return the error on each group by constants fitted without it, and on all of them together."""
    import numpy as np

    groups, held, everything = groups_of(problem.rows), {}, []
    for group in groups:
        rest = [row for row in problem.rows if row.group != group]
        if len(groups) < 2 or len(rest) < len(names) + 1:
            continue
        if progress is not None:
            progress(group)
        own = [row for row in problem.rows if row.group == group]
        errors = problem.log_errors(names, problem.fit(names, rest), own)
        held[group] = _summary(errors)
        everything.append(errors)
    return held, _summary(np.concatenate(everything)) if everything else None


def _summary(log_errors: np.ndarray) -> Errors:
    sizes = sorted(abs(exp(float(error)) - 1.0) for error in log_errors)
    return Errors(len(sizes), median(sizes), sizes[min(len(sizes) - 1, int(0.95 * len(sizes)))], sizes[-1])


def _warnings(constants: Sequence[Constant], rows: Sequence[Observation]) -> tuple[str, ...]:
    found = [f"{c.name} ended at its bound {c.value:.4g}: something else explains this data" for c in constants if c.at_bound]
    if any(row.kind == "tpot" for row in rows):
        found.append("benchmark means mix decode steps with other users' prefills: they were modelled as one prompt per user and answer")
    return tuple(found)


def overlay_text(calibration: Calibration, sources: Sequence[str], scenario: str) -> str:
    """Return the overlay: YAML that a scenario includes, with intervals and errors as comments."""
    lines = [
        f"# constants of the step-time model calibrated by `kvsim calibrate {scenario}` on {', '.join(sources)}",
        f"# {calibration.after.count} measurements: median error "
        f"{calibration.after.median:.1%}, P95 {calibration.after.p95:.1%}"
        + (f"; held out (leave one group out): median {calibration.held_out_all.median:.1%}" if calibration.held_out_all else ""),
        "costs:",
        "  kind: analytic",
        "  constants:",
    ]
    lines += [f"    {c.name}: {_yaml(c.value)}  # {c.low:.4g} to {c.high:.4g}; default {c.default:.4g}" for c in calibration.constants]
    return "\n".join(lines) + "\n"


def _yaml(value: float) -> str:
    """Return a number that YAML 1.1 reads as a float: a mantissa with a point, an exponent with a sign."""
    text = f"{value:.6g}"
    mantissa, e, exponent = text.partition("e")
    mantissa = mantissa if "." in mantissa else mantissa + ".0"
    return mantissa + (e + exponent if e else "")
