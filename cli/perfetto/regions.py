"""The passes of a rank through its regions, all streams together: what the slices of single streams do not show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from annotq.cli.perfetto.columns import objects
from annotq.cli.perfetto.lanes import Lanes
from annotq.cli.perfetto.region_stack import slice_name
from annotq.cli.perfetto.trace_file import TraceFile
from annotq.cli.perfetto.tracks import REGIONS, RankTracks
from annotq.cli.perfetto.wire import Begin

if TYPE_CHECKING:
    import pyarrow as pa

ARGUMENTS = ("step", "replay_id", "busy_ns", "union_ns", "kernels")


def write_regions(file: TraceFile, tracks: RankTracks, rows: pa.Table) -> None:
    """One slice per row of the question `regions`; a pass without a believable end is left to its kernels."""
    lanes = Lanes()
    begins: dict[tuple[int, str, str, int], Begin] = {}
    columns = [objects(rows, name) for name in ("region", "phase", "start_ns", "end_ns", *ARGUMENTS)]
    for region, phase, start_ns, end_ns, *values in zip(*columns, strict=True):
        if end_ns is None:
            continue
        track = tracks.lane(REGIONS, "regions, all streams", lanes.place(start_ns, end_ns))
        tail = file.arguments(dict(zip(ARGUMENTS, values, strict=True)))
        key = (track, region, phase, len(tail))
        if key not in begins:
            event = file.begin(track, slice_name(region, phase), "region pass", {"region": region, "phase": phase})
            begins[key] = event.packet(len(tail))
        file.slice_at(begins[key], file.end(track).packet(), start_ns, end_ns, tail)
