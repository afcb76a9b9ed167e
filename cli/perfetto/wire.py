"""The bytes of packets that differ in their time only: made once by the protobuf classes, the time put in between.

The packet of a kernel with its arguments takes the protobuf classes 19 us, put together from its parts 0.1 us.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackEvent

# Every packet is of one sequence: what is interned once holds for the whole file.
SEQUENCE = 1

# Nine groups of seven bits hold every time from 0 to 2^63 - 1. Shorter ones are filled up with zero groups, which every
# reader of protobuf takes, so that all times have one length.
TIME_BYTES = 9

_PACKET = b"\x0a"
_TIMESTAMP = b"\x40"
_TRACK_EVENT = b"\x5a"
_TRACK = b"\x58"


class Begin(NamedTuple):
    """A packet with a hole for its time: head, TIME_BYTES bytes, rest, and behind it the tail it was made for."""

    head: bytes
    rest: bytes


@dataclass(frozen=True)
class Event:
    """The constant part of an event: fields of TrackEvent as bytes."""

    fields: bytes

    def packet(self, tail_bytes: int = 0) -> Begin:
        """The event as a packet, for a tail of so many bytes: further fields of the TrackEvent."""
        event = _ENVELOPE + _TRACK_EVENT + varint(len(self.fields) + tail_bytes) + self.fields
        return Begin(_PACKET + varint(len(_TIMESTAMP) + TIME_BYTES + len(event) + tail_bytes) + _TIMESTAMP, event)


def fields(event: TrackEvent) -> bytes:
    """The fields of a TrackEvent; those of several events follow each other as the fields of one."""
    return bytes(event.SerializeToString())


def track(number: int) -> bytes:
    """The field of a TrackEvent that says its track."""
    return _TRACK + varint(number)


def varint(value: int) -> bytes:
    """A non-negative integer as protobuf writes it."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def times(moments_ns: npt.NDArray[np.int64]) -> bytes:
    """TIME_BYTES bytes per moment; moments are not negative."""
    groups = (moments_ns[:, None] >> np.array(_SHIFTS)) & 0x7F
    groups[:, :-1] |= 0x80
    return bytes(groups.astype(np.uint8).tobytes())


def time(moment_ns: int) -> bytes:
    """As times() for one moment."""
    groups = [moment_ns >> shift & 0x7F | 0x80 for shift in _SHIFTS]
    groups[-1] ^= 0x80
    return bytes(groups)


_SHIFTS = range(0, 7 * TIME_BYTES, 7)

_ENVELOPE = bytes(
    TracePacket(
        trusted_packet_sequence_id=SEQUENCE, sequence_flags=TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
    ).SerializeToString()
)
