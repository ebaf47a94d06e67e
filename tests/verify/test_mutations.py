"""Single-rule mutations of the engine's rules are caught by recordings; survivors are listed with their reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mutation_survivors import reason, survivors
from mutations import all_mutations

from kvsim.errors import KvsimError
from kvsim.rules.sglang import RULES
from kvsim.verify import cache_replay, sched_replay
from kvsim.verify.run import FORMATS

FOLDERS = {"sglang-0.5.9": "oracle", "sglang-0.5.23": "oracle_0523"}
CASES = [(version, name) for version in FOLDERS for name in all_mutations(RULES[version])]
SAMPLE = [
    "load_back_threshold=9",
    "evict_full_amount",
    "reserve_extra_page",
    "poll_every_iteration",
    "decode: the ratio does not decay",
    "retraction: longest prompt stays",
    "slots: one more",
]
_loaded: dict[str, list[tuple[str, dict[str, Any]]]] = {}


def recordings(shared: Path, version: str) -> list[tuple[str, dict[str, Any]]]:
    """The recordings of a version, scheduler level first, short ones first, production size last."""
    if version not in _loaded:
        found = []
        for path in (shared / FOLDERS[version]).glob("*.json"):
            recording = cache_replay.load_recording(path, *FORMATS)
            order = (path.name.startswith("prod"), recording["format"] == cache_replay.FORMAT, path.stat().st_size)
            found.append((order, path.name, recording))
        _loaded[version] = [(name, recording) for _, name, recording in sorted(found, key=lambda entry: entry[:2])]
    return _loaded[version]


def catches(recording: dict[str, Any], rules: Any) -> bool:
    """Whether a replay differs (or cannot even be carried out)."""
    try:
        if recording["format"] == cache_replay.FORMAT:
            result = cache_replay.replay_cache(recording, "", rules)
        else:
            result = sched_replay.replay_sched(recording, "", rules)
    except (KvsimError, AssertionError, IndexError, ValueError):
        return True
    return not result.ok or bool(result.finding)


def caught_by(shared: Path, version: str, name: str) -> str | None:
    """The first recording that catches a mutation."""
    with pytest.MonkeyPatch.context() as patch:
        rules = all_mutations(RULES[version])[name](patch, RULES[version])
        return next((file for file, recording in recordings(shared, version) if catches(recording, rules)), None)


@pytest.mark.long
@pytest.mark.parametrize(("version", "name"), CASES)
def test_a_changed_rule_is_caught_or_known_to_survive(shared: Path, version: str, name: str) -> None:
    why = reason(version, name)
    caught = caught_by(shared, version, name)
    if why is None:
        assert caught is not None, f"no recording of {version} notices '{name}'"
    else:
        assert caught is None, f"'{name}' is caught by {caught} after all: take it off the list ({why})"


@pytest.mark.parametrize("version", FOLDERS)
def test_a_sample_of_changed_rules_is_caught(shared: Path, version: str) -> None:
    names = all_mutations(RULES[version])
    for wanted in SAMPLE:
        name = next(name for name in names if name == wanted or name.startswith(wanted + "="))
        assert caught_by(shared, version, name) is not None, name


@pytest.mark.parametrize("version", FOLDERS)
def test_at_least_sixty_changed_rules_per_version_must_be_caught(version: str) -> None:
    names = all_mutations(RULES[version])
    must = [name for name in names if reason(version, name) is None]
    assert len(must) >= 100
    assert len(names) >= 150


@pytest.mark.parametrize("version", FOLDERS)
def test_every_survivor_on_the_list_is_a_mutation_that_is_tried(version: str) -> None:
    names = all_mutations(RULES[version])
    rules = {name.partition("=")[0] for name in names}
    assert [name for name in survivors(version) if name not in names and name not in rules] == []


@pytest.mark.parametrize("version", FOLDERS)
def test_every_mutation_still_finds_the_expression_it_changes(version: str) -> None:
    for mutate in all_mutations(RULES[version]).values():
        with pytest.MonkeyPatch.context() as patch:
            mutate(patch, RULES[version])
