"""What a validation scenario is: rows of measured and predicted values, criteria that judge them, blind predictions."""

from __future__ import annotations

import csv
import importlib
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvsim.errors import InputError, UnknownName

#: scenario id -> module that defines ``scenarios() -> list[Scenario]``.
MODULES: dict[str, str] = {
    "S01": "capacity",
    "S02": "capacity",
    "S03": "decode",
    "S04": "decode",
    "S05": "prefill",
    "S06": "prefill",
    "S07": "contention",
    "S08": "copies",
    "S09": "offload",
    "S10": "multiturn",
    "S11": "multiturn",
    "S12": "multiturn",
    "S13": "fleet",
    "S14": "fleet",
    "S15": "replays",
    "S16": "residency",
    "S17": "aggregates",
    "S18": "anchor",
}

PREDICTION_COLUMNS = ("file", "row", "metric", "unit", "predicted", "low", "high", "seeds", "reason")


@dataclass(frozen=True, slots=True)
class Row:
    """One number: where it stands in the open or held file, what was measured (None: kept back), what kvsim says.

    ``low``, ``high``: 95 % interval of the prediction. ``predicted`` None: not predicted, with the ``reason``. ``scored`` False:
    shown, never judged (calibration rows, rows a tolerance excludes).
    """

    file: str
    row: str
    metric: str
    unit: str
    measured: float | None
    predicted: float | None
    low: float | None = None
    high: float | None = None
    seeds: int = 1
    reason: str = ""
    scored: bool = True

    @property
    def error(self) -> float | None:
        """Relative error of the prediction, or None where either side is missing or measured is 0."""
        if self.measured is None or self.predicted is None or self.measured == 0:
            return None
        return self.predicted / self.measured - 1

    @property
    def difference(self) -> float | None:
        """Predicted minus measured, in the row's unit."""
        return None if self.measured is None or self.predicted is None else self.predicted - self.measured


@dataclass(frozen=True, slots=True)
class Criterion:
    """One tolerance and whether it holds: "median error <= 6 %", value, limit."""

    text: str
    value: float
    limit: float
    unit: str = "%"

    @property
    def met(self) -> bool:
        """Tell whether the value is within the limit."""
        return self.value <= self.limit


@dataclass(slots=True)
class Outcome:
    """A scenario's rows and criteria; ``calibrated`` says which rows chose which constants; ``analysis`` why it fails, if it does."""

    rows: list[Row]
    criteria: list[Criterion] = field(default_factory=list)
    calibrated: str = "nothing"
    analysis: str = ""

    @property
    def verdict(self) -> str:
        """Return "met", "failed", or "not judged" (no open rows)."""
        if not self.criteria:
            return "not judged"
        return "met" if all(criterion.met for criterion in self.criteria) else "failed"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One entry of the suite. ``judge(folder)`` computes the open rows; ``predict(folder)`` the held ones (None: nothing is held)."""

    id: str
    title: str
    tolerance: str
    peer: str
    judge: Callable[[Path], Outcome] | None
    predict: Callable[[Path], list[Row]] | None = None


def suite(ids: Iterable[str] | None = None) -> list[Scenario]:
    """Return the scenarios with these ids (all, in order, for None). Raises UnknownName."""
    wanted = list(MODULES) if ids is None else [given.upper() for given in ids]
    for name in wanted:
        if name not in MODULES:
            raise UnknownName("validation scenario", name, MODULES)
    found = {}
    for module in dict.fromkeys(MODULES[name] for name in wanted):
        for scenario in importlib.import_module(f"kvsim.study.validation.{module}").scenarios():
            found[scenario.id] = scenario
    return [found[name] for name in wanted if name in found]


def read_table(folder: Path, name: str) -> list[dict[str, str]]:
    """Return the rows of a measured CSV file. Raises InputError naming the file when it is missing."""
    path = folder / "groundtruth" / name
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; the measured files live in the shared folder (KVSIM_SHARED)") from None


def errors(rows: Iterable[Row]) -> list[float]:
    """Return the absolute relative errors of the scored rows that have one."""
    return [abs(row.error) for row in rows if row.scored and row.error is not None]


def quantile(values: Sequence[float], share: float) -> float:
    """Return a linear quantile (0..1) of at least one value."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def within(text: str, rows: Sequence[Row], share: float, limit_percent: float) -> Criterion:
    """Return a criterion on a quantile of the absolute relative errors: share 0.5 median, 0.95 P95, 1 worst."""
    found = errors(rows)
    return Criterion(text, 100 * quantile(found, share) if found else math.inf, limit_percent)


def predictions_csv(rows: Iterable[Row]) -> str:
    """Return blind predictions as CSV in long form; numbers with six significant digits, so equal runs give equal bytes."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(PREDICTION_COLUMNS)
    for row in rows:
        writer.writerow(
            (row.file, row.row, row.metric, row.unit, _number(row.predicted), _number(row.low), _number(row.high), row.seeds, row.reason)
        )
    return out.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
