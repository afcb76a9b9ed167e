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

_SUFFIXES = (".json", ".json.gz", ".pkl", ".pickle")
_ORDER = {"annotations": 0, "graphs": 1, "trace": 2}


@dataclass(frozen=True)
class Source:
    """One file to take in. kind: annotations, graphs or trace. job: the folder it was found under."""

    path: Path
    kind: str
    job: str


def find_sources(paths: Iterable[Path]) -> list[Source]:
    """The files under the given folders and files, each once, in the order in which to take them in.

    A folder is searched with its subfolders for .json, .json.gz, .pkl and .pickle; a file is taken whatever its name.
    Raises AnnotqError for a path that does not exist and for a folder without any such file.
    """
    found: dict[Path, Source] = {}
    for path in paths:
        if path.is_dir():
            files = [file for file in path.rglob("*") if file.is_file() and file.name.endswith(_SUFFIXES)]
            if not files:
                raise AnnotqError(f"{path}: no trace or annotation file ({', '.join(_SUFFIXES)}) in this folder.")
            job = path.resolve().name
        elif path.is_file():
            files, job = [path], path.resolve().parent.name
        else:
            what = "neither a file nor a folder" if path.exists() else "no such file or folder"
            raise AnnotqError(f"{path}: {what}.")
        for file in files:
            found.setdefault(file.resolve(), Source(file, _kind(file), job))
    return sorted(found.values(), key=lambda source: (_ORDER[source.kind], _natural(source.path)))


def _kind(path: Path) -> str:
    if is_graph_file(path):
        return "graphs"
    return "annotations" if is_annotation_file(path) else "trace"


def _natural(path: Path) -> list[tuple[int, str]]:
    """rank2 before rank10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]
