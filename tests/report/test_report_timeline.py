"""The Perfetto timeline, read back with a protobuf parser and compared with the recording."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from report_world import MS, S, fabricate, scenario

from kvsim.record.recording import Recording, RequestRow
from kvsim.report.perfetto import loads_of_steps, phases, write_timeline


@pytest.fixture(scope="module")
def trace(tmp_path_factory, fabricated):
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    path = write_timeline(fabricated, tmp_path_factory.mktemp("trace") / "t.pftrace")
    parsed = Trace()
    parsed.ParseFromString(path.read_bytes())
    return parsed


def slices(trace):
    """Return (track name, slice name, begin ns, end ns, flow ids) of every slice, checking that begins and ends pair
    up.
    """
    names = {
        p.track_descriptor.uuid: p.track_descriptor.name or p.track_descriptor.process.process_name
        for p in trace.packet
        if p.HasField("track_descriptor")
    }
    open_, out = {}, []
    for packet in trace.packet:
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        if event.type == event.TYPE_SLICE_BEGIN:
            open_.setdefault(event.track_uuid, []).append((event.name, packet.timestamp, tuple(event.flow_ids)))
        elif event.type == event.TYPE_SLICE_END:
            name, begin, flows = open_[event.track_uuid].pop()
            out.append((names[event.track_uuid], name, begin, packet.timestamp, flows))
    assert not any(open_.values())
    return out


def test_each_row_of_the_steps_table_is_a_slice_with_its_times(trace, fabricated):
    drawn = Counter((begin, end) for track, _, begin, end, _ in slices(trace) if track == "steps")
    assert drawn == Counter((row[2] // 1000, row[3] // 1000) for row in fabricated.steps)


def test_each_copy_is_a_slice_of_its_direction(trace, fabricated):
    for name, direction in (("link host to device", "h2d"), ("link device to host", "d2h")):
        drawn = Counter((begin, end) for track, _, begin, end, _ in slices(trace) if track.startswith(name))
        assert drawn == Counter((row[3] // 1000, row[4] // 1000) for row in fabricated.transfers if row[1] == direction)


def test_each_request_has_a_track_whose_phases_split_its_life(trace, fabricated):
    drawn = slices(trace)
    for row in fabricated.requests:
        own = sorted((begin, end, name) for track, name, begin, end, _ in drawn if track == f"request {row.id}")
        assert own[0][0] == row.arrival_ps // 1000
        assert own[-1][1] == row.end_ps // 1000
        assert all(a[1] == b[0] for a, b in itertools.pairwise(own))


def test_an_arrow_leads_from_each_load_to_a_step_that_waited_for_it(trace, fabricated):
    drawn = slices(trace)
    starts = {flow for track, _, _, _, flows in drawn if track.startswith("link") for flow in flows}
    ends = [flow for track, _, _, _, flows in drawn if track == "steps" for flow in flows]
    loads = sum(1 for row in fabricated.transfers if row[1] == "h2d")
    assert loads > 0
    assert len(starts) == loads
    assert sorted(ends) == sorted(starts)


def test_counters_show_every_change(trace, fabricated):
    names = {p.track_descriptor.uuid: p.track_descriptor.name for p in trace.packet if p.HasField("track_descriptor")}
    values = [
        (p.timestamp, p.track_event.counter_value)
        for p in trace.packet
        if p.HasField("track_event")
        and p.track_event.type == p.track_event.TYPE_COUNTER
        and names[p.track_event.track_uuid] == "device tokens"
    ]
    expected, last = [], None
    for row in fabricated.steps:
        if row[14] != last:
            last = row[14]
            expected.append((row[3] // 1000, last))
    assert values == expected


def test_a_refused_request_shows_its_status():
    row = RequestRow("x", None, 0, "", 0, "refused", "too long", 5, None, None, 5, 9, 0, 0, 0, 0, 0, 0, 0, 0)
    assert list(phases(row, 100)) == [("refused", 5, 5)]


def test_the_phases_of_a_load_add_up_to_the_first_token():
    row = RequestRow("x", None, 0, "", 0, "finished", "", 0, 2 * S, 5 * S, 9 * S, 9, 3, 0, 4, 0, 0, 0, 1 * S, 2 * S)
    assert [(name, (end - start) // S) for name, start, end in phases(row, 0)] == [
        ("queue", 2),
        ("load", 1),
        ("prefill", 2),
        ("decode", 4),
    ]


def test_two_copies_for_one_step_are_both_matched_to_it():
    recording = Recording(scenario())
    recording.steps.append((0, "prefill", 0, 10 * MS, 1, 0, 0, 2, 5, 30, 30, 0, 2, 0, 35, 0, 35, 2, 0))
    recording.transfers += [
        (0, "h2d", 0, 0, MS, 10, 1),
        (0, "h2d", 0, MS, 2 * MS, 20, 1),
        (0, "h2d", 20 * MS, 20 * MS, 21 * MS, 7, 1),
    ]
    assert loads_of_steps(recording, 0) == {0: [0, 1]}


def test_overlapping_copies_get_lanes_of_their_own(tmp_path):
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    recording = fabricate(2)
    recording.transfers[:] = [(0, "d2h", 0, 0, 10 * MS, 1, 1), (0, "d2h", 0, 5 * MS, 15 * MS, 1, 1)]
    parsed = Trace()
    parsed.ParseFromString(write_timeline(recording, tmp_path / "t").read_bytes())
    tracks = {track for track, *_ in slices(parsed) if track.startswith("link device")}
    assert tracks == {"link device to host", "link device to host (2)"}
