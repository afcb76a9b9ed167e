"""The facts about one trace: which rank, when, which encoding, how much, and how well it could be read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from annotq.agent.errors import AnnotqError
from annotq.agent.problems import Problems
from annotq.agent.rank_names import rank_from_name
from annotq.agent.reader.attribution import Attribution
from annotq.agent.reader.event_store import EventStore
from annotq.agent.reader.exact_ns import Int64s
from annotq.agent.reader.file_bytes import FileBytes
from annotq.agent.reader.spill import Columns
from annotq.agent.reader.trace_events import NULL
from annotq.agent.reader.trace_header import TraceHeader


@dataclass(frozen=True)
class TraceInfo:
    """What one trace file is and how well it could be read."""

    path: str
    sha256: str  # of the bytes on disk, hex
    rank: int
    world_size: int | None
    host: str | None
    pid: int | None  # of the launches and annotations
    gpu: str | None  # the device's name
    versions: dict[str, str]  # cuda_driver, cuda_runtime, cupti, nccl ... where the trace names them
    process_groups: str | None  # JSON list: distributedInfo.pg_config
    base_ns: int  # baseTimeNanoseconds, added to every start; 0 when absent
    window_start_ns: int | None  # over kept GPU events, launches and annotations
    window_end_ns: int | None
    encoding: str  # of graph ids: packed, split, absent, none (no graph work); see graph_ids.py
    inline: bool  # the trace carries annotations itself
    step_source: str  # profiler, replay, none
    status: str  # complete, partial (something was dropped or the file is cut)
    gpu_events: int
    graph_events: int
    dropped_events: int
    overrun_events: int
    problems: tuple[str, ...]  # sentences: what, where, what was done


def trace_info(
    path: Path,
    rank: int | None,
    source: FileBytes,
    header: TraceHeader,
    store: EventStore,
    found: Attribution,
    problems: Problems,
    cut: bool,
) -> TraceInfo:
    """Put together what is known once the whole file was read; adds what is wrong with it to `problems`."""
    if source.problem:
        problems.add(f"{source.problem}: what could be read is kept")
    if cut:
        problems.add("the JSON is cut before the end of the events: the whole events before the cut are kept")
    for problem in header.problems:
        problems.add(problem)
    _note_ids(store, problems)
    events = store.resident()
    count = len(events["start_ns"])
    if not count and not header.without_gpu:
        problems.add("no GPU events: profile with ProfilerActivity.CUDA among the activities")
    overruns = np.flatnonzero(found.overrun)
    if len(overruns):
        code = int(events["name"][overruns[0]])
        start = int(events["start_ns"][overruns[0]]) + header.base_ns
        cause = "kernel runs more than 1 s past the start of the next on its stream, flagged as overrun"
        problems.add(cause, f"{list(store.names)[code][:80]!r} at {start} ns", len(overruns))
    start_ns, end_ns = _window(store, found)
    partial = bool(store.dropped or cut or source.problem)
    return TraceInfo(
        path=str(path),
        sha256=source.sha256,
        rank=_rank(path, rank, header),
        world_size=header.world_size,
        host=header.host,
        pid=_most_common(np.concatenate([found.launches.process, found.annotations.process])),
        gpu=header.gpus.get(_device(store, events)),
        versions=header.versions,
        process_groups=header.process_groups,
        base_ns=header.base_ns,
        window_start_ns=None if start_ns is None else start_ns + header.base_ns,
        window_end_ns=None if end_ns is None else end_ns + header.base_ns,
        encoding=found.encoding,
        inline=header.inline or len(store.inline) > 0,
        step_source=found.step_source,
        status="partial" if partial else "complete",
        gpu_events=count,
        graph_events=int(found.in_graph.sum()),
        dropped_events=store.dropped,
        overrun_events=len(overruns),
        problems=tuple(f"{path}: {sentence}" for sentence in problems.sentences()),
    )


def _rank(path: Path, given: int | None, header: TraceHeader) -> int:
    for rank in (given, header.rank, rank_from_name(path.name)):
        if rank is not None:
            return rank
    raise AnnotqError(
        f"{path}: neither the trace (distributedInfo) nor the file's name says its rank.", "Give `--rank N`."
    )


def _note_ids(store: EventStore, problems: Problems) -> None:
    counts = store.counts
    if counts.contradictions:
        cause = "`graph id` contradicts the graph in the packed `graph node id`, which is used"
        problems.add(cause, "", counts.contradictions)
    if counts.packed and counts.split:
        cause = "`graph node id` below 2^32 among packed ones, read together with `graph id`"
        problems.add(cause, "", counts.split)
    if counts.nodes_alone:
        problems.add("`graph node id` below 2^32 without `graph id`: the graph is unknown", "", counts.nodes_alone)


def _window(store: EventStore, found: Attribution) -> tuple[int | None, int | None]:
    events = store.resident()
    starts = [events["start_ns"], found.launches.start_ns, found.annotations.start_ns]
    durations = [events["duration_ns"], found.launches.duration_ns, found.annotations.duration_ns]
    if not any(len(part) for part in starts):
        return None, None
    first = min(int(part.min()) for part in starts if len(part))
    last = max(int((part + more).max()) for part, more in zip(starts, durations, strict=True) if len(part))
    return first, last


def _device(store: EventStore, events: Columns) -> int:
    """The device of most events."""
    lane = _most_common(events["lane"])
    device: int = 0 if lane is None else list(store.lanes)[lane][0]
    return device


def _most_common(values: Int64s) -> int | None:
    values = values[values != NULL]
    if not len(values):
        return None
    distinct, counts = np.unique(values, return_counts=True)
    return int(distinct[np.argmax(counts)])
