"""Takes in files one after the other: recognise, read, hand over, report.

The same code serves `annotq ingest`, whose end is the local store, and the shipper, whose end is a collector. One bad file
never stops the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol, cast

from annotq.agent.annotations import AnnotationFile, read_annotations
from annotq.agent.errors import AnnotqError
from annotq.agent.graphs import GraphFile, read_graphs
from annotq.agent.kineto import file_sha256
from annotq.agent.process_info import ProcessInfo
from annotq.agent.rank_names import rank_from_name
from annotq.agent.read_ahead import Reader, ReadHere, ReadTrace
from annotq.agent.recorded_files import read_destroyed, read_end, read_note
from annotq.agent.snapshots import Snapshot, read_snapshot
from annotq.agent.sources import RECORDED, Source

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Loaded:
    """What an end did with one file. known: the same content was there already, nothing was changed
    (rank is then None when only the content could have told it). problems: what the end found wrong with it."""

    known: bool
    rank: int | None
    gpu_events: int = 0
    graph_events: int = 0
    annotated_nodes: int = 0
    graph_nodes: int = 0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """One file after it was taken in: loaded is None when it was refused. problems are sentences about bad input."""

    source: Source
    loaded: Loaded | None
    problems: tuple[str, ...]
    hint: str = ""


class End(Protocol):
    """Where files go: a local store or a collector. Loading raises AnnotqError when the end refuses the file."""

    def is_known(self, sha256: str, rank: int | None) -> bool: ...
    def load_trace(self, trace: ReadTrace) -> Loaded: ...
    def load_annotations(self, file: AnnotationFile) -> Loaded: ...
    def load_graphs(self, file: GraphFile) -> Loaded: ...
    def reject_trace(self, path: str, sha256: str, rank: int, reason: str) -> None: ...


class ProcessEnd(End, Protocol):
    """The end of one recorded process: besides files it takes what only a recorder knows."""

    def load_snapshot(self, snapshot: Snapshot) -> Loaded: ...
    def destroy_graphs(self, graph_ids: Sequence[int], time_ns: int) -> None: ...
    def note(self, text: str) -> None: ...
    def end_process(self, time_ns: int, how: str) -> None: ...


def take_in(
    sources: Sequence[Source],
    end_of: Callable[[str], End],
    rank: int | None = None,
    progress: Progress | None = None,
    reader: Reader | None = None,
    process_end_of: Callable[[ProcessInfo], ProcessEnd] | None = None,
) -> Iterator[Outcome]:
    """Load each source into the end of its job, or of its process, and yield what became of it.

    rank: overrides what the files say. progress: called with the bytes read so far of the current trace file. reader:
    reads the traces, in this process when None. process_end_of: called once per process; may raise AnnotqError.
    """
    intake = _Intake(end_of, process_end_of, rank, progress, reader or ReadHere())
    traces = deque(source for source in sources if source.kind == "trace")
    for source in sources:
        if source.kind == "trace":
            intake.read_ahead(list(islice(traces, intake.reader.ahead)))
            traces.popleft()
        yield intake.take(source)


class _Intake:
    def __init__(
        self,
        end_of: Callable[[str], End],
        process_end_of: Callable[[ProcessInfo], ProcessEnd] | None,
        rank: int | None,
        progress: Progress | None,
        reader: Reader,
    ) -> None:
        self.reader = reader
        self._end_of = end_of
        self._process_end_of = process_end_of
        self._process_ends: dict[str, ProcessEnd] = {}
        self._rank = rank
        self._progress = progress
        self._hashes: dict[Path, str] = {}

    def read_ahead(self, sources: list[Source]) -> None:
        for source in sources:
            with suppress(AnnotqError):  # is said when its turn comes
                if not self._is_known(source):
                    self.reader.begin(source.path, self._rank_of(source))

    def take(self, source: Source) -> Outcome:
        try:
            end = self._end(source)
        except AnnotqError as error:
            self.reader.drop(source.path)
            return Outcome(source, None, (error.message,), error.hint)
        try:
            if source.kind in RECORDED:
                return self._load_recorded(source, cast(ProcessEnd, end))
            if self._is_known(source):
                self.reader.drop(source.path)
                return Outcome(source, Loaded(known=True, rank=self._claimed(source)), ())
            return self._load(source, end)
        except AnnotqError as error:
            self._leave_a_mark(source, end, error)
            return Outcome(source, None, (error.message,), error.hint)

    def _load(self, source: Source, end: End) -> Outcome:
        if source.kind == "annotations":
            annotations = read_annotations(source.path, rank=self._rank_of(source))
            return _outcome(source, end.load_annotations(annotations), annotations.problems)
        if source.kind == "graphs":
            graphs = read_graphs(source.path, rank=self._rank_of(source))
            return _outcome(source, end.load_graphs(graphs), graphs.problems)
        with self.reader.take(source.path, self._rank_of(source), self._progress) as trace:
            return _outcome(source, end.load_trace(trace), trace.info.problems)

    def _load_recorded(self, source: Source, end: ProcessEnd) -> Outcome:
        """Only a recorder writes these, so the end is that of its process."""
        loaded, problems = Loaded(False, self._rank_of(source)), tuple[str, ...]()
        if source.kind == "snapshot":
            snapshot = read_snapshot(source.path)
            loaded, problems = end.load_snapshot(snapshot), snapshot.problems
        elif source.kind == "destroyed":
            end.destroy_graphs(*read_destroyed(source.path))
        elif source.kind == "note":
            end.note(read_note(source.path)[0])
        else:
            end.end_process(*read_end(source.path))
        return _outcome(source, loaded, problems)

    def _is_known(self, source: Source) -> bool:
        # Ranks may have equal annotation files, so a content is known per rank, as far as the name tells the rank.
        return self._end(source).is_known(self._hash(source.path), self._claimed(source))

    def _end(self, source: Source) -> End:
        if source.process is None or self._process_end_of is None:
            return self._end_of(source.job)
        key = source.process.key
        if key not in self._process_ends:
            self._process_ends[key] = self._process_end_of(source.process)
        return self._process_ends[key]

    def _rank_of(self, source: Source) -> int | None:
        """What is known of the rank before the file is read and its name is looked at."""
        return source.process.rank if source.process is not None else self._rank

    def _claimed(self, source: Source) -> int | None:
        rank = self._rank_of(source)
        return rank if rank is not None else rank_from_name(source.path.name)

    def _hash(self, path: Path) -> str:
        if path not in self._hashes:
            try:
                self._hashes[path] = file_sha256(path)
            except OSError as error:
                raise AnnotqError(f"{path}: {error.strerror}.", "Check the path and its permissions.") from None
        return self._hashes[path]

    def _leave_a_mark(self, source: Source, end: End, error: AnnotqError) -> None:
        """A refused trace whose rank is certain stays visible in coverage."""
        claimed, sha256 = self._claimed(source), self._hashes.get(source.path)
        if source.kind == "trace" and claimed is not None and sha256 is not None:
            end.reject_trace(str(source.path), sha256, claimed, error.message)


def _outcome(source: Source, loaded: Loaded, problems: tuple[str, ...]) -> Outcome:
    return Outcome(source, loaded, (*problems, *loaded.problems))
