"""Finds the files of a job in a folder and tells what each is.

`annotq ingest` and the shipper both start here: annotations and graph node lists first, so that traces find their regions
when they arrive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from annotq.agent.errors import AnnotqError
from annotq.agent.file_kinds import is_annotation_file, is_graph_file
from annotq.agent.process_info import ProcessInfo
from annotq.agent.spool_reader import IDENTITY, ProcessFolder, process_folder

_SUFFIXES = (".json", ".json.gz", ".pkl", ".pickle")
# What only a recorder writes, into the spool folder of its process.
RECORDED = frozenset({"snapshot", "destroyed", "note", "end"})
_ORDER = {"annotations": 0, "snapshot": 0, "graphs": 1, "trace": 2, "destroyed": 3, "note": 3, "end": 4}


@dataclass(frozen=True)
class Source:
    """One file to take in. kind: annotations, graphs, trace, or one of RECORDED. job: the folder it was found under, or its
    process's. process: whose spool folder it lies in; None elsewhere."""

    path: Path
    kind: str
    job: str
    process: ProcessInfo | None = None


def find_sources(paths: Iterable[Path]) -> list[Source]:
    """The files under the given folders and files, each once, in the order in which to take them in.

    A folder is searched with its subfolders for .json, .json.gz, .pkl and .pickle, and in spool folders of processes for their
    numbered files; a file is taken whatever its name.
    Raises AnnotqError for a path that does not exist and for a folder without any such file.
    """
    found: dict[Path, Source] = {}
    for path in paths:
        if path.is_dir():
            sources = _in_folder(path)
            if not sources:
                raise AnnotqError(f"{path}: no trace or annotation file ({', '.join(_SUFFIXES)}) in this folder.")
        elif path.is_file():
            recorded = {source.path.name: source for source in _recorded(path.parent)}
            sources = [recorded.get(path.name, Source(path, _kind(path), path.resolve().parent.name))]
        else:
            what = "neither a file nor a folder" if path.exists() else "no such file or folder"
            raise AnnotqError(f"{path}: {what}.")
        for source in sources:
            found.setdefault(source.path.resolve(), source)
    return sorted(found.values(), key=lambda source: (_ORDER[source.kind], _natural(source.path)))


def _in_folder(path: Path) -> list[Source]:
    processes = {file.parent: _recorded(file.parent) for file in path.rglob(IDENTITY)}
    processes = {folder: sources for folder, sources in processes.items() if sources}
    job = path.resolve().name
    others = [
        Source(file, _kind(file), job)
        for file in path.rglob("*")
        if file.name.endswith(_SUFFIXES) and file.is_file() and processes.keys().isdisjoint(file.parents)
    ]
    return [*others, *(source for sources in processes.values() for source in sources)]


def _recorded(folder: Path) -> list[Source]:
    """The numbered files of a process's spool folder; none when it is no such folder."""
    process = process_folder(folder)
    if not isinstance(process, ProcessFolder):
        return []
    return [Source(file.path, file.kind, process.info.job, process.info) for file in process.files()]


def _kind(path: Path) -> str:
    if is_graph_file(path):
        return "graphs"
    return "annotations" if is_annotation_file(path) else "trace"


def _natural(path: Path) -> list[tuple[int, str]]:
    """rank2 before rank10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]
