"""Takes in files one after the other: recognise, read, hand over, report.

The same code serves `annotq ingest`, whose end is the local store, and the shipper, whose end is a collector. One bad file
never stops the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from annotq.agent.annotations import AnnotationFile, read_annotations
from annotq.agent.errors import AnnotqError
from annotq.agent.graphs import GraphFile, read_graphs
from annotq.agent.kineto import Trace, file_sha256, read_trace
from annotq.agent.rank_names import rank_from_name
from annotq.agent.sources import Source

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
    def load_trace(self, trace: Trace) -> Loaded: ...
    def load_annotations(self, file: AnnotationFile) -> Loaded: ...
    def load_graphs(self, file: GraphFile) -> Loaded: ...
    def reject_trace(self, path: str, sha256: str, rank: int, reason: str) -> None: ...


def take_in(
    sources: Iterable[Source],
    end_of: Callable[[str], End],
    rank: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Outcome]:
    """Load each source into the end of its job and yield what became of it.

    rank: overrides what the files say; progress: called with the bytes of JSON read so far of the current trace.
    """
    for source in sources:
        yield _take_one(source, end_of(source.job), rank, progress)


def _take_one(source: Source, end: End, rank: int | None, progress: Progress | None) -> Outcome:
    # Ranks may have equal annotation files, so a content is known per rank, as far as the name tells the rank.
    claimed = rank if rank is not None else rank_from_name(source.path.name)
    sha256 = ""
    try:
        sha256 = file_sha256(source.path)
        if end.is_known(sha256, claimed):
            return Outcome(source, Loaded(known=True, rank=claimed), ())
        if source.kind == "annotations":
            annotations = read_annotations(source.path, rank=rank)
            return _outcome(source, end.load_annotations(annotations), annotations.problems)
        if source.kind == "graphs":
            graphs = read_graphs(source.path, rank=rank)
            return _outcome(source, end.load_graphs(graphs), graphs.problems)
        with read_trace(source.path, rank=rank, progress=progress) as trace:
            return _outcome(source, end.load_trace(trace), trace.info.problems)
    except AnnotqError as error:
        if source.kind == "trace" and sha256 and claimed is not None:
            end.reject_trace(str(source.path), sha256, claimed, error.message)
        return Outcome(source, None, (error.message,), error.hint)


def _outcome(source: Source, loaded: Loaded, problems: tuple[str, ...]) -> Outcome:
    return Outcome(source, loaded, (*problems, *loaded.problems))
