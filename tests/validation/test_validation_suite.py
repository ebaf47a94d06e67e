"""The suite's open rows stay within their tolerances; blind predictions are what the command makes."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from kvsim.errors import UnknownName
from kvsim.study.validation import together
from kvsim.study.validation.core import MODULES, PREDICTION_COLUMNS, Criterion, Row, predictions_csv, suite, within
from kvsim.study.validation.document import section, short_table


@pytest.mark.parametrize("name", ["S01", "S02", "S03", "S05", "S08", "S09"])
def test_open_rows_are_within_their_tolerance(shared: Path, name: str) -> None:
    scenario = suite([name])[0]
    assert scenario.judge is not None
    outcome = scenario.judge(shared)
    assert outcome.criteria
    assert outcome.verdict == "met", [(c.text, c.value, c.limit) for c in outcome.criteria if not c.met]


@pytest.mark.long
@pytest.mark.parametrize("name", ["S10", "S12"])
def test_rows_of_long_simulations_are_within_their_tolerance(shared: Path, name: str) -> None:
    scenario = suite([name])[0]
    assert scenario.judge is not None
    assert scenario.judge(shared).verdict == "met"


def test_every_scenario_of_the_suite_is_there() -> None:
    assert [scenario.id for scenario in suite()] == list(MODULES)
    with pytest.raises(UnknownName, match="S99"):
        suite(["S99"])


@pytest.mark.parametrize("name", ["S01", "S02", "S03", "S04", "S05", "S06", "S08", "S09", "S13", "S14", "S17"])
def test_committed_predictions_are_what_the_command_makes(shared: Path, root: Path, name: str) -> None:
    predict = suite([name])[0].predict
    assert predict is not None
    text = predictions_csv(predict(shared))
    assert text == (root / "experiments" / "validation" / "predictions" / f"{name}.csv").read_text()


@pytest.mark.long
@pytest.mark.parametrize("name", ["S07", "S11", "S12", "S15", "S16", "S18"])
def test_committed_simulated_predictions_are_what_the_command_makes(shared: Path, root: Path, name: str) -> None:
    predict = suite([name])[0].predict
    assert predict is not None
    assert predictions_csv(predict(shared)) == (root / "experiments" / "validation" / "predictions" / f"{name}.csv").read_text()


def committed_page_holds(shared: Path, root: Path, name: str) -> None:
    scenario = suite([name])[0]
    outcome = None if scenario.judge is None else scenario.judge(shared)
    page = (root / "docs" / "validation.md").read_text(encoding="utf-8")
    assert section(scenario, outcome) in page
    assert short_table([(scenario, outcome)]).splitlines()[2] in page


@pytest.mark.parametrize("name", ["S01", "S02", "S03", "S04", "S05", "S06", "S07", "S08", "S09", "S11", "S13", "S14", "S15", "S17", "S18"])
def test_the_committed_page_is_what_the_code_produces(shared: Path, root: Path, name: str) -> None:
    committed_page_holds(shared, root, name)


@pytest.mark.long
@pytest.mark.parametrize("name", ["S10", "S12", "S16"])
def test_the_committed_page_is_what_long_simulations_produce(shared: Path, root: Path, name: str) -> None:
    committed_page_holds(shared, root, name)


def test_several_processes_give_the_same_results_in_the_order_asked_for(shared: Path) -> None:
    ids, seen = ["S08", "S01", "S05"], []
    several = together.verdicts(ids, shared, predict=True, workers=2, done=seen.append)
    assert several == together.verdicts(ids, shared, predict=True, workers=1, done=lambda _: None)
    assert [verdict.id for verdict in several] == ids
    assert sorted(seen) == sorted(ids)
    assert all(verdict.predictions for verdict in several)


def test_prediction_files_have_a_value_with_an_interval_or_a_reason(root: Path) -> None:
    files = sorted((root / "experiments" / "validation" / "predictions").glob("*.csv"))
    assert len(files) >= 15
    for file in files:
        rows = list(csv.DictReader(io.StringIO(file.read_text())))
        assert rows
        assert tuple(rows[0]) == PREDICTION_COLUMNS
        for row in rows:
            if row["predicted"]:
                assert float(row["low"]) <= float(row["predicted"]) <= float(row["high"]), (file.name, row)
            else:
                assert row["reason"], (file.name, row)


def test_a_criterion_is_met_at_its_limit_and_not_above() -> None:
    assert Criterion("x", 5, 5).met
    assert not Criterion("x", 5.0001, 5).met
    rows = [Row("f", "0", "m", "s", 10.0, 11.0), Row("f", "1", "m", "s", 10.0, 20.0, scored=False)]
    assert within("worst", rows, 1.0, 20).value == pytest.approx(10)
