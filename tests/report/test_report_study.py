"""Reports of studies: curves with intervals, infeasible points, paired differences, Pareto; written and read back."""

from __future__ import annotations

import json

import pytest

from kvsim.errors import ConfigError
from kvsim.report.embed import read_block
from kvsim.report.study_figures import curve, difference_rows, estimate, name_of, pareto_rows, rows_of_curve, study_figures
from kvsim.report.study_html import read_study, study_data, write_study, write_study_report
from kvsim.study.sweep import Result, Study

KEY = "engine.hicache.ratio"


def summary(ttft, hit):
    spread = {"mean": ttft, "half_width": ttft / 10, "p50": ttft, "p99": 3 * ttft}
    return {
        "hits": {"device_tokens": 10, "host_tokens": 5, "hit_rate": hit},
        "ttft_s": spread,
        "tpot_s": {"mean": 0.02, "half_width": 0.001},
        "throughput": {"output_tokens_per_s": 50.0},
        "slo": None,
        "retractions": {"count": 0},
        "overload": {"overloaded": False},
    }


def result(ratio, replication, ttft, hit, ram):
    capacity = {
        "device_tokens": 100,
        "host_tokens": 0,
        "host_bytes_per_rank": ram // 8,
        "host_bytes_total": ram,
        "ranks": 8,
        "assumptions": [],
    }
    if ttft is None:
        return Result({KEY: ratio}, replication, "d", None, capacity, "does not fit <b>here</b>")
    return Result({KEY: ratio}, replication, "d", summary(ttft, hit), capacity)


@pytest.fixture
def study():
    made = Study("nowhere-to-be-found", {KEY: [False, 2, 4, 16]})
    ram = 10**11
    for replication, noise in enumerate((0.0, 1.0, 2.0)):
        made.results += [
            result(False, replication, 5.0 + noise, 0.5, 0),
            result(2, replication, 3.0 + noise, 0.7, 2 * ram),
            result(4, replication, 3.5 + noise, 0.7, 4 * ram),
            result(16, replication, None, None, 16 * ram),
        ]
    return made


def test_the_interval_is_students_over_replications():
    mean, half = estimate([5.0, 6.0, 7.0])
    assert mean == 6.0
    assert half == pytest.approx(4.302653 * 1.0 / 3**0.5, rel=1e-6)
    assert estimate([5.0]) == (5.0, None)


def test_a_curve_has_a_value_per_feasible_point_and_a_mark_for_the_others(study):
    rows = rows_of_curve(study, "ttft_mean_s")
    assert [row.get("value") for row in rows] == [6.0, 4.0, 4.5, None]
    assert rows[3]["infeasible"]
    spec = curve(study, "ttft_mean_s").spec()
    marks = [layer["mark"]["type"] for layer in spec["layer"]]
    assert marks == ["line", "errorbar", "text"]
    assert [row["point"] for row in spec["layer"][2]["data"]["values"]] == ["16"]
    assert spec["layer"][0]["encoding"]["y"]["title"] == "mean TTFT (s)"


def test_the_table_behind_a_curve_names_the_reason(study):
    rows = curve(study, "hit_rate").table.rows
    assert rows[0][:2] == ("off", "50")
    assert rows[3][-1] == "does not fit <b>here</b>"


def test_one_run_per_point_shows_its_own_interval(study):
    study.results = [r for r in study.results if r.replication == 0]
    rows = rows_of_curve(study, "ttft_mean_s")
    assert rows[0]["half"] == pytest.approx(0.5)
    assert "batch means" in curve(study, "ttft_mean_s").caption


def test_differences_are_paired_by_seed(study):
    rows = difference_rows(study)
    assert [(row["point"], row["difference"], row["half"], row["pairs"]) for row in rows] == [("2", -2.0, 0.0, 3), ("4", -1.5, 0.0, 3)]


def test_the_front_holds_what_nothing_beats_in_both(study):
    assert {row["point"]: row["front"] for row in pareto_rows(study)} == {"off": True, "2": True, "4": False}


def test_points_of_several_axes_name_each(study):
    assert name_of({KEY: 2.0, "engine.tp": 8}) == "ratio=2, tp=8"


def test_every_figure_of_a_study_has_a_table_and_units(study):
    keys = [figure.key for figure in study_figures(study)]
    assert keys[0] == "curve-hit-rate"
    assert keys[-2:] == ["differences", "pareto"]
    assert "curve-goodput-requests-per-s" not in keys
    assert all(figure.table.rows for figure in study_figures(study))


def test_a_study_is_read_back_from_its_file_its_folder_and_its_report(study, tmp_path):
    base = {"title": "x"}
    file = write_study(study, tmp_path / "s", base)
    report = write_study_report(study, tmp_path / "r.html", base)
    for source in (file, file.parent):
        found, data = read_study(source)
        assert study_data(found) == json.loads(json.dumps(study_data(study)))
        assert data == base
    assert study_data(read_study(report)[0]) == study_data(found)
    assert "does not fit <b>" not in report.read_text("utf-8")


def test_a_report_of_a_real_study_holds_its_scenario_and_memory(tmp_path):
    from kvsim.api import resolve, sweep

    study = sweep("toy", {"engine.hicache.host_tokens": [0, 20_000]}, overrides=["workload.requests=30"])
    report = write_study_report(study, tmp_path / "r.html", resolve("toy").data)
    text = report.read_text("utf-8")
    assert "One GPU&#39;s memory" in text
    assert "What is not modelled" in text
    assert read_block(report)["resolved"]["title"] == "toy"


def test_what_holds_no_study_is_a_clear_error(tmp_path):
    with pytest.raises(ConfigError, match=r"neither a run directory \(manifest.json\) nor a study"):
        read_study(tmp_path)
    (tmp_path / "study.json").write_text("[]")
    with pytest.raises(ConfigError, match="holds no study"):
        read_study(tmp_path)
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds no study"):
        read_study(tmp_path)
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_study(tmp_path)
