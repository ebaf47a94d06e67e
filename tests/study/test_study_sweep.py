from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from study_world import queue_scenario

from kvsim.errors import ConfigError, InputError
from kvsim.study.design import chosen_points, grid, latin_hypercube
from kvsim.study.executor import cluster_executor, run_tasks
from kvsim.study.store import Store
from kvsim.study.sweep import Study, imprecision, sweep

AXES = {"engine.hicache.ratio": [0, 1], "workload.rate_per_s": [2, 5]}


def bytes_of(study: Study) -> str:
    return json.dumps([[r.point, r.replication, r.digest, r.summary, r.capacity, r.reason] for r in study.results])


def small():
    return queue_scenario("workload.requests=60")


def test_serial_and_processes_give_the_same_bytes():
    alone = sweep(small(), AXES, replications=2)
    with ProcessPoolExecutor(2) as pool:
        assert bytes_of(sweep(small(), AXES, replications=2, executor=pool)) == bytes_of(alone)
    assert bytes_of(sweep(small(), AXES, replications=2, workers=2)) == bytes_of(alone)


@pytest.mark.filterwarnings("ignore")  # those of distributed on a busy machine
def test_a_dask_cluster_of_two_workers_gives_the_same_bytes():
    pytest.importorskip("distributed")
    alone = sweep(small(), AXES)
    with cluster_executor("local:2") as executor:
        assert bytes_of(sweep(small(), AXES, executor=executor)) == bytes_of(alone)


@pytest.mark.parametrize("address", ["local:0", "local:x", "local:"])
def test_a_wrong_cluster_address_is_an_error(address: str):
    pytest.importorskip("distributed")
    with pytest.raises(ConfigError, match="local:N"), cluster_executor(address):
        pass


def test_all_points_use_the_same_seeds_and_replications_use_others():
    study = sweep(small(), {"engine.max_running_requests": [1, 2]}, replications=2)
    sent = [list(r.summary["tokens"].values()) for r in study.results if r.summary]
    assert sent[0] == sent[2]
    assert study.results[0].summary != study.results[1].summary


def test_an_infeasible_point_stays_in_the_study_with_its_reason():
    study = sweep("hicache-ratio", {"engine.hicache.ratio": [1000]}, overrides=["workload.sessions=1"])
    assert study.results[0].summary is None
    assert study.results[0].reason


def test_a_finished_study_is_read_back_without_simulating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = sweep(small(), AXES, store=Store(tmp_path))
    monkeypatch.setattr("kvsim.study.sweep.run_point", lambda task: pytest.fail("simulated again"))
    assert bytes_of(sweep(small(), AXES, store=Store(tmp_path))) == bytes_of(first)


def test_a_changed_trace_never_reuses_a_result(tmp_path: Path):
    trace = tmp_path / "t.jsonl"
    row = {"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}
    trace.write_text(json.dumps(row) + "\n")
    one = sweep(
        "toy",
        {"engine.max_running_requests": [4]},
        overrides=[f'workload={{"kind": "trace", "trace": "{trace}"}}'],
        store=Store(tmp_path / "s"),
    )
    trace.write_text(json.dumps({**row, "output_length": 7}) + "\n")
    two = sweep(
        "toy",
        {"engine.max_running_requests": [4]},
        overrides=[f'workload={{"kind": "trace", "trace": "{trace}"}}'],
        store=Store(tmp_path / "s"),
    )
    assert one.results[0].summary is not None
    assert two.results[0].summary is not None
    assert (one.results[0].summary["tokens"]["output"], two.results[0].summary["tokens"]["output"]) == (2, 7)


def test_another_version_never_reuses_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    task = ({"x": 1}, [], 0)
    monkeypatch.setattr("kvsim.study.store.resolve_task", lambda task: type("R", (), {"data": {}, "digest": "d"}))
    first = Store(tmp_path).path(task)
    monkeypatch.setattr("kvsim.study.store.__version__", "9.9")
    assert Store(tmp_path).path(task) != first


def test_a_changed_hardware_profile_is_another_result(tmp_path: Path):
    from kvsim.study.point import plain_scenario

    base = plain_scenario(small())
    store = Store(tmp_path)
    assert store.path((base, [], 0)) != store.path((base, ["hardware.host_ram=512GiB"], 0))


def whole_study(folder: Path, out: Path) -> None:
    study = sweep(queue_scenario("workload.requests=250"), {"workload.rate_per_s": [1, 2, 3, 4, 5, 6]}, replications=2, store=Store(folder))
    out.write_text(bytes_of(study))


def killed_and_resumed(tmp_path: Path, moments: int, seed: int) -> None:
    fork = multiprocessing.get_context("fork")
    start = time.monotonic()
    whole_study(tmp_path / "whole", tmp_path / "whole.json")
    whole = time.monotonic() - start
    rng = random.Random(seed)
    for number in range(moments):
        folder, out = tmp_path / f"s{number}", tmp_path / f"s{number}.json"
        process = fork.Process(target=whole_study, args=(folder, out))
        process.start()
        process.join(rng.uniform(0.02, 1.0) * whole)
        process.kill()
        process.join()
        whole_study(folder, out)
        assert out.read_bytes() == (tmp_path / "whole.json").read_bytes()


def test_a_study_killed_at_random_moments_resumes_to_the_same_bytes(tmp_path: Path):
    killed_and_resumed(tmp_path, 10, seed=1)


@pytest.mark.long
def test_a_study_killed_at_two_hundred_moments_resumes_to_the_same_bytes(tmp_path: Path):
    killed_and_resumed(tmp_path, 200, seed=2)


def die_once(task: tuple[str, int]) -> int:
    flag, number = task
    if number == 3 and not Path(flag).exists():
        Path(flag).write_text("died")
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def die_always(task: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return task


def test_a_worker_killed_mid_sweep_costs_a_retry_not_the_sweep(tmp_path: Path):
    found: dict[int, int] = {}
    run_tasks(die_once, [(str(tmp_path / "flag"), n) for n in range(6)], found.__setitem__, workers=2)
    assert found == {n: n * n for n in range(6)}
    assert (tmp_path / "flag").exists()


def test_workers_that_always_die_are_an_error_with_what_is_left():
    with pytest.raises(InputError, match="2 runs are left"):
        run_tasks(die_always, [1, 2], lambda i, o: None, workers=2)


def test_linked_axes_vary_together():
    assert grid({"a+b": [[1, 2], [3, 4]]}) == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


def test_a_latin_hypercube_has_one_point_in_each_slice_and_is_seeded():
    points = latin_hypercube({"a": (0, 10), "b": (1, 2)}, 10, seed=4)
    assert sorted(int(point["a"]) for point in points) == list(range(10))
    assert points == latin_hypercube({"a": (0, 10), "b": (1, 2)}, 10, seed=4)


def test_ranges_need_a_number_of_points_and_lists_cross_them():
    with pytest.raises(ConfigError, match="--points"):
        chosen_points(["a=1..2"], None, 1)
    _, points = chosen_points(["a=1..2", "b=x,y"], 3, 1)
    assert points is not None
    assert len(points) == 6


def test_sequential_stopping_adds_replications_until_the_precision_is_reached():
    study = sweep(queue_scenario("workload.requests=200"), {"workload.rate_per_s": [5]}, precision=0.2)
    assert len(study.results) >= 3
    assert imprecision(study.results, 0.2) is None
    assert "reached" in study.precision_notes[0]


def test_sequential_stopping_says_why_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kvsim.study.sweep.MOST_REPLICATIONS", 4)
    study = sweep(queue_scenario("workload.requests=50"), {"workload.rate_per_s": [9]}, precision=0.001)
    assert len(study.results) == 4
    assert "not reached with 4 replications: the half-width is" in study.precision_notes[0]
