"""A run as a Perfetto timeline: steps, copies, requests, counters, and an arrow from each load to the step that waited
for it.

Simulated time only, in integer nanoseconds (picoseconds rounded down). Open the file in the public viewer
(ui.perfetto.dev); nothing is uploaded by it. Written with Perfetto's official builder.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import ConfigError, MissingExtra
from kvsim.record.recording import STEP_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.record.recording import Recording, RequestRow

SEQUENCE = 1
COUNTERS = (
    ("device tokens", "device_used"),
    ("host tokens", "host_used"),
    ("running", "running"),
    ("waiting", "waiting"),
)
LINKS = (("link host to device", "h2d", "load back"), ("link device to host", "d2h", "back up"))
NOTES = ("steps", "batch", "prefills", "new_tokens", "cached_tokens", "load_tokens", "load_wait_ps", "sum_context")


def write_timeline(recording: Recording, path: str | Path) -> Path:
    """Write the timeline of a run and return its path. Raises MissingExtra without the perfetto package."""
    try:
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder
    except ImportError:
        raise MissingExtra("the Perfetto timeline", "trace") from None
    timeline = Timeline(TraceProtoBuilder())
    timeline.draw(recording)
    target = Path(path)
    try:
        target.write_bytes(timeline.builder.serialize())
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written: {error.strerror}") from None
    return target


def ns(ps: int) -> int:
    """Return picoseconds as whole nanoseconds."""
    return ps // 1000


class Timeline:
    """Fills a trace builder with the tracks of one recording."""

    def __init__(self, builder: Any) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

        self.builder = builder
        self._begin, self._end, self._count = (
            TrackEvent.TYPE_SLICE_BEGIN,
            TrackEvent.TYPE_SLICE_END,
            TrackEvent.TYPE_COUNTER,
        )
        self._tracks = 0

    def draw(self, recording: Recording) -> None:
        """Write every track of the recording."""
        replicas = sorted({row[0] for row in recording.steps} | {row.replica for row in recording.requests})
        for replica in replicas:
            process = self._process(replica)
            flows = self._links(recording, replica, process)
            self._steps(recording, replica, process, flows)
            self._counters(recording, replica, process)
            self._requests(recording, replica, process)

    # ---- tracks
    def _process(self, replica: int) -> int:
        packet = self.builder.add_packet()
        self._tracks += 1
        packet.trusted_packet_sequence_id = SEQUENCE
        descriptor = packet.track_descriptor
        descriptor.uuid = self._tracks
        descriptor.process.pid = replica + 1
        descriptor.process.process_name = f"replica {replica}"
        return self._tracks

    def _track(self, name: str, parent: int, *, counter: bool = False) -> int:
        packet = self.builder.add_packet()
        self._tracks += 1
        packet.trusted_packet_sequence_id = SEQUENCE
        descriptor = packet.track_descriptor
        descriptor.uuid, descriptor.parent_uuid, descriptor.name = self._tracks, parent, name
        if counter:
            descriptor.counter.SetInParent()
        return self._tracks

    def _slice(
        self,
        track: int,
        name: str,
        start: int,
        end: int,
        *,
        flows: tuple[int, ...] = (),
        notes: dict[str, int] | None = None,
    ) -> None:
        event = self._event(track, start, self._begin)
        event.name = name
        if flows:
            event.flow_ids.extend(flows)
        for key, value in (notes or {}).items():
            annotation = event.debug_annotations.add()
            annotation.name, annotation.int_value = key, value
        self._event(track, end, self._end)

    def _event(self, track: int, at: int, kind: int) -> Any:
        packet = self.builder.add_packet()
        packet.timestamp = ns(at)
        packet.trusted_packet_sequence_id = SEQUENCE
        event = packet.track_event
        event.type, event.track_uuid = kind, track
        return event

    # ---- contents
    def _links(self, recording: Recording, replica: int, process: int) -> dict[int, list[int]]:
        """Draw the copies; return the flow ids of the loads that each step (by its index) waited for."""
        matched = loads_of_steps(recording, replica)
        flow_of = {transfer: 1 + (replica << 40) + transfer for transfers in matched.values() for transfer in transfers}
        for name, direction, verb in LINKS:
            track = self._track(name, process)
            rows = [(i, row) for i, row in enumerate(recording.transfers) if row[0] == replica and row[1] == direction]
            for lane, group in _lanes(rows):
                own = track if lane == 0 else self._track(f"{name} ({lane + 1})", process)
                for i, row in group:
                    flows = (flow_of[i],) if i in flow_of else ()
                    self._slice(
                        own,
                        verb,
                        row[3],
                        row[4],
                        flows=flows,
                        notes={"tokens": row[5], "bytes_per_rank": row[6], "queued_ps": row[3] - row[2]},
                    )
        return {step: [flow_of[t] for t in transfers] for step, transfers in matched.items()}

    def _steps(self, recording: Recording, replica: int, process: int, flows: dict[int, list[int]]) -> None:
        track = self._track("steps", process)
        places = [(name, STEP_COLUMNS.index(name)) for name in NOTES]
        for i, row in enumerate(recording.steps):
            if row[0] == replica:
                notes = {name: row[place] for name, place in places if row[place]}
                name = row[1] if row[4] == 1 else f"{row[1]} x{row[4]}"
                self._slice(track, name, row[2], row[3], flows=tuple(flows.get(i, ())), notes=notes)

    def _counters(self, recording: Recording, replica: int, process: int) -> None:
        for name, column in COUNTERS:
            track, place, last = self._track(name, process, counter=True), STEP_COLUMNS.index(column), None
            for row in recording.steps:
                if row[0] == replica and row[place] != last:
                    last = row[place]
                    self._event(track, row[3], self._count).counter_value = last

    def _requests(self, recording: Recording, replica: int, process: int) -> None:
        parent = self._track("requests", process)
        for row in sorted((r for r in recording.requests if r.replica == replica), key=lambda r: (r.arrival_ps, r.id)):
            track = self._track(f"request {row.id}", parent)
            for name, start, end in phases(row, recording.manifest.get("end_ps") or 0):
                notes = (
                    {"prompt_tokens": row.prompt_tokens, "device_hit": row.device_hit, "host_hit": row.host_hit}
                    if name == "prefill"
                    else None
                )
                self._slice(track, name, start, end, notes=notes)


def phases(row: RequestRow, horizon_ps: int) -> Iterator[tuple[str, int, int]]:
    """Yield (name, start, end) in ps of a request's life: queue, load, prefill, decode; the split of TTFT is exact.

    The load is drawn first after admission; where in the step the wait really fell is not recorded.
    """
    end = row.end_ps if row.end_ps is not None else max(horizon_ps, row.arrival_ps)
    if row.admitted_ps is None:
        yield row.status if row.status != "finished" else "queue", row.arrival_ps, end
        return
    yield "queue", row.arrival_ps, row.admitted_ps
    first = row.first_token_ps if row.first_token_ps is not None else end
    loaded = min(row.admitted_ps + row.load_wait_ps, first)
    if row.load_wait_ps:
        yield "load", row.admitted_ps, loaded
    yield "prefill", loaded, first
    if row.first_token_ps is not None:
        yield "decode", first, end


def loads_of_steps(recording: Recording, replica: int) -> dict[int, list[int]]:
    """Return, for each step that loaded (by index in the steps table), the indices of its host-to-device transfers.

    Loads are started in the order of the steps that need them, so both are walked in order and matched by tokens.
    """
    transfers = sorted(
        (i for i, row in enumerate(recording.transfers) if row[0] == replica and row[1] == "h2d"),
        key=lambda i: (recording.transfers[i][2], i),
    )
    out: dict[int, list[int]] = {}
    at, load = 0, STEP_COLUMNS.index("load_tokens")
    for i, row in enumerate(recording.steps):
        wanted = row[load] if row[0] == replica else 0
        while wanted > 0 and at < len(transfers) and recording.transfers[transfers[at]][2] <= row[3]:
            out.setdefault(i, []).append(transfers[at])
            wanted -= recording.transfers[transfers[at]][5]
            at += 1
    return out


def _lanes(rows: list[tuple[int, Any]]) -> list[tuple[int, list[tuple[int, Any]]]]:
    """Distribute copies over as few lanes as needed so that no two of a lane overlap (slices must nest)."""
    lanes: list[list[tuple[int, Any]]] = [[]]
    ends = [0]
    for i, row in sorted(rows, key=lambda item: (item[1][3], item[1][4], item[0])):
        lane = next((k for k, end in enumerate(ends) if end <= row[3]), None)
        if lane is None:
            lane = len(lanes)
            lanes.append([])
            ends.append(0)
        lanes[lane].append((i, row))
        ends[lane] = row[4]
    return list(enumerate(lanes))
