"""Cache-level recordings of both engine versions, replayed on the cache the simulation uses."""

import dataclasses
import json

import pytest

from kvsim.errors import InvariantError, TraceError
from kvsim.kv.invariants import check
from kvsim.rules.sglang import SGLANG_0_5_9, SGLANG_0_5_23, SglangRules
from kvsim.verify.cache_replay import FORMAT, CacheReplay, load_recording, replay_cache, replay_cache_file

FOLDERS = {"oracle": (SGLANG_0_5_9, 94, 15_663), "oracle_0523": (SGLANG_0_5_23, 82, 11_551)}


def recordings(folder):
    for path in sorted(folder.glob("*.json")):
        recording = json.loads(path.read_text())
        if recording["format"] == FORMAT:
            yield path, recording


@pytest.mark.parametrize("name", FOLDERS)
def test_all_cache_recordings_replay_with_no_difference(shared, name):
    rules, files, rows = FOLDERS[name]
    results = [replay_cache(recording, path.name) for path, recording in recordings(shared / name)]
    assert [result for result in results if not result.ok] == []
    assert {result.rules for result in results} == {rules.name}
    assert (len(results), sum(result.rows for result in results)) == (files, rows)
    assert all(result.rows == result.of and not result.finding for result in results)


@pytest.mark.parametrize("name", FOLDERS)
def test_the_laws_of_the_cache_hold_during_replays(shared, name):
    for path, recording in list(recordings(shared / name))[::3]:
        player = CacheReplay(recording)
        for index, op in enumerate(recording["ops"]):
            player.step(op)
            if index % 20 == 0:
                check(player.cache, [h for h in player.holdings.values() if h.node is not None])
        assert player.now == len(recording["ops"]), path


def test_with_defects_kept_the_engine_fails_at_the_recorded_step(shared):
    """Nine write_back traces were cut where 0.5.9 failed and recorded again, repaired: the finding is at the cut."""
    keep = dataclasses.replace(SGLANG_0_5_9, defects="keep")
    found = {}
    for path in sorted((shared / "oracle").glob("rand_*_patched.json")):
        cut = path.with_name(path.name.replace("_patched", ""))
        result = replay_cache_file(path, keep)
        assert result.ok
        assert "fails here" in result.finding
        found[path.name] = (result.rows, len(load_recording(cut, FORMAT)["ops"]))
    assert len(found) == 9
    assert all(failed == recorded for failed, recorded in found.values())


def test_with_defects_kept_traces_that_did_not_fail_replay_to_their_end(shared):
    keep = dataclasses.replace(SGLANG_0_5_9, defects="keep")
    for path, recording in recordings(shared / "oracle"):
        if not recording["meta"].get("patched"):
            result = replay_cache(recording, path.name, keep)
            assert (result.ok, result.finding, result.rows) == (True, "", len(recording["ops"])), path.name


def test_a_changed_answer_is_reported_with_row_field_and_both_values(shared):
    recording = load_recording(shared / "oracle" / "hand_wt_demote_loadback.json", FORMAT)
    row, op = next((i, op) for i, op in enumerate(recording["ops"]) if "dem" in op)
    op["dem"] += 1
    result = replay_cache(recording, "changed")
    assert not result.ok
    assert result.mismatch is not None
    assert (result.mismatch.row, result.mismatch.field) == (row, "dem")
    assert result.mismatch.expected == result.mismatch.got + 1
    assert result.mismatch.around["op"]["op"] == op["op"]


def test_a_changed_final_tree_is_reported(shared):
    recording = load_recording(shared / "oracle" / "hand_wt_demote_loadback.json", FORMAT)
    recording["final_tree"][0][1] += 1
    assert replay_cache(recording).mismatch.field == "final_tree"


def test_the_replay_uses_the_load_back_threshold_of_the_cache(shared):
    path = shared / "oracle" / "hand_loadback_threshold_9.json"
    assert replay_cache_file(path).ok
    assert replay_cache_file(path, load_back_threshold=9).mismatch.field == "load"


def test_a_file_that_is_no_recording_is_named_with_what_is_wrong(tmp_path):
    for text in ("{", "[]", '{"format": "other/1"}'):
        path = tmp_path / "x.json"
        path.write_text(text)
        with pytest.raises(TraceError, match=r"x\.json: (is not a readable recording|format is)"):
            load_recording(path, FORMAT)


def test_a_recording_of_an_unknown_engine_is_refused(shared):
    recording = load_recording(shared / "oracle" / "hand_wt_demote_loadback.json", FORMAT)
    recording["meta"]["engine"] = "sglang 9.9"
    with pytest.raises(TraceError, match=r"no rules for 'sglang 9\.9'; known: sglang-0\.5\.23, sglang-0\.5\.9"):
        replay_cache(recording)


# Single-rule changes that no cache-level recording of the version sees, and why.
SURVIVES = {
    "sglang-0.5.9": {
        "write_through_hits-1": "no node is passed with 0 hits",
        "slru_protected_hits+1": "0.5.9 has no slru", "slru_protected_hits-1": "0.5.9 has no slru",
        "split_at_prompt_end": "the prompt ends a node already, except after a retraction",
        "prompt_priority_bonus+1": "needs split_at_prompt_end", "prompt_priority_bonus-1": "needs split_at_prompt_end",
        "merge_writes": "copies queued within one op are submitted within it",
        "backup_chain": "the host is larger than the device, so no backup fails for good",
        "write_back_one_by_one": "only which victim of one eviction leaves the host again; the naive model decides",
    },
    "sglang-0.5.23": {
        "write_through_hits-1": "no node is passed with 0 hits",
        "raise_priority_before_split": "recorded requests have priority 0, the prompt's split is no insert here",
        "prompt_priority_bonus+1": "only the order of priorities matters",
    },
}


def single_changes(rules):
    names = [f.name for f in dataclasses.fields(SglangRules)]
    for name in names[1 : names.index("defects")]:
        value = getattr(rules, name)
        if isinstance(value, bool):
            yield name, {name: not value}
        else:
            yield from ((f"{name}{step:+d}", {name: value + step}) for step in (1, -1))


@pytest.mark.long
@pytest.mark.parametrize("name", FOLDERS)
def test_every_other_single_rule_of_the_cache_is_decided_by_a_recording(shared, name):
    rules = FOLDERS[name][0]
    all_of_them = list(recordings(shared / name))
    survivors = []
    for change, values in single_changes(rules):
        changed = dataclasses.replace(rules, **values)
        if not any(differs(recording, changed) for _, recording in all_of_them):
            survivors.append(change)
    assert sorted(survivors) == sorted(SURVIVES[rules.name])


def differs(recording, rules):
    try:
        result = replay_cache(recording, rules=rules)
    except InvariantError:
        return True
    return not result.ok or bool(result.finding)
