"""The dictionary of `torch.cuda.graph_annotations`, saved by a rank as JSON or as a pickle, to Arrow rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa

from annotq.agent.batches import ANNOTATION, coded
from annotq.agent.errors import AnnotqError
from annotq.agent.file_kinds import PICKLE_SUFFIXES
from annotq.agent.problems import Problems
from annotq.agent.rank_names import rank_from_name
from annotq.agent.reader.collectives import CollectiveValues, collective_arrays, collective_values
from annotq.agent.safe_pickle import UnsafePickleError, load_plain

_NOT_IN_A_NAME = ("autograd_phase", "stream")
_LOW_HALF = (1 << 32) - 1


@dataclass(frozen=True)
class AnnotationFile:
    """One rank's annotations: rows of schema ANNOTATION, sorted by graph and node, and what was skipped."""

    path: str
    sha256: str
    rank: int
    rows: pa.RecordBatch
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Annotation:
    """What one graph node is annotated with, as columns: see schema ANNOTATION."""

    region: str | None
    region_path: str | None
    phase: str
    attributes: str
    collective: CollectiveValues


def read_annotations(path: Path, *, rank: int | None = None) -> AnnotationFile:
    """Read `{exec_graph_id << 32 | node_index: [annotation, ...]}`; the rank is the argument's, else the file name's.

    Raises AnnotqError for a file that is no such dictionary, a pickle that holds more than plain values, and no rank.
    """
    data = _read(path)
    rank = rank if rank is not None else rank_from_name(path.name)
    if rank is None:
        raise AnnotqError(f"{path}: neither the file's name nor an option says its rank.", "Give `--rank N`.")
    content = _load(path, data)
    if not isinstance(content, Mapping):
        raise AnnotqError(
            f"{path} holds a {type(content).__name__}, not a dictionary from graph node ids to annotations.",
            "Save what torch.cuda.graph_annotations.get_kernel_annotations() returns.",
        )
    problems = Problems()
    found: dict[tuple[int, int], Annotation] = {}
    for key, value in content.items():
        node = _node(key)
        if node is None:
            problems.add(f"{path}: entry skipped, its key is no graph node id", f"key {key!r}")
            continue
        try:
            found[node] = annotation_row(value)
        except ValueError as error:
            problems.add(f"{path}: entry skipped, {error}", f"key {key!r}")
        except RecursionError:
            problems.add(f"{path}: entry skipped, its annotation is nested too deeply", f"key {key!r}")
    return AnnotationFile(str(path), sha256(data).hexdigest(), rank, annotation_batch(found), problems.sentences())


def annotation_row(value: Any) -> Annotation:
    """Turn a node's annotation(s), a list, a dictionary or a bare string, into columns; later entries of a list win.

    ValueError for anything else, as a clause.
    """
    merged: dict[str, Any] = {}
    for entry in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(entry, str):
            merged["name"] = entry
        elif isinstance(entry, Mapping):
            # Files of torch's early releases wrap a bare string as {"str": ...}.
            merged |= {("name" if key == "str" else str(key)): field for key, field in entry.items()}
        else:
            raise ValueError(f"its annotation is a {type(entry).__name__}, neither a dictionary nor a string")
    if not merged:
        raise ValueError("its annotation is empty")
    region = _region(merged)
    return Annotation(
        region=region,
        region_path=_path(merged.get("region_path")) or region,
        phase="backward" if merged.get("autograd_phase") == "backward" else "forward",
        attributes=json.dumps(merged, sort_keys=True, default=_plain),
        collective=collective_values(merged),
    )


def annotation_batch(found: Mapping[tuple[int, int], Annotation]) -> pa.RecordBatch:
    """Turn {(graph_id, node_index): annotation} into a batch of schema ANNOTATION, sorted by its key."""
    keys = sorted(found)
    rows = [found[key] for key in keys]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([graph for graph, _ in keys], pa.int64()),
            pa.array([node for _, node in keys], pa.int64()),
            coded(row.region for row in rows),
            coded(row.region_path for row in rows),
            coded(row.phase for row in rows),
            coded(row.attributes for row in rows),
            *collective_arrays([row.collective for row in rows]),
        ],
        schema=ANNOTATION,
    )


def _region(fields: Mapping[str, Any]) -> str | None:
    for key in ("name", "module_fqn", "module_name"):
        if fields.get(key) not in (None, ""):
            return str(fields[key])
    rest = [str(field) for key, field in fields.items() if key not in _NOT_IN_A_NAME]
    return ", ".join(rest) or None


def _path(value: Any) -> str | None:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " > ".join(str(part) for part in value)
    return str(value) if value else None


def _plain(value: Any) -> Any:
    """What JSON has no form for: sets in order, bytes and complex numbers as text."""
    return sorted(value, key=repr) if isinstance(value, (set, frozenset)) else str(value)


def _node(key: Any) -> tuple[int, int] | None:
    """Split a packed id, a number or its text; None when it is none (a graph's id starts at 1)."""
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20:
        key = int(key)
    if not isinstance(key, int) or isinstance(key, bool) or not _LOW_HALF < key < 1 << 63:
        return None
    return key >> 32, key & _LOW_HALF


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise AnnotqError(f"{path}: {error.strerror}.", "Check the path and its permissions.") from None
    if not data.strip():
        raise AnnotqError(f"{path} is empty.", "Save the annotations again.")
    return data


def _load(path: Path, data: bytes) -> Any:
    if path.name.lower().endswith(PICKLE_SUFFIXES):
        try:
            return load_plain(data)
        except UnsafePickleError as error:
            raise AnnotqError(
                f"{path}: {error}.", "Save the annotations as JSON, or as a pickle of a plain dict."
            ) from None
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise AnnotqError(f"{path} is not JSON: {error}.", "Save the annotations again.") from None
