"""`annotq ingest`: trace and annotation files into the store."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from annotq.agent.errors import EXIT_FAILED
from annotq.cli.errors import note
from annotq.cli.options import Db, default_store
from annotq.cli.progress import file_progress

if TYPE_CHECKING:
    from annotq.agent.intake import Loaded, Outcome
    from annotq.agent.process_info import ProcessInfo
    from annotq.agent.read_ahead import Reader
    from annotq.agent.sources import Source

_SAY_NOTHING = ("destroyed", "note", "end")
NOTHING_RECORDED = "torch records nothing, without a word, on drivers older than CUDA 13.1 and without cuda-bindings"

Paths = Annotated[list[Path], typer.Argument(metavar="DIR|FILE...", help="Folders are searched with their subfolders.")]
JobName = Annotated[str | None, typer.Option("--job", metavar="NAME", help="Default: the name of the folder.")]
Attempt = Annotated[int, typer.Option("--attempt", min=0, metavar="N", help="Restart count of the job.")]
Rank = Annotated[
    int | None,
    typer.Option("--rank", min=0, metavar="N", help="For files that do not say their rank; overrides what they say."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only say what went wrong.")]


def ingest(
    paths: Paths, db: Db = None, job: JobName = None, attempt: Attempt = 0, rank: Rank = None, quiet: Quiet = False
) -> None:
    """Load traces and annotations of a job into the store. Loading a file again changes nothing.

    In a spool folder the processes say themselves which job, attempt and rank they are.

    Each file is loaded whole or not at all. A bad file is named and does not stop the others; the exit code is then 1.
    """
    from annotq.agent.sources import find_sources

    sources = find_sources(paths)
    path = db or default_store()
    tally = Tally()
    with reading(sources, rank) as reader, file_progress(sources, quiet) as progress:
        # Imported here: the readers are at work meanwhile.
        from annotq.agent.intake import take_in
        from annotq.collector.collective_alignment import align_hosts
        from annotq.collector.load import Loader
        from annotq.collector.rows import Target
        from annotq.collector.store import Store

        with Store(path) as store:

            def process_end(info: ProcessInfo) -> Loader:
                info = replace(info, job=job or info.job, attempt=attempt or info.attempt)
                loader = Loader(store, Target(info.job, info.attempt))
                loader.register(info)
                return loader

            outcomes = take_in(
                sources,
                lambda folder: Loader(store, Target(job or folder, attempt)),
                rank,
                progress.advance_bytes,
                reader,
                process_end,
            )
            for outcome in outcomes:
                progress.finish(outcome.source)
                tally.add(outcome, quiet)
            align_hosts(store.connection)
    if not quiet:
        note(tally.sentence(path))
    jobs = sorted({job or source.job for source in sources})
    if not quiet and tally.traces:
        where = ["--db", str(db)] if db else []
        note(f"next: {shlex.join(['annotq', 'stragglers', '--job', jobs[0], *where])}")
    if tally.problems:
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def reading(sources: Sequence[Source], rank: int | None) -> Iterator[Reader]:
    """A reader for the traces among the sources, with the first of them begun where that is worth a process."""
    from annotq.agent.read_ahead import ReadAhead, ReadHere, workers_for

    traces = [source for source in sources if source.kind == "trace"]
    workers = workers_for([source.path for source in traces])
    if not workers:
        yield ReadHere()
        return
    with ReadAhead(workers) as reader:
        for source in traces[:workers]:
            reader.begin(source.path, source.process.rank if source.process else rank)
        yield reader


@dataclass
class Tally:
    """What happened to the files so far."""

    traces: int = 0
    known: int = 0
    refused: int = 0
    gpu_events: int = 0
    problems: int = 0
    ranks: set[int] = field(default_factory=set)

    def add(self, outcome: Outcome, quiet: bool) -> None:
        self._count(outcome.loaded)
        if not quiet and outcome.loaded is not None and outcome.source.kind not in _SAY_NOTHING:
            note(_line(outcome.source.path, outcome.source.kind, outcome.loaded))
        self.problems += len(outcome.problems)
        _complain(outcome.source.path, outcome.problems, outcome.hint)

    def _count(self, loaded: Loaded | None) -> None:
        if loaded is None:
            self.refused += 1
        elif loaded.known:
            self.known += 1
        else:
            self.traces += loaded.gpu_events > 0
            self.gpu_events += loaded.gpu_events
            if loaded.rank is not None:
                self.ranks.add(loaded.rank)

    def sentence(self, store: Path) -> str:
        parts = [f"loaded {self.gpu_events:,} GPU events of {_count(len(self.ranks), 'rank')} into {store}"]
        if self.known:
            parts.append(f"{_count(self.known, 'file')} already there")
        if self.refused:
            parts.append(f"{_count(self.refused, 'file')} refused")
        return "; ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _line(path: Path, kind: str, loaded: Loaded) -> str:
    if loaded.known:
        return f"{path}: already loaded, nothing changed"
    if kind == "annotations":
        hint = "" if loaded.annotated_nodes else f" ({NOTHING_RECORDED})"
        return f"{path}: rank {loaded.rank}, {loaded.annotated_nodes:,} annotated graph nodes{hint}"
    if kind == "snapshot":
        return f"{path}: rank {loaded.rank}, {loaded.graph_nodes:,} graph nodes, {loaded.annotated_nodes:,} annotated"
    if kind == "graphs":
        return f"{path}: rank {loaded.rank}, {loaded.graph_nodes:,} graph nodes"
    return (
        f"{path}: rank {loaded.rank}, {loaded.gpu_events:,} GPU events, {loaded.graph_events:,} of them in CUDA graphs"
    )


def _complain(path: Path, problems: Iterable[str], hint: str) -> None:
    for problem in problems:
        note(f"error: {problem if str(path) in problem else f'{path}: {problem}'}")
    if hint:
        note(f"  {hint}")
