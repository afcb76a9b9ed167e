"""The tracks of a rank: its process, and in it steps, regions, counters and one row per stream, in this order."""

from __future__ import annotations

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import CounterDescriptor, TrackDescriptor

from annotq.cli.perfetto.jobs import Rank
from annotq.cli.perfetto.trace_file import TraceFile

# The number of the trace-wide track, whose descriptor says how processes are ordered.
ROOT = 0

# Places inside a rank's process. Streams follow from FIRST_STREAM on, each with one place for its collectives.
HOST_STEPS, GPU_STEPS, REGIONS, STEP_TIME, WAIT_SHARE, SKEW, FIRST_STREAM = 0, 1, 2, 3, 4, 5, 10


def order_processes(file: TraceFile) -> None:
    """Processes stand by their sibling_order_rank, which readers look at only when this says so (Perfetto 57)."""
    file.add_track(TrackDescriptor(uuid=ROOT, process_ordering=TrackDescriptor.PROCESS_ORDERING_EXPLICIT))


class RankTracks:
    """Describes the tracks of one rank as they are needed."""

    def __init__(self, file: TraceFile, rank: Rank) -> None:
        self._file = file
        self._lanes: dict[tuple[int, int], int] = {}
        self._counters: dict[str, int] = {}
        process = TrackDescriptor(
            uuid=file.new_track(),
            description=rank.description,
            child_ordering=TrackDescriptor.EXPLICIT,
            sibling_order_rank=rank.rank,
        )
        process.process.pid = rank.pid
        process.process.process_name = rank.title
        process.process.legacy_sort_index = rank.rank
        file.add_track(process)
        # Readers order the children of a plain track, not those of a process: one plain track in between.
        self._group = file.new_track()
        file.add_track(
            TrackDescriptor(
                uuid=self._group,
                parent_uuid=process.uuid,
                name=f"rank {rank.rank}",
                child_ordering=TrackDescriptor.EXPLICIT,
            )
        )

    def lane(self, place: int, name: str, number: int) -> int:
        """The track of the number-th lane at a place. All lanes of a place are drawn as one row under one name."""
        found = self._lanes.get((place, number))
        if found is None:
            found = self._lanes[place, number] = self._file.new_track()
            self._file.add_track(
                TrackDescriptor(
                    uuid=found,
                    parent_uuid=self._group,
                    name=name,
                    sibling_order_rank=place,
                    sibling_merge_behavior=TrackDescriptor.SIBLING_MERGE_BEHAVIOR_BY_SIBLING_MERGE_KEY,
                    sibling_merge_key=str(place),
                )
            )
        return found

    def counter(self, place: int, name: str, unit: str) -> int:
        """The counter track of a name; unit: ns or %. Counters of one name have one scale on all ranks."""
        found = self._counters.get(name)
        if found is None:
            found = self._counters[name] = self._file.new_track()
            track = TrackDescriptor(uuid=found, parent_uuid=self._group, name=name, sibling_order_rank=place)
            track.counter.y_axis_share_key = name
            if unit == "ns":
                track.counter.unit = CounterDescriptor.UNIT_TIME_NS
            else:
                track.counter.unit_name = unit
            self._file.add_track(track)
        return found
