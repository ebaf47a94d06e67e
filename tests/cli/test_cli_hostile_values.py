"""Every key of the schema with values nobody means: a clear error or an answer, never a traceback, never a hang."""

from __future__ import annotations

import contextlib
import io
import json
import signal

import pytest

from kvsim.cli.app import run_command

VALUES = (
    "-1", "0", "1e400", ".nan", "inf", '""', "[]", "{}", "null", "true", "1e9", "999999999999999999999999", "10s", "5GiB", "abc", "-0.5",
    "[1,2]", "{a: 1}", "0x10", "1_000", "!!python/object:os.system x",
)  # fmt: skip
BASES = ("toy", "anchor-vllm", "hicache-ratio")


def run(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command(list(words))
    return code, out.getvalue(), err.getvalue()


def keys() -> list[str]:
    """Return every key path of the scenario schema."""
    schema = json.loads(run("schema")[1])
    found: set[str] = set()

    def walk(node: dict, path: tuple[str, ...]) -> None:
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].split("/")[-1]]
        for kind in ("anyOf", "oneOf", "allOf"):
            for other in node.get(kind, []):
                walk(other, path)
        for name, below in node.get("properties", {}).items():
            found.add(".".join((*path, name)))
            if len(path) < 4:
                walk(below, (*path, name))

    walk(schema, ())
    return sorted(found)


def check(command: str, base: str, setting: str) -> None:
    def late(*_: object) -> None:
        raise AssertionError(f"kvsim {command} {base} --set {setting}: no answer after 20 s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    try:
        code, _, err = run(command, base, "--set", setting)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert code in (0, 1, 2), setting
    assert "Traceback" not in err
    if code == 2:
        assert err.strip(), setting


def cases(part: int) -> list[tuple[str, str]]:
    """Return one in ``part`` of all (base, setting) pairs, spread evenly."""
    settings = [f"{key}={value}" for key in keys() for value in VALUES]
    pairs = [(base, setting) for base in BASES for setting in settings]
    return pairs[::part]


def test_the_schema_has_its_keys():
    assert {"engine.hicache.ratio", "workload.turns", "links.h2d", "run.seed"} <= set(keys())


def test_a_sample_of_keys_with_hostile_values_is_answered():
    for base, setting in cases(97):
        check("explain", base, setting)


@pytest.mark.long
@pytest.mark.parametrize("part", range(20))
def test_every_key_with_every_hostile_value_is_answered(part):
    for base, setting in cases(1)[part::20]:
        check("explain", base, setting)


@pytest.mark.parametrize(
    "setting",
    [
        "links.h2d=0", "links.d2h=-1", "workload.tenants=1e9", "workload.output_tokens={}", "workload.output_tokens={low: 5, high: 2}",
        "workload.prompt_tokens={dist: pareto, mean: 100, cv: 0}", "engine.cuda_graph_max_bs=999999999999999999999999", "engine.page_size=1e9", "engine.free_before_weights=0", "workload.requests=1e12",
    ],
)  # fmt: skip
def test_values_that_once_broke_it(setting):
    check("run" if "pareto" in setting else "explain", "toy", setting)
    check("explain", "hicache-ratio", setting)


@pytest.mark.parametrize(
    "setting", ["engine.data_parallel_size=16", "workload.turns=1e9", "workload.sessions=1e9", "costs.routing_dispersion=1e24", "workload.think_time={}"]
)
def test_values_that_once_broke_the_other_engine(setting):
    check("explain", "anchor-vllm", setting)
