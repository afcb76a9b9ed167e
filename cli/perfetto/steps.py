"""The steps of a rank: slices on the host and on the GPU, counters of their time and of the wait in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from annotq.cli.perfetto.lanes import Lanes
from annotq.cli.perfetto.trace_file import TraceFile
from annotq.cli.perfetto.tracks import GPU_STEPS, HOST_STEPS, STEP_TIME, WAIT_SHARE, RankTracks

ON_GPU = ("busy_ns", "compute_ns", "collective_ns", "kernels")


def write_steps(
    file: TraceFile, tracks: RankTracks, rows: list[dict[str, Any]], waits: Mapping[int, int] | None
) -> None:
    """Draw the steps of one rank. rows: of the question `steps`; waits: step to wait_ns, None: not to be shown.

    A step on the GPU lasts from its first work to the end of its last; steps that overlap are on different lanes.
    """
    for place, name, start, duration in (
        (HOST_STEPS, "steps on the host", "host_start_ns", "host_duration_ns"),
        (GPU_STEPS, "steps on the GPU", "start_ns", "duration_ns"),
    ):
        lanes = Lanes()
        timed = [row for row in rows if row[start] is not None and row[duration] is not None]
        for row in sorted(timed, key=lambda row: (row[start], row[duration])):
            end_ns = row[start] + row[duration]
            track = tracks.lane(place, name, lanes.place(row[start], end_ns))
            arguments = {key: row[key] for key in ON_GPU} if place == GPU_STEPS else {}
            event = file.begin(track, f"step {row['step']}", "step", {"step": row["step"], **arguments})
            file.slice_at(event.packet(), file.end(track).packet(), row[start], end_ns)
    _count(file, tracks, rows, waits)


def _count(file: TraceFile, tracks: RankTracks, rows: list[dict[str, Any]], waits: Mapping[int, int] | None) -> None:
    """Step time in ns, and wait in percent of it, from the start of the step on."""
    for row in rows:
        if row["start_ns"] is None or row["duration_ns"] is None:
            continue
        file.count_at(tracks.counter(STEP_TIME, "step time", "ns"), row["start_ns"], row["duration_ns"])
        if waits is not None and row["duration_ns"] > 0:
            share = 100.0 * waits.get(row["step"], 0) / row["duration_ns"]
            file.count_at(tracks.counter(WAIT_SHARE, "wait share", "%"), row["start_ns"], share)
