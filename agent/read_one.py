"""Reads one file of the spool into the end of its process: the same reading as `annotq ingest`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from annotq.agent.errors import AnnotqError
from annotq.agent.intake import Loaded, ProcessEnd, Progress, take_in
from annotq.agent.process_info import ProcessInfo
from annotq.agent.read_ahead import ReadAhead, Reader, ReadHere, workers_for
from annotq.agent.recorded_files import read_note
from annotq.agent.sources import Source
from annotq.agent.spool_reader import SpoolFile


@dataclass(frozen=True)
class Taken:
    """What became of a file. loaded None: it cannot be used, `problem` says why; dropped: traces given up, as a note says."""

    loaded: Loaded | None
    problem: str
    dropped: int


def take_in_file(file: SpoolFile, info: ProcessInfo, end: ProcessEnd, progress: Progress) -> Taken:
    """Read a file and give it to `end`. progress: called a few times a second while a trace is read; may raise."""
    source = Source(file.path, file.kind, info.job)
    with _reader(file) as reader:
        outcome = next(take_in([source], lambda _job: end, info.rank, progress, reader))
    if outcome.loaded is None:
        return Taken(None, " ".join(outcome.problems), 0)
    dropped = 0
    if file.kind == "note":
        with suppress(AnnotqError):  # replaced by its trainer meanwhile
            dropped = read_note(file.path)[1]
    return Taken(outcome.loaded, "", dropped)


@contextmanager
def _reader(file: SpoolFile) -> Iterator[Reader]:
    """A worker process for a large trace: another core decodes it while this one encodes and sends."""
    try:
        large = file.kind == "trace" and workers_for([file.path]) > 0
    except FileNotFoundError:
        large = False
    if not large:
        yield ReadHere()
        return
    with ReadAhead(1) as reader:
        yield reader
