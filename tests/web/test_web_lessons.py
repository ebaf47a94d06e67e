"""Lessons: right answers are computed and independent arithmetic agrees; notebooks run as scripts and export."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

from kvsim.web.lessons import LESSONS, exercises
from kvsim.web.lessons.exercise import Exercise

NOTEBOOKS = ["1_bytes", "2_prefix", "3_trip", "4_knee", "5_scheduler"]
ALL = [(lesson, exercise) for lesson in LESSONS for exercise in exercises(lesson)]

#: Worked out by hand from the question's own words.
BY_HAND = {
    "bytes-1": 10 * 2 * 5 * 10 * 2,
    "bytes-2": (9 - 6) * 10**9 / 2000,
    "bytes-3": 2 * 3 * 4,
    "bytes-4": 61 * (512 + 64) * 2,
    "prefix-1": 400,
    "prefix-2": 400 + 200 + 19,
    "prefix-3": 0,
    "prefix-4": 6 * 64,
    "trip-1": 400,
    "trip-2": 4 - 1.3,
    "trip-3": 0.125,
    "trip-4": 1.125,
    "knee-1": 0,
    "knee-2": 100 * 15 * 199 / (20 * 200),
    "knee-3": 1005,
    "knee-4": 100 * 15 * 199 / (20 * 200 + 4 * 450),
    "scheduler-1": 2.01,
    "scheduler-2": 2.01,
    "scheduler-3": 0.2 + 99 * 0.01 + 0.2,
    "scheduler-5": 5,
}


@pytest.mark.parametrize("key", BY_HAND)
def test_the_computed_answer_is_what_arithmetic_gives(key):
    exercise = next(e for _, e in ALL if e.key == key)
    assert exercise.right == pytest.approx(BY_HAND[key])


def test_the_anchors_host_ram_is_the_published_358_gb():
    exercise = next(e for _, e in ALL if e.key == "bytes-5")
    assert exercise.right == pytest.approx(358, abs=0.5)


@pytest.mark.parametrize(("lesson", "exercise"), ALL, ids=[e.key for _, e in ALL])
def test_the_right_answer_passes_and_typical_wrong_ones_get_their_reason(lesson, exercise):
    assert exercise.check(exercise.right).right is True
    for value, why in exercise.wrong:
        verdict = exercise.check(value)
        assert verdict.right is False
        assert why in verdict.text


def test_no_answer_gets_no_verdict_and_another_wrong_one_a_hint():
    exercise = Exercise("k", "q", 2.0, "s", "b", ((1.0, "half"),))
    assert exercise.check(None).right is None
    assert "half" in exercise.check(1.0).text
    assert exercise.check(7.0).right is False
    assert exercise.check(2.01).right is True


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_notebook_runs_as_a_script(root, name):
    path = root / "docs" / "lessons" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"lesson_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _, defined = module.app.run()
    assert defined["questions"]
    assert len(defined["answers"].value) == len(defined["questions"])


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_no_logic_hides_in_the_cells(root, name):
    """Cells call the library: no loops, functions or arithmetic on lists of their own."""
    import ast

    tree = ast.parse((root / "docs" / "lessons" / f"{name}.py").read_text("utf-8"))
    cells = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert len(cells) > 5
    for cell in cells:
        assert not [n for n in ast.walk(cell) if isinstance(n, ast.For | ast.While | ast.ListComp | ast.Lambda | ast.ClassDef)]


@pytest.mark.long
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_notebook_exports_to_jupyter(root, name, tmp_path):
    pytest.importorskip("nbformat", reason="marimo export ipynb needs nbformat")
    out = tmp_path / "lesson.ipynb"
    source = root / "docs" / "lessons" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, "-m", "marimo", "export", "ipynb", str(source), "-o", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())["cells"]
