"""`kvsim validate`: measured against simulated."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kvsim.cli.common import Json, Set, emit, emit_json, note, show
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from kvsim.study.validation.core import Outcome, Scenario


def validate(
    suite: str | None = None,
    measured: str | None = None,
    /,
    *,
    predict: str | None = None,
    set_: Set = None,
    write: Annotated[str | None, Parameter(negative="")] = None,
    predictions: Annotated[str | None, Parameter(negative="")] = None,
    jobs: int | None = None,
    json: Json = False,
) -> int:
    """Compare measured values with simulated ones; exit 1 if a tolerance is missed.

    Parameters
    ----------
    suite
        Scenario ids of the suite (S01,S03; all if absent), or a scenario file to compare with MEASURED.
    measured
        A benchmark result of your own run (SGLang bench_serving or vLLM bench JSON).
    predict
        Print the blind predictions of one scenario id as CSV.
    write
        Write docs/validation.md (a file name) from the results.
    predictions
        Write the blind predictions of these scenarios into this folder too, one CSV file each.
    jobs
        Processes to work with; all cores if absent. The numbers do not depend on it.
    """
    if measured is not None:
        from kvsim.study.validation.own import compare_with_measured

        if suite is None:
            raise ConfigError("give the scenario file before the measured file")
        return _own(compare_with_measured(suite, measured, set_ or []), json)
    from kvsim.study.validation.core import predictions_csv
    from kvsim.study.validation.core import suite as scenarios

    folder = shared_folder()
    if predict is not None:
        scenario = scenarios([predict])[0]
        if scenario.predict is None:
            raise ConfigError(f"{scenario.id} has no held values to predict")
        emit(predictions_csv(scenario.predict(folder)).rstrip("\n"))
        return 0
    chosen = scenarios(suite.split(",") if suite else None)
    results = _judged(chosen, folder, predictions, jobs)
    if write is not None:
        from kvsim.study.validation.document import document

        Path(write).write_text(document(results), encoding="utf-8")
    if json:
        emit_json([_plain(scenario, outcome) for scenario, outcome in results])
    else:
        show(_table(results))
    return 1 if any(outcome is not None and outcome.verdict == "failed" for _, outcome in results) else 0


def shared_folder() -> Path:
    """Return the folder of measured files: KVSIM_SHARED, else ../shared beside the repository or the working directory."""
    given = os.environ.get("KVSIM_SHARED")
    places = [Path(given)] if given else [Path.cwd().parent / "shared", Path(__file__).resolve().parents[4] / "shared"]
    for place in places:
        if (place / "groundtruth").is_dir():
            return place
    raise ConfigError(f"the measured files are not here: no folder {places[0]}/groundtruth; set KVSIM_SHARED")


def _judged(chosen: list[Scenario], folder: Path, predictions: str | None, jobs: int | None) -> list[tuple[Scenario, Outcome | None]]:
    """Judge scenarios on several processes; write their predictions if a folder is given."""
    from kvsim.study.validation.together import cores, verdicts

    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs: at least one process, got {jobs}")
    into = None if predictions is None else Path(predictions)
    if into is not None and not into.is_dir():
        raise ConfigError(f"--predictions: no folder {into}")
    titles = {scenario.id: scenario.title for scenario in chosen}
    found = verdicts(
        list(titles), folder, predict=into is not None, workers=jobs or cores(), done=lambda name: note(f"{name} {titles[name]}: done")
    )
    for verdict in found if into is not None else []:
        if into is not None and verdict.predictions is not None:
            (into / f"{verdict.id}.csv").write_text(verdict.predictions, encoding="utf-8")
    return [(scenario, verdict.outcome) for scenario, verdict in zip(chosen, found, strict=True)]


def _plain(scenario: Scenario, outcome: Outcome | None) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "id": scenario.id,
        "title": scenario.title,
        "tolerance": scenario.tolerance,
        "verdict": "not judged" if outcome is None else outcome.verdict,
        "criteria": [] if outcome is None else [{**asdict(criterion), "met": criterion.met} for criterion in outcome.criteria],
        "rows": [] if outcome is None else [{**asdict(row), "error": row.error} for row in outcome.rows],
    }


def _table(results: list[tuple[Scenario, Outcome | None]]) -> Table:
    from rich.table import Table

    from kvsim.study.validation.core import errors, quantile

    table = Table(title="measured against simulated: relative errors of the scored open rows", pad_edge=False)
    for name, justify in (
        ("id", "left"),
        ("scenario", "left"),
        ("n", "right"),
        ("median", "right"),
        ("P90", "right"),
        ("worst", "right"),
        ("verdict", "left"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for scenario, outcome in results:
        found = errors(outcome.rows) if outcome is not None else []
        figures = [f"{100 * quantile(found, share):.2f} %" if found else "-" for share in (0.5, 0.9, 1.0)]
        table.add_row(scenario.id, scenario.title, str(len(found)), *figures, "not judged" if outcome is None else outcome.verdict)
    return table


def _own(rows: list[dict[str, Any]], json: bool) -> int:
    """Print a user's own comparison."""
    from rich.table import Table

    if json:
        emit_json(rows)
        return 0
    table = Table(pad_edge=False)
    for name in ("figure", "measured", "simulated", "difference"):
        table.add_column(name, justify="left" if name == "figure" else "right")
    for row in rows:
        table.add_row(row["figure"], f"{row['measured']:.5g}", f"{row['simulated']:.5g}", f"{100 * row['difference']:+.2f} %")
    show(table)
    return 0
