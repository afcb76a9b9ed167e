"""The calls of collectives: flows between their ranks, wait and transfer, and how far apart the ranks arrived."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

from annotq.cli.perfetto.columns import coded, int64s, known, objects, parts
from annotq.cli.perfetto.lanes import Lanes
from annotq.cli.perfetto.trace_file import TraceFile
from annotq.cli.perfetto.tracks import SKEW, RankTracks
from annotq.cli.perfetto.wire import Begin, fields

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Call:
    """One rank's part in a collective, as in the view collectives. flow: 0 when no other rank of it is drawn.

    ends_flow: the last of the drawn ranks to arrive, where the arrows end. skew_ns: first to last arrival of all ranks.
    """

    collective_id: str
    name: str
    region: str | None
    group_name: str | None
    duration_ns: int
    wait_ns: int | None
    transfer_ns: int | None
    last_rank: int | None
    not_judged: str | None
    skew_ns: int | None
    flow: int
    ends_flow: bool


@dataclass
class Calls:
    """The calls of one trace, found by the start and duration of their kernel."""

    rows: pa.Table
    _found: dict[tuple[int, int], list[Call]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [name for name in Call.__dataclass_fields__ if name in self.rows.column_names]
        columns = [objects(self.rows, name) for name in names]
        for arrive_ns, *values in zip(self.rows["arrive_ns"].to_pylist(), *columns, strict=True):
            given = dict(zip(names, values, strict=True))
            if given["duration_ns"] is not None:
                self._found.setdefault((arrive_ns, given["duration_ns"]), []).append(Call(**given))

    @property
    def left(self) -> int:
        """Calls that no kernel asked for."""
        return sum(map(len, self._found.values()))

    def of_kernel(self, start_ns: int, duration_ns: int, region: str | None) -> Call | None:
        """The call of a communication kernel, handed out once: two kernels never share one."""
        calls = self._found.get((start_ns, duration_ns), [])
        for call in calls:
            if call.region == region:
                calls.remove(call)
                return call
        return calls.pop() if calls else None


class AllCalls:
    """The calls of the selection, by trace, with their flows."""

    def __init__(self, rows: pa.Table) -> None:
        import pyarrow as pa

        rows = coded(rows)
        pairs = zip(objects(rows, "not_judged"), objects(rows, "name"), strict=True)
        self.not_judged: Counter[tuple[str, str]] = Counter((why, name) for why, name in pairs if why is not None)
        flow, ends = _flows(rows)
        self.flows = int(flow.max(initial=0))
        self._rows = rows.append_column("flow", pa.array(flow)).append_column("ends_flow", pa.array(ends))
        self._traces = parts(self._rows, "trace_id")

    def of_trace(self, trace_id: int) -> Calls:
        return Calls(self._traces.get(trace_id, self._rows.slice(0, 0)))

    def waits_of_steps(self) -> dict[int, dict[int, int]]:
        """rank to step to the sum of wait_ns of its judged calls."""
        import pyarrow.compute as pc

        judged: Any = pc.field("wait_ns").is_valid() & pc.field("step").is_valid()
        rows = self._rows.filter(judged)
        sums = rows.group_by(["rank", "step"]).aggregate([("wait_ns", "sum")])
        found: dict[int, dict[int, int]] = {}
        for rank, step, wait_ns in zip(
            *(sums[name].to_pylist() for name in ("rank", "step", "wait_ns_sum")), strict=True
        ):
            found.setdefault(rank, {})[step] = wait_ns
        return found


def _flows(rows: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The flow of each call, 0 for none, and whether it ends there.

    Judged collectives only: of the others it is not known that the calls belong together. Readers connect the slices of a
    flow in the order of time, at one moment in the order of the file; the row that comes last in that order ends it.
    """
    judged = known(rows, "wait_ns")
    ids: Any = rows["collective_id"].combine_chunks()
    codes = np.asarray(ids.indices.to_numpy(), np.int64)
    arrive = int64s(rows, "arrive_ns")
    flow = np.zeros(len(codes), np.int64)
    ends = np.zeros(len(codes), np.bool_)
    if not len(codes):
        return flow, ends
    drawn = np.bincount(codes, weights=judged).astype(np.int64)
    number = np.cumsum(drawn > 1) * (drawn > 1)
    flow[judged] = number[codes[judged]]
    order = np.lexsort((np.arange(len(codes)), arrive, flow))
    last = np.append(flow[order][1:] != flow[order][:-1], True)
    ends[order] = last
    return flow, ends & (flow > 0)


class CallSlices:
    """Draws the calls of one stream: a lane with wait and transfer under it, counters of the skew."""

    def __init__(self, file: TraceFile, tracks: RankTracks, place: int, name: str) -> None:
        self._file = file
        self._tracks = tracks
        self._place = place
        self._name = name
        self._lanes = Lanes()
        self._begins: dict[tuple[int, str], Begin] = {}
        self._ends: dict[int, Begin] = {}

    def write(self, call: Call, start_ns: int) -> bytes:
        """Draw wait, transfer and skew. Returns what the slice of the kernel itself gets: flow and arguments."""
        if call.wait_ns is not None and call.transfer_ns is not None:
            self._parts(call, start_ns, call.wait_ns, call.transfer_ns)
        event = TrackEvent()
        if call.flow:
            (event.terminating_flow_ids if call.ends_flow else event.flow_ids).append(call.flow)
        arguments = self._file.arguments(
            {
                "collective_id": call.collective_id,
                "collective": call.name,
                "group_name": call.group_name,
                "wait_ns": call.wait_ns,
                "transfer_ns": call.transfer_ns,
                "last_rank": call.last_rank,
                "not_judged": call.not_judged,
            }
        )
        return fields(event) + arguments

    def _parts(self, call: Call, start_ns: int, wait_ns: int, transfer_ns: int) -> None:
        arrived_ns = start_ns + wait_ns
        lane = self._lanes.place(start_ns, arrived_ns + transfer_ns)
        track = self._tracks.lane(self._place, self._name, lane)
        if wait_ns:
            self._slice(track, f"wait for rank {call.last_rank}", "wait", start_ns, arrived_ns)
        if transfer_ns:
            self._slice(track, f"transfer of {call.name}", "transfer", arrived_ns, arrived_ns + transfer_ns)
        if call.skew_ns is not None:
            self._file.count_at(self._skew(call.group_name), start_ns, call.skew_ns)

    def _slice(self, track: int, name: str, category: str, start_ns: int, end_ns: int) -> None:
        if (track, name) not in self._begins:
            self._begins[track, name] = self._file.begin(track, name, category, {}).packet()
        if track not in self._ends:
            self._ends[track] = self._file.end(track).packet()
        self._file.slice_at(self._begins[track, name], self._ends[track], start_ns, end_ns)

    def _skew(self, group_name: str | None) -> int:
        name = "arrival skew" if group_name is None else f"arrival skew in group {group_name}"
        return self._tracks.counter(SKEW, name, "ns")
