from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cost_calibrate import BASE, measured

from kvsim.cli.app import run_command
from kvsim.config.load import load
from kvsim.config.resolve import resolve
from kvsim.cost.adapt import with_overrides
from kvsim.cost.resolve import analytic_inputs_of


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    path = tmp_path / "steps.csv"
    rows = measured(with_overrides(BASE, {"overheads.m0": 30e-6, "prefill.rate": 200e12}), 1)
    lines = [f"{r.kind},{r.new_tokens},{r.cached_tokens},{r.batch},{r.sum_context},{r.seconds * 1e3:.5f}" for r in rows]
    path.write_text("\n".join(["kind,new_tokens,cached_tokens,batch,sum_context,latency_ms", *lines]) + "\n")
    return path


def test_an_overlay_that_calibrate_wrote_changes_the_scenario_that_includes_it(
    steps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overlay, scenario = tmp_path / "overlay.yaml", tmp_path / "mine.yaml"
    assert run_command(["calibrate", "hicache-ratio", str(steps), "-o", str(overlay)]) == 0
    assert "not told by this data" in capsys.readouterr().out
    scenario.write_text("include: [overlay.yaml]\nhardware: 8x-rtx-pro-6000\nmodel: kimi-k2.5-int4\nengine: {tp: 8}\n")
    inputs = analytic_inputs_of(resolve(load(str(scenario), [])))
    assert inputs.overheads.m0 == pytest.approx(30e-6, rel=0.25)
    assert inputs.prefill.plain.rate == pytest.approx(200e12, rel=0.08)


def test_json_holds_constants_held_out_errors_and_residuals(steps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["calibrate", "hicache-ratio", str(steps), "--json", "--constants", "overheads.m0,prefill.rate"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [c["name"] for c in data["constants"]] == ["overheads.m0", "prefill.rate"]
    assert len(data["residuals"]) == data["held_out_all"]["count"] == 36


def test_probe_writes_a_script_that_runs_on_its_own(tmp_path: Path) -> None:
    import subprocess
    import sys

    script = tmp_path / "probe.py"
    assert run_command(["calibrate", "--probe", str(script)]) == 0
    done = subprocess.run([sys.executable, "-I", str(script), "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "kvsim calibrate" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [[], ["hicache-ratio"], ["hicache-ratio", "/nowhere.csv"], ["hicache-ratio", "/"], ["no-such-scenario", "x"]],
)
def test_bad_input_is_exit_code_2_without_a_traceback(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["calibrate", *arguments]) == 2
    assert capsys.readouterr().err.startswith("error: ")
