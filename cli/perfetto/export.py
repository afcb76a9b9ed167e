"""Writes the picture of a job: one rank after the other. The kernels in memory are those of one trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import pairwise
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from annotq.agent.errors import AnnotqError
from annotq.cli.perfetto import questions
from annotq.cli.perfetto.asking import Ask
from annotq.cli.perfetto.collectives import AllCalls, CallSlices
from annotq.cli.perfetto.columns import int64s, parts
from annotq.cli.perfetto.jobs import Rank, ranks_of
from annotq.cli.perfetto.kernels import NodeEvents, StreamSlices
from annotq.cli.perfetto.regions import write_regions
from annotq.cli.perfetto.selection import Selection
from annotq.cli.perfetto.steps import write_steps
from annotq.cli.perfetto.trace_file import TraceFile
from annotq.cli.perfetto.tracks import FIRST_STREAM, RankTracks, order_processes
from annotq.cli.statement import Statement

if TYPE_CHECKING:
    import pyarrow as pa

SECOND_NS = 1_000_000_000


@dataclass
class Summary:
    """What was drawn, and what was not: not_judged counts calls by (reason, collective).

    unaligned: ranks whose clock has no known relation to the others'.
    """

    ranks: int = 0
    kernels: int = 0
    slices: int = 0
    unknown: int = 0
    outside_steps: int = 0
    in_no_region: int = 0
    flows: int = 0
    shift_ns: int = 0
    unaligned: list[int] = field(default_factory=list)
    without_work: list[int] = field(default_factory=list)
    not_judged: Counter[tuple[str, str]] = field(default_factory=Counter)
    calls_without_kernel: int = 0


def planned(ask: Ask, selection: Selection, work: bool = True) -> list[Rank]:
    """The chosen ranks and what of each there is to draw; without `work` only where their traces are."""
    asked = [questions.traces(selection), *([questions.overview(selection)] if work else [])]
    traces, *overview = (ask(question.sql, question.parameters).to_pylist() for question in asked)
    return ranks_of(traces, overview[0] if overview else [])


def write_trace(ask: Ask, selection: Selection, ranks: Sequence[Rank], file: BinaryIO) -> Summary:
    """Write the selection as a Perfetto trace. ranks: as planned() found them. Raises AnnotqError when it is empty."""
    steps = _rows(ask, questions.steps(selection))
    # Before the collectives: judging them takes long. Steps are drawn beside a region, they are nothing of it.
    if not any(rank.work for rank in ranks) and (selection.region is not None or not steps.num_rows):
        raise _empty(selection)
    first_ns = _first_moment(ranks, steps)
    shift_ns = _shift(first_ns)
    trace = TraceFile(file, shift_ns)
    trace.start(first_ns, _attributes(selection))
    order_processes(trace)
    calls = AllCalls(_rows(ask, questions.collectives(selection)))
    # Part of a step's waits would look like all of them.
    whole_steps = selection.region is None and selection.since_ns is None and selection.until_ns is None
    waits = calls.waits_of_steps() if whole_steps else None
    steps_of = parts(steps, "rank")
    summary = Summary(shift_ns=shift_ns, flows=calls.flows, not_judged=calls.not_judged)
    nodes = NodeEvents(trace)
    for rank in ranks:
        if not rank.work and rank.rank not in steps_of:
            summary.without_work.append(rank.rank)
            continue
        tracks = RankTracks(trace, rank)
        own_waits = None if waits is None else waits.get(rank.rank)  # None: no judged collective
        if rank.rank in steps_of:
            write_steps(trace, tracks, steps_of[rank.rank].to_pylist(), own_waits)
        if len(rank.streams) > 1:  # with one stream the slices above its kernels say the same
            write_regions(trace, tracks, _rows(ask, questions.regions(selection, rank.rank)))
        _write_rank(ask, selection, rank, trace, nodes, tracks, calls, summary)
        trace.flush()
        summary.ranks += 1
    if len({rank.host for rank in ranks}) > 1:
        summary.unaligned = [rank.rank for rank in ranks if rank.traces[0].clock_error_ns is None]
    if not summary.ranks:
        raise _empty(selection)
    trace.flush()
    summary.slices = trace.slices
    return summary


def _empty(selection: Selection) -> AnnotqError:
    return AnnotqError(
        f"Nothing of job {selection.job} is in this selection: {selection}.",
        "annotq ranks and annotq status show which ranks and steps there are; annotq regions which regions.",
    )


def _write_rank(
    ask: Ask,
    selection: Selection,
    rank: Rank,
    trace: TraceFile,
    nodes: NodeEvents,
    tracks: RankTracks,
    all_calls: AllCalls,
    summary: Summary,
) -> None:
    streams: dict[tuple[int | None, int | None], StreamSlices] = {}
    for stream in rank.streams:
        streams[stream] = _stream(trace, nodes, tracks, rank, len(streams), stream)
    with_work = {work.trace_id for work in rank.work}
    for work in rank.work:
        summary.unknown += work.unknown
        summary.outside_steps += work.outside_steps
        summary.in_no_region += work.in_no_region
    for one in rank.traces:
        if one.trace_id not in with_work:
            continue
        rows = _rows(ask, questions.kernels(selection, one.trace_id, one.process_id))
        calls = all_calls.of_trace(one.trace_id)
        for stream, part in _by_stream(rows):
            if stream not in streams:  # came after the overview, from a job that runs
                streams[stream] = _stream(trace, nodes, tracks, rank, len(streams), stream)
            streams[stream].write(part, calls)
        summary.calls_without_kernel += calls.left
    summary.kernels += sum(stream.kernels for stream in streams.values())


def _stream(
    trace: TraceFile,
    nodes: NodeEvents,
    tracks: RankTracks,
    rank: Rank,
    number: int,
    stream: tuple[int | None, int | None],
) -> StreamSlices:
    device, index = stream
    name = "stream not known" if index is None else f"stream {index}"
    if len({of for of, _ in rank.streams}) > 1:
        name = f"GPU {'not known' if device is None else device} {name}"
    place = FIRST_STREAM + 2 * number
    calls = CallSlices(trace, tracks, place + 1, f"{name}: wait and transfer")
    return StreamSlices(trace, nodes, tracks, place, name, calls)


def _by_stream(rows: pa.Table) -> list[tuple[tuple[int | None, int | None], pa.Table]]:
    """The rows of each (device, stream); in the answer they stand together."""
    keys = [int64s(rows, name, null=-1) for name in ("device", "stream")]
    changes = np.flatnonzero((keys[0][1:] != keys[0][:-1]) | (keys[1][1:] != keys[1][:-1])) + 1
    bounds = [0, *changes.tolist(), rows.num_rows]
    found = [rows.slice(low, high - low) for low, high in pairwise(bounds) if high > low]
    return [((part["device"][0].as_py(), part["stream"][0].as_py()), part) for part in found]


def _rows(ask: Ask, question: Statement) -> pa.Table:
    return ask(question.sql, question.parameters)


def _first_moment(ranks: Sequence[Rank], steps: pa.Table) -> int:
    moments = [work.start_ns for rank in ranks for work in rank.work]
    for name in ("start_ns", "host_start_ns"):
        moments += [moment for moment in steps[name].to_pylist() if moment is not None]
    return min(moments, default=0)


def _shift(first_ns: int) -> int:
    """Whole seconds to add to every time, so that none is negative: a Perfetto file cannot hold those. Usually 0."""
    return 0 if first_ns >= 0 else -(first_ns // SECOND_NS) * SECOND_NS


def _attributes(selection: Selection) -> dict[str, str]:
    return {
        "annotq.job": selection.job,
        "annotq.attempt": str(selection.attempt),
        "annotq.version": version("annotq"),
        "annotq.selection": str(selection),
    }
