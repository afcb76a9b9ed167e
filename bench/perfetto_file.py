"""Writing a Perfetto file: slices per second of CPU, and memory as the number of ranks grows.

python bench/perfetto_file.py STORE RANKS [builder]   one run: prints slices, CPU seconds, bytes, peak memory in bytes
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from measure import run, spread
from section import Section, megabytes

RANKS = (8, 32)
# Of the 20: judging the collectives of all steps takes more than a minute, and is not what this is about.
STEPS = (10, 14)


def measure(store: Path, repeats: int) -> Section:
    """The writer for more and more ranks, then one rank beside the packets made by the perfetto package's builder."""
    rows = [("what", "slices", "slices per CPU second: median (min to max)", "file", "peak memory")]
    for ranks in RANKS:
        rows.append(_row(f"{ranks} ranks", store, [str(ranks)], repeats))
    rows.append(
        _row("1 rank, kernels only, by the package's StreamingTraceProtoBuilder", store, ["1", "builder"], repeats)
    )
    what = (
        f"Steps {STEPS[0]} to {STEPS[1]} of 2,700 kernels per rank, of a job of 1,024 ranks; 200 collectives of 8 ranks a step. "
        "CPU of all threads, without DuckDB's for the questions; peak memory of the process, most of it DuckDB's, which "
        "judges the collectives of all 1,024 ranks (its limit is 2 GB)."
    )
    return Section("Perfetto file", what, rows)


def _row(name: str, store: Path, arguments: list[str], repeats: int) -> tuple[str, ...]:
    found = [
        json.loads(run([sys.executable, __file__, store, *arguments], sample=False).stdout) for _ in range(repeats)
    ]
    speeds = [one["slices"] / one["cpu_seconds"] for one in found]
    peak = max(one["peak_bytes"] for one in found)
    return name, f"{found[0]['slices']:,}", spread(speeds, 0), megabytes(found[0]["bytes"]), megabytes(peak)


def _main(store: Path, ranks: int, by_builder: bool) -> None:
    import pyarrow as pa

    from annotq.cli.perfetto.export import planned, write_trace
    from annotq.cli.perfetto.selection import Selection
    from annotq.collector.query import Door, Limits

    asking = 0.0
    with Door(store, Limits(rows=20_000_000, seconds=600)) as door, tempfile.TemporaryFile() as file:

        def ask(sql: str, parameters: Sequence[object]) -> pa.Table:
            nonlocal asking
            begin = time.process_time()
            table = door.ask(sql, parameters).table
            asking += time.process_time() - begin
            return table

        selection = Selection("large", 0, tuple(range(ranks)), STEPS)
        if by_builder:
            slices, seconds = _build(ask, selection, file)
        else:
            plan = planned(ask, selection)
            asking, begin = 0.0, time.process_time()
            slices = write_trace(ask, selection, plan, file).slices
            seconds = time.process_time() - begin - asking
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"slices": slices, "cpu_seconds": seconds, "bytes": file.tell(), "peak_bytes": peak}))


def _build(ask, selection, file) -> tuple[int, float]:  # type: ignore[no-untyped-def]
    """The kernels alone with their arguments, every packet from the protobuf classes: what one would write first."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
    from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

    from annotq.cli.perfetto import questions

    ((_, trace, process, *_),) = (row.values() for row in _first(ask, selection))
    question = questions.kernels(selection, trace, process)
    table = ask(question.sql, question.parameters)
    begin = time.process_time()
    builder = StreamingTraceProtoBuilder(file)
    for row in table.to_pylist():
        for kind in (TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END):
            packet = builder.create_packet()
            packet.timestamp = row["start_ns"] + (row["duration_ns"] if kind == TrackEvent.TYPE_SLICE_END else 0)
            packet.trusted_packet_sequence_id = 1
            packet.track_event.type = kind
            packet.track_event.track_uuid = 1
            if kind == TrackEvent.TYPE_SLICE_BEGIN:
                packet.track_event.name = row["name"]
                for name in ("region", "region_path", "phase", "attributes"):
                    packet.track_event.debug_annotations.add(name=name, string_value=row[name])
                for name in ("graph_id", "node_index", "correlation_id", "step"):
                    packet.track_event.debug_annotations.add(name=name, int_value=row[name])
            builder.write_packet(packet)
    return table.num_rows, time.process_time() - begin


def _first(ask, selection) -> list[dict[str, object]]:  # type: ignore[no-untyped-def]
    from annotq.cli.perfetto import questions

    question = questions.traces(selection)
    return list(ask(question.sql, question.parameters).slice(0, 1).to_pylist())


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), by_builder=sys.argv[3:] == ["builder"])
