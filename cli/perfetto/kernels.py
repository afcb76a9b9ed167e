"""The kernels of a stream and the regions above them, as slices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from annotq.cli.perfetto import wire
from annotq.cli.perfetto.collectives import Call, Calls, CallSlices
from annotq.cli.perfetto.columns import int64s, known, objects
from annotq.cli.perfetto.interned import Value
from annotq.cli.perfetto.lanes import Lanes
from annotq.cli.perfetto.region_stack import SEPARATOR, Level, Path, RegionStack, split_path
from annotq.cli.perfetto.trace_file import TraceFile
from annotq.cli.perfetto.tracks import RankTracks
from annotq.cli.perfetto.wire import TIME_BYTES, Begin, Event

if TYPE_CHECKING:
    import pyarrow as pa

# Rows that are turned into Python objects at a time.
BATCH_ROWS = 50_000
# Nodes whose events are kept; each takes a kilobyte.
NODES = 100_000


class Node(NamedTuple):
    """What is the same each time that a kernel of a graph runs, or an eager one of the same name in the same region."""

    name: str
    kind: str
    region: str | None
    region_path: str | None
    phase: str | None
    attributes: str | None
    graph_id: int | None
    node_index: int | None


class Launch(NamedTuple):
    """What is the same for all kernels of a replay, or of a pass of eager work through a region."""

    step: int | None
    replay_id: int | None
    correlation_id: int | None
    region_instance: int | None


@dataclass
class _Lane:
    """One track of a stream. The packets that begin a kernel are made once per node and length of the tail."""

    track: int
    regions: RegionStack
    end: Begin
    begins: dict[tuple[Node, int], Begin] = field(default_factory=dict)


class NodeEvents:
    """The events that begin a kernel, less their track: made once for all ranks, whose graphs have mostly equal nodes."""

    def __init__(self, file: TraceFile) -> None:
        self._file = file
        self._known: dict[Node, bytes] = {}

    def begin(self, track: int, node: Node) -> Event:
        """The event on a track."""
        found = self._known.get(node)
        if found is None:
            if len(self._known) >= NODES:
                self._known.clear()
            found = self._known[node] = self._file.begin(None, node.name, node.kind, _arguments(node)).fields
        return Event(found + wire.track(track))


class StreamSlices:
    """Writes the kernels of one stream of one rank, trace after trace, each in the order of their starts."""

    def __init__(
        self, file: TraceFile, nodes: NodeEvents, tracks: RankTracks, place: int, name: str, calls: CallSlices
    ) -> None:
        self._file = file
        self._nodes = nodes
        self._tracks = tracks
        self._place = place
        self._name = name
        self._calls = calls
        self._lanes = Lanes()
        self._tracks_of_lanes: list[_Lane] = []
        self._paths: dict[tuple[str | int | None, ...], Path] = {}
        self._tails: dict[tuple[str, int | None, int | None], bytes] = {}
        self.kernels = 0

    def write(self, rows: pa.Table, calls: Calls) -> None:
        """One slice per row of the question `kernels`, of one trace; an instant where the duration is not known."""
        for first in range(0, rows.num_rows, BATCH_ROWS):
            self._write_batch(rows.slice(first, BATCH_ROWS), calls)
        for lane in self._tracks_of_lanes:
            lane.regions.close()
            lane.begins.clear()

    def _write_batch(self, rows: pa.Table, calls: Calls) -> None:
        starts = int64s(rows, "start_ns")
        ends = starts + int64s(rows, "duration_ns")
        start_bytes, end_bytes = (wire.times(moments + self._file.shift_ns) for moments in (starts, ends))
        moments = zip(
            starts.tolist(),
            ends.tolist(),
            known(rows, "duration_ns").tolist(),
            objects(rows, "communication"),
            strict=True,
        )
        byte = 0
        for (start, end, ended, communication), node, launch in zip(
            moments, _nodes(rows), _launches(rows), strict=True
        ):
            call = calls.of_kernel(start, end - start, node.region) if communication and ended else None
            next_byte = byte + TIME_BYTES
            self._write_kernel(
                start, end, ended, node, launch, call, start_bytes[byte:next_byte], end_bytes[byte:next_byte]
            )
            byte = next_byte
        self.kernels += rows.num_rows
        # Every eager kernel has its own: not to be kept for the whole trace.
        self._paths.clear()
        self._tails.clear()

    def _write_kernel(
        self,
        start: int,
        end: int,
        ended: bool,
        node: Node,
        launch: Launch,
        call: Call | None,
        start_bytes: bytes,
        end_bytes: bytes,
    ) -> None:
        lane = self._lane(self._lanes.place(start, end))
        path = self._path(node, launch)
        if path is not lane.regions.path:
            lane.regions.enter(path, start_bytes, self._tail("replay_id", launch.replay_id, launch.step))
        tail = self._tail("correlation_id", launch.correlation_id, launch.step)
        if call is not None:
            tail += self._calls.write(call, start)
        put = self._file.put
        if ended:
            put(self._begin(lane, node, len(tail)), start_bytes, tail)
            put(lane.end, end_bytes)
            self._file.slices += 1
        else:
            put(self._unknown(lane, node, len(tail)), start_bytes, tail)
        lane.regions.count(end - start, end_bytes)

    def _lane(self, number: int) -> _Lane:
        if number == len(self._tracks_of_lanes):
            track = self._tracks.lane(self._place, self._name, number)
            stack = RegionStack(self._file, track)
            self._tracks_of_lanes.append(_Lane(track, stack, self._file.end(track).packet()))
        return self._tracks_of_lanes[number]

    def _begin(self, lane: _Lane, node: Node, tail_bytes: int) -> Begin:
        found = lane.begins.get((node, tail_bytes))
        if found is None:
            event = self._nodes.begin(lane.track, node)
            found = lane.begins[node, tail_bytes] = event.packet(tail_bytes)
        return found

    def _unknown(self, lane: _Lane, node: Node, tail_bytes: int) -> Begin:
        arguments: dict[str, Value] = {**_arguments(node), "duration": "not known"}
        return self._file.instant(lane.track, node.name, node.kind, arguments).packet(tail_bytes)

    def _tail(self, name: str, launch: int | None, step: int | None) -> bytes:
        """The arguments that vary from replay to replay: the launch under this name, and its step."""
        found = self._tails.get((name, launch, step))
        if found is None:
            found = self._tails[name, launch, step] = self._file.arguments({name: launch, "step": step})
        return found

    def _path(self, node: Node, launch: Launch) -> Path:
        if node.region is None:
            return ()
        unit = (launch.replay_id, launch.step, launch.region_instance)
        key = (node.region, node.region_path, node.phase, *unit)
        found = self._paths.get(key)
        if found is None:
            found = self._paths[key] = _path(node, launch)
        return found


def _path(node: Node, launch: Launch) -> Path:
    assert node.region is not None
    names = split_path(node.region, node.region_path)
    unit: tuple[object, ...] = (launch.replay_id,) if launch.replay_id is not None else ("eager", launch.step)
    levels = [Level(unit, SEPARATOR.join(names[: depth + 1]), name, node.phase) for depth, name in enumerate(names)]
    if launch.replay_id is None:
        # Passes through an eager region are known for the innermost region only.
        levels[-1] = levels[-1]._replace(unit=(*unit, launch.region_instance))
    return tuple(levels)


def _arguments(node: Node) -> dict[str, Value]:
    attributes: Value = node.attributes
    if node.attributes is not None:
        try:
            attributes = json.loads(node.attributes)
        except (ValueError, RecursionError):
            attributes = node.attributes
    return {
        "region": node.region,
        "region_path": node.region_path,
        "phase": node.phase,
        "graph_id": node.graph_id,
        "node_index": node.node_index,
        "attributes": attributes,
    }


def _nodes(rows: pa.Table) -> Iterator[Node]:
    return map(Node._make, zip(*(objects(rows, name) for name in Node._fields), strict=True))


def _launches(rows: pa.Table) -> Iterator[Launch]:
    return map(Launch._make, zip(*(objects(rows, name) for name in Launch._fields), strict=True))
