"""A Perfetto trace file while it is written: the clock, interned strings, tracks, events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    BUILTIN_CLOCK_BOOTTIME,
    BUILTIN_CLOCK_REALTIME,
    InternedData,
    Trace,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)

from annotq.cli.perfetto.interned import Interned, Value
from annotq.cli.perfetto.wire import SEQUENCE, TIME_BYTES, Begin, Event, fields, time

# Parts of packets that are gathered before they go to the file.
PARTS = 100_000


class TraceFile:
    """Writes packets in the order of the calls. Readers sort them by time; at one moment the order of the file counts.

    Times are nanoseconds since the epoch on CLOCK_REALTIME, the same numbers as in the store plus shift_ns.
    """

    def __init__(self, file: BinaryIO, shift_ns: int = 0) -> None:
        self.shift_ns = shift_ns
        self.slices = 0
        self.interned = Interned(self._write_interned)
        self._file = file
        self._parts: list[bytes] = []
        self._tracks = 0

    def start(self, moment_ns: int, attributes: Mapping[str, str]) -> None:
        """The packets before the first event: nothing before counts, which clock the times are of, what the file is about."""
        first = TracePacket(
            sequence_flags=TracePacket.SEQ_INCREMENTAL_STATE_CLEARED,
            first_packet_on_sequence=True,
            previous_packet_dropped=1,
        )
        first.trace_packet_defaults.timestamp_clock_id = BUILTIN_CLOCK_REALTIME
        self._write(first)
        # The file has one clock. BOOTTIME, the clock of readers that do not look at primary_trace_clock, reads the same.
        clocks = TracePacket()
        for clock in (BUILTIN_CLOCK_REALTIME, BUILTIN_CLOCK_BOOTTIME):
            clocks.clock_snapshot.clocks.add(clock_id=clock, timestamp=max(0, moment_ns + self.shift_ns))
        clocks.clock_snapshot.primary_trace_clock = BUILTIN_CLOCK_REALTIME
        self._write(clocks)
        about = TracePacket()
        for name, value in attributes.items():
            about.trace_attributes.attribute.add(key=name, string_value=value)
        self._write(about)

    def new_track(self) -> int:
        """A number (uuid) for a track that add_track then describes."""
        self._tracks += 1
        return self._tracks

    def add_track(self, track: TrackDescriptor) -> None:
        self._write(TracePacket(track_descriptor=track))

    def begin(self, track: int | None, name: str, category: str, arguments: Mapping[str, Value]) -> Event:
        """The begin of a slice on a track, to be written as often as it happens. None: wire.track is to be added."""
        return self._event(TrackEvent.TYPE_SLICE_BEGIN, track, name, category, arguments)

    def instant(self, track: int, name: str, category: str, arguments: Mapping[str, Value]) -> Event:
        return self._event(TrackEvent.TYPE_INSTANT, track, name, category, arguments)

    def end(self, track: int) -> Event:
        """The end of the innermost open slice of a track."""
        return Event(fields(TrackEvent(type=TrackEvent.TYPE_SLICE_END, track_uuid=track)))

    def arguments(self, values: Mapping[str, Value]) -> bytes:
        """Arguments as the tail of an event."""
        found = self.interned.arguments(values)
        self.interned.flush()
        return found

    def put(self, packet: Begin, moment: bytes, tail: bytes = b"") -> None:
        """One event at a moment (as wire.times writes it)."""
        self._parts += (packet.head, moment, packet.rest, tail)
        if len(self._parts) > PARTS:
            self.flush()

    def slice_at(self, begin: Begin, end: Begin, start_ns: int, end_ns: int, tail: bytes = b"") -> None:
        """A slice that nothing is nested in, from the packets that begin and end it; tail: of the packet that begins it."""
        self.put(begin, time(start_ns + self.shift_ns), tail)
        self.put(end, time(end_ns + self.shift_ns))
        self.slices += 1

    def count_at(self, track: int, moment_ns: int, value: int | float) -> None:
        """A value of a counter track from a moment on."""
        event = TrackEvent(type=TrackEvent.TYPE_COUNTER, track_uuid=track)
        if isinstance(value, int):
            event.counter_value = value
        else:
            event.double_counter_value = value
        self.put(Event(fields(event)).packet(), time(moment_ns + self.shift_ns))

    def flush(self) -> None:
        self._file.write(b"".join(self._parts))
        self._parts.clear()

    def _event(
        self, kind: TrackEvent.Type, track: int | None, name: str, category: str, arguments: Mapping[str, Value]
    ) -> Event:
        interned = self.interned
        event = TrackEvent(
            type=kind, track_uuid=track, name_iid=interned.name(name), category_iids=[interned.category(category)]
        )
        found = Event(fields(event) + interned.arguments(arguments))
        interned.flush()
        return found

    def _write_interned(self, data: InternedData) -> None:
        self._write(TracePacket(interned_data=data, sequence_flags=TracePacket.SEQ_NEEDS_INCREMENTAL_STATE))

    def _write(self, packet: TracePacket) -> None:
        packet.trusted_packet_sequence_id = SEQUENCE
        self._parts.append(Trace(packet=[packet]).SerializeToString())


assert TIME_BYTES * 7 == 63, "times of the store are signed 64-bit integers"
