"""Small worlds: the real machine, frame by frame."""

from __future__ import annotations

import pytest

from kvsim.errors import InputError, KvsimError
from kvsim.web.lessons.prefix import TIERS
from kvsim.web.world import Settings, build_world
from kvsim.web.world_figures import pools_chart, request_table, rows_of_tree, tree_chart


@pytest.fixture(scope="module")
def world():
    return build_world(TIERS, Settings(device_tokens=900, host_tokens=1500))


def test_frames_go_forward_in_time_and_back_by_index(world):
    clocks = [frame.clock_s for frame in world.frames]
    assert clocks == sorted(clocks)
    assert world.frame(-5) is world.frames[0]
    assert world.frame(10**6) is world.frames[-1]
    assert [frame.number for frame in world.frames] == list(range(len(world.frames)))


def test_the_world_begins_empty_and_ends_with_everybody_served(world):
    first, last = world.frames[0], world.frames[-1]
    assert (first.device_used, first.host_used, first.nodes) == (0, 0, ())
    assert [view.state for view in last.requests] == ["finished"] * 4


def test_tree_tokens_on_the_host_are_the_host_pools_tokens(world):
    for frame in world.frames:
        assert sum(node.tokens for node in frame.nodes if "host" in node.where) == frame.host_used


def test_tree_tokens_on_the_device_never_exceed_the_device_pool(world):
    for frame in world.frames:
        on_device = sum(node.tokens for node in frame.nodes if "device" in node.where)
        assert on_device <= frame.device_used <= frame.device_tokens


def test_a_text_that_left_the_device_is_loaded_back_for_its_user(world):
    said = [event for frame in world.frames for event in frame.events]
    assert any("anna: the node leaves the device, its host copy stays" in event for event in said)
    assert any("anna: the node is loaded back from the host" in event for event in said)
    final = {view.id: view for view in world.frames[-1].requests}
    assert (final["4"].device_hit, final["4"].host_hit) == (400, 219)


def test_without_a_host_tier_what_leaves_is_lost():
    world = build_world(TIERS, Settings(device_tokens=900, host_tokens=0))
    said = [event for frame in world.frames for event in frame.events]
    assert any("leaves the device and is lost" in event for event in said)
    assert world.frames[-1].requests[3].host_hit == 0


def test_a_running_request_locks_its_path(world):
    frame = next(f for f in world.frames if any(v.id == "4" and v.state == "running" for v in f.requests) and f.title.startswith("decode"))
    locked = {node.label for node in frame.nodes if node.locked}
    assert "sys" in locked
    assert "anna" in locked


def test_children_lie_inside_the_band_of_their_parent(world):
    nodes = world.frames[-1].nodes
    bands = rows_of_tree(nodes)
    for node in nodes:
        if node.parent in bands:
            low, high = bands[node.parent]
            assert low <= bands[node.id][0] < bands[node.id][1] <= high
    leaves = [bands[n.id] for n in nodes if n.id not in {m.parent for m in nodes}]
    assert len(set(leaves)) == len(leaves)


def test_the_tree_is_drawn_with_every_node_and_its_place(world):
    frame = world.frames[-1]
    spec = tree_chart(frame).to_dict()
    data = spec["data"]["values"] if "values" in spec.get("data", {}) else spec["layer"][0]["data"]["values"]
    assert {row["label"] for row in data} == {node.label for node in frame.nodes}
    assert {row["where"] for row in data} <= {"device", "device and host", "host"}
    assert "tokens" in spec["layer"][0]["encoding"]["x"]["title"]


def test_pools_and_requests_are_shown_as_they_are(world):
    frame = world.frames[-1]
    spec = pools_chart(frame).to_dict()
    rows = spec["data"]["values"] if "values" in spec.get("data", {}) else spec["layer"][0]["data"]["values"]
    assert {row["pool"]: (row["used"], row["capacity"]) for row in rows} == {
        "device": (frame.device_used, 900),
        "host": (frame.host_used, 1500),
    }
    assert len(request_table(frame).rows) == 4


def test_watching_changes_nothing():
    from kvsim.config.load import load_data
    from kvsim.config.resolve import resolve
    from kvsim.sim.simulate import simulate
    from kvsim.web.script import ScriptClient, parse

    settings = Settings(device_tokens=900, host_tokens=1500)
    watched = build_world(TIERS, settings).recording
    plain = simulate(resolve(load_data(settings.scenario(), [], "t")), client=ScriptClient(parse(TIERS).specs))
    assert watched.requests == plain.requests
    assert watched.steps == plain.steps
    assert watched.transfers == plain.transfers


def test_settings_the_engine_refuses_are_an_error_of_ours():
    with pytest.raises(KvsimError):
        build_world(TIERS, Settings(eviction="nonsense"))


def test_a_world_that_runs_too_long_is_refused():
    with pytest.raises(InputError, match="more than 5,000 frames"):
        build_world("0 a:10 9000", Settings(device_tokens=10_000))
