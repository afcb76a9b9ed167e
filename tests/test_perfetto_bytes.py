"""The parts that the picture is made of: bytes of packets, lanes, paths, times of the selection."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackDescriptor, TrackEvent
from perfetto_picture import read_picture

from annotq.agent.errors import AnnotqError
from annotq.cli.perfetto import wire
from annotq.cli.perfetto.lanes import Lanes
from annotq.cli.perfetto.region_stack import split_path
from annotq.cli.perfetto.selection import Moment, parse_moment, parse_steps
from annotq.cli.perfetto.trace_file import TraceFile

times = st.integers(0, 2**63 - 1)


@given(times, st.integers(1, 2**64 - 1), st.integers(0, 2**40), st.text(max_size=300))
def test_a_packet_put_together_is_the_packet_that_protobuf_makes(time: int, track: int, flow: int, text: str) -> None:
    constant = TrackEvent(type=TrackEvent.TYPE_SLICE_BEGIN, track_uuid=track, name_iid=7, category_iids=[1])
    variable = TrackEvent(flow_ids=[flow], categories=[text])
    tail = wire.fields(variable)
    packet = wire.Event(wire.fields(constant)).packet(len(tail))
    found = Trace()
    found.ParseFromString(packet.head + wire.time(time) + packet.rest + tail)
    constant.MergeFrom(variable)
    assert found == Trace(
        packet=[TracePacket(timestamp=time, trusted_packet_sequence_id=1, sequence_flags=2, track_event=constant)]
    )


@given(st.lists(times, min_size=1))
def test_times_of_many_events_are_those_of_each(moments: list[int]) -> None:
    together = wire.times(np.array(moments, np.int64))
    assert together == b"".join(map(wire.time, moments))
    assert len(together) == wire.TIME_BYTES * len(moments)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=40))
def test_lanes_separate_what_overlaps_and_are_as_few_as_can_be(slices: list[tuple[int, int]]) -> None:
    lanes = Lanes()
    slices.sort()
    placed = [(lanes.place(start, start + length), start, start + length) for start, length in slices]
    for one, (lane, start, end) in enumerate(placed):
        for other, begin, stop in placed[one + 1 :]:
            # In the order of the starts: the later one begins when the earlier one is over.
            assert lane != other or begin >= end
            assert begin >= start and stop >= begin
    # As many as run at one moment; what lasts no time needs none but the one it stands on.
    at_once = [sum(start <= moment < end for _, start, end in placed) for moment in range(91)]
    needed = max(at_once, default=0)
    assert needed <= len({lane for lane, _, _ in placed}) <= needed + 1


@pytest.mark.parametrize(
    ("region", "path", "names"),
    [
        ("c", "a > b > c", ["a", "b", "c"]),
        ("c", "c", ["c"]),
        ("c", None, ["c"]),
        ("b > c", "a > b > c", ["a", "b > c"]),
        ("c", "a > b", ["a", "b", "c"]),
        ("", "a > ", ["a", ""]),
    ],
)
def test_a_path_is_split_at_its_regions(region: str, path: str | None, names: list[str]) -> None:
    assert split_path(region, path) == names


def test_a_moment_is_exact() -> None:
    assert parse_moment("--since", "1790857026000000001") == Moment(1_790_857_026_000_000_001, relative=False)
    assert parse_moment("--since", "1.000000001s") == Moment(1_000_000_001, relative=True)
    assert parse_moment("--since", "-0.5ms") == Moment(-500_000, relative=True)
    assert parse_moment("--since", "2min") == Moment(120_000_000_000, relative=True)
    assert parse_steps("12") == (12, 12)
    with pytest.raises(AnnotqError):
        parse_moment("--since", "1.5")


def test_strings_are_written_once(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    file = TraceFile(buffer)
    file.start(0, {"job": "j"})
    track = file.new_track()
    file.add_track(TrackDescriptor(uuid=track, name="t"))
    for start in (0, 20):
        begin = file.begin(track, "a name", "kernel", {"region": "a region"})
        file.slice_at(begin.packet(), file.end(track).packet(), start, start + 10)
    file.flush()
    assert buffer.getvalue().count(b"a name") == buffer.getvalue().count(b"a region") == 1
    (tmp_path / "f").write_bytes(buffer.getvalue())
    assert [(one.name, one.arguments) for one in read_picture(tmp_path / "f").slices] == [
        ("a name", {"region": "a region"})
    ] * 2
