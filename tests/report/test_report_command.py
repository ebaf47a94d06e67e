"""`kvsim report`, `kvsim run --from` and the lab's refusal, as a user calls them."""

from __future__ import annotations

import json
import sys

import pytest

from kvsim.cli.app import run_command
from kvsim.report.embed import read_block

TOY = ["run", "toy", "--set", "workload.requests=30"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("command") / "run"
    assert run_command([*TOY, "-o", str(home)]) == 0
    return home


def test_a_run_directory_becomes_a_report_and_every_view(folder, tmp_path, capsys):
    views = {"--timeline": "t.pftrace", "--metrics": "m.om", "--bench-json": "b.json"}
    words = [word for flag, name in views.items() for word in (flag, str(tmp_path / name))]
    assert run_command(["report", str(folder), "-o", str(tmp_path / "r.html"), *words, "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert files == [str(tmp_path / name) for name in ("r.html", "t.pftrace", "m.om", "b.json")]
    assert all((tmp_path / name).stat().st_size for name in ("r.html", "t.pftrace", "m.om", "b.json"))


def test_a_report_makes_the_same_numbers_again(tmp_path, capsys):
    assert run_command([*TOY, "--report", str(tmp_path / "r.html"), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert run_command(["run", "--from", str(tmp_path / "r.html"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first


def test_views_of_single_runs_are_refused_for_a_study(tmp_path, capsys):
    assert run_command(["report", str(tmp_path), "--timeline", "t"]) == 2
    assert "need a run directory" in capsys.readouterr().err


def test_a_folder_with_nothing_in_it_is_a_clear_error(tmp_path, capsys):
    assert run_command(["report", str(tmp_path)]) == 2
    assert "neither a run directory" in capsys.readouterr().err


def test_a_sweep_leaves_a_study_that_reports_without_simulating(tmp_path, capsys, monkeypatch):
    out = tmp_path / "study"
    words = [
        "sweep",
        "toy",
        "--axis",
        "engine.hicache.host_tokens=0,20000",
        "--set",
        "workload.requests=20",
        "--workers",
        "1",
        "-o",
        str(out),
    ]
    assert run_command(words) == 0
    monkeypatch.setattr("kvsim.sim.simulate.simulate", None)
    assert run_command(["report", str(out)]) == 0
    text = (out / "report.html").read_text("utf-8")
    assert "engine.hicache.host_tokens" in text
    capsys.readouterr()


def test_the_report_of_a_sweep_makes_the_same_numbers_again(tmp_path, capsys):
    page = str(tmp_path / "study.html")
    axes = ["--axis", "engine.hicache.host_tokens=0,20000", "--set", "workload.requests=20"]
    assert run_command(["sweep", "toy", *axes, "--replications", "2", "--workers", "1", "--report", page, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert run_command(["sweep", "--from", page, "--workers", "1", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["points"] == first["points"]
    assert len(first["points"]) == 4
    assert run_command(["run", "--from", page]) == 0
    assert "the report of a sweep" in capsys.readouterr().err


def test_the_report_of_a_sweep_names_seed_and_versions(tmp_path, capsys):
    page = tmp_path / "study.html"
    assert run_command(["sweep", "toy", "--axis", "run.seed=5,6", "--set", "workload.requests=5", "--report", str(page)]) == 0
    assert {"kvsim", "python", "simpy", "seed", "scenario_digest"} <= set(read_block(page)["manifest"])
    capsys.readouterr()


def test_the_lab_refuses_an_open_host_as_bad_input(capsys):
    assert run_command(["lab", "--host", "0.0.0.0"]) == 2
    assert "open to everybody" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "library", "extra"),
    [("--report", "altair", "report"), ("--timeline", "perfetto", "trace"), ("--metrics", "prometheus_client", "metrics")],
)
def test_a_missing_library_is_named_before_anything_is_simulated(flag, library, extra, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setattr("kvsim.sim.simulate.simulate", None)
    assert run_command([*TOY, flag, str(tmp_path / "x")]) == 2
    assert f"pip install 'kvsim[{extra}]'" in capsys.readouterr().err
