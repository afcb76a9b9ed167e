"""Reads a Perfetto file as Trace Processor does, with the protobufs of the perfetto package: what the page would show.

Packets are put in the order of their times, at one moment in the order of the file. An end closes the innermost open slice of
its track. Interned strings hold from where they stand. Anything that Trace Processor would drop or repair is an error here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    BUILTIN_CLOCK_REALTIME,
    DebugAnnotation,
    Trace,
    TrackDescriptor,
    TrackEvent,
)
from typer.testing import CliRunner, Result

from annotq.cli.main import app
from annotq.collector.query import Door, Limits

CLEARED, NEEDED = 1, 2  # TracePacket.SequenceFlags


def draw(store: Path, target: Path, *arguments: str) -> Result:
    """`annotq perfetto` on a store."""
    command = ["perfetto", *arguments, "-o", str(target)]
    return CliRunner().invoke(app, command, env={"ANNOTQ_DB": str(store)}, catch_exceptions=False)


def rows(store: Path, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
    """All rows of a query, of which there may be many."""
    with Door(store, Limits(rows=1_000_000)) as door:
        return [tuple(row.values()) for row in door.ask(sql, parameters).table.to_pylist()]


@dataclass
class Slice:
    """end is None for an instant; above: the slices it is nested in, outermost first."""

    track: int
    name: str
    category: str
    start: int
    arguments: dict[str, Any]
    flows: list[int]
    ended_flows: list[int]
    above: list[Slice]
    end: int | None = None

    @property
    def duration(self) -> int:
        assert self.end is not None
        return self.end - self.start


@dataclass
class Picture:
    tracks: dict[int, TrackDescriptor] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    counters: dict[int, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    attributes: dict[str, str] = field(default_factory=dict)
    start: int = 0

    def of(self, *categories: str) -> list[Slice]:
        return [one for one in self.slices if one.category in categories]

    def rank(self, track: int) -> int:
        """The rank of the process that a track is in: what the process is ordered by."""
        while not self.tracks[track].HasField("process"):
            track = self.tracks[track].parent_uuid
        return int(self.tracks[track].sibling_order_rank)

    def processes(self) -> list[TrackDescriptor]:
        return [track for track in self.tracks.values() if track.HasField("process")]

    def rows(self, rank: int) -> list[str]:
        """The names of the rows of a rank's process from top to bottom; tracks that the page merges are one row."""
        inside = [track for uuid, track in self.tracks.items() if uuid and self.rank(uuid) == rank]
        (group,) = [track for track in inside if track.parent_uuid and track.child_ordering == TrackDescriptor.EXPLICIT]
        rows = {
            (track.sibling_order_rank, track.sibling_merge_key or track.name, track.name)
            for track in inside
            if track.parent_uuid == group.uuid
        }
        return [name for _, _, name in sorted(rows)]

    def counter(self, rank: int, name: str) -> list[tuple[int, float]]:
        found = [uuid for uuid in self.counters if self.rank(uuid) == rank and self.tracks[uuid].name == name]
        return sorted(self.counters[found[0]]) if found else []


def read_picture(path: Path) -> Picture:
    trace = Trace()
    trace.ParseFromString(path.read_bytes())
    picture = Picture()
    interned: dict[str, dict[int, str]] = defaultdict(dict)
    events: list[tuple[int, TrackEvent, str, str, dict[str, Any]]] = []
    first = trace.packet[0]
    assert first.sequence_flags == CLEARED and first.first_packet_on_sequence
    assert first.trace_packet_defaults.timestamp_clock_id == BUILTIN_CLOCK_REALTIME
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == first.trusted_packet_sequence_id
        for kind in ("event_categories", "event_names", "debug_annotation_names"):
            for one in getattr(packet.interned_data, kind):
                assert one.iid and one.iid not in interned[kind]
                interned[kind][one.iid] = one.name
        for text in packet.interned_data.debug_annotation_string_values:
            interned["texts"][text.iid] = text.str.decode()
        if packet.HasField("clock_snapshot"):
            assert packet.clock_snapshot.primary_trace_clock == BUILTIN_CLOCK_REALTIME
            assert len({clock.timestamp for clock in packet.clock_snapshot.clocks}) == 1
            picture.start = packet.clock_snapshot.clocks[0].timestamp
        for attribute in packet.trace_attributes.attribute:
            picture.attributes[attribute.key] = attribute.string_value
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in picture.tracks and (not track.parent_uuid or track.parent_uuid in picture.tracks)
            picture.tracks[track.uuid] = track
        if packet.HasField("track_event"):
            event = packet.track_event
            assert packet.sequence_flags == NEEDED and event.track_uuid in picture.tracks
            name = interned["event_names"][event.name_iid] if event.name_iid else ""
            categories = [interned["event_categories"][iid] for iid in event.category_iids]
            arguments = {
                interned["debug_annotation_names"][one.name_iid]: _value(one, interned)
                for one in event.debug_annotations
            }
            assert len(arguments) == len(event.debug_annotations)
            events.append((packet.timestamp, event, name, "".join(categories), arguments))
    _replay(picture, sorted(events, key=lambda event: event[0]))
    return picture


def _replay(picture: Picture, events: list[tuple[int, TrackEvent, str, str, dict[str, Any]]]) -> None:
    open_: dict[int, list[Slice]] = defaultdict(list)
    for time, event, name, category, arguments in events:
        track, stack = event.track_uuid, open_[event.track_uuid]
        is_counter = picture.tracks[track].HasField("counter")
        assert is_counter == (event.type == TrackEvent.TYPE_COUNTER)
        if is_counter:
            value = event.double_counter_value if event.HasField("double_counter_value") else event.counter_value
            picture.counters[track].append((time, value))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            stack[-1].end = time
            stack[-1].arguments |= arguments
            stack.pop()
        else:
            flows, ended = list(event.flow_ids), list(event.terminating_flow_ids)
            found = Slice(track, name, category, time, arguments, flows, ended, list(stack))
            picture.slices.append(found)
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                stack.append(found)
    assert not any(open_.values()), "slices that never end"


def _value(annotation: DebugAnnotation, interned: dict[str, dict[int, str]]) -> Any:
    if annotation.dict_entries:
        names = interned["debug_annotation_names"]
        return {names[one.name_iid]: _value(one, interned) for one in annotation.dict_entries}
    if annotation.array_values:
        return [_value(one, interned) for one in annotation.array_values]
    kind = annotation.WhichOneof("value")
    if kind is None:
        return None
    value = getattr(annotation, kind)
    return interned["texts"][value] if kind == "string_value_iid" else value
