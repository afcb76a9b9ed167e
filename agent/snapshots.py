"""Graph snapshots: what the recorder wrote when a CUDA graph was instantiated, as Arrow rows.

The file (written by graph_snapshots.py in the training process, read here) is one JSON object:

    {"format": 1, "exec_graph_id": 7, "capture_graph_id": 5, "generation": 0, "fingerprint": "...", "time_ns": ...,
     "nodes": {"index": [0, 1], "kind": [0, 1], "name": [0, null], "kinds": ["kernel", "memcpy"], "names": ["gemm"]},
     "annotations": {"node": [0], "code": [0], "distinct": [{"name": "mlp", "region_path": "layers.0 > mlp"}]}}

Columns, with every text once: a graph of 100,000 nodes has a few hundred kernel names and regions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from annotq.agent.annotations import Annotation, annotation_batch, annotation_row
from annotq.agent.batches import GRAPH_NODE, coded
from annotq.agent.errors import AnnotqError
from annotq.agent.problems import Problems


@dataclass(frozen=True)
class SnapshotInfo:
    """One instantiated graph. generation: how often the same torch.cuda.CUDAGraph was instantiated before;
    fingerprint: over node kinds, kernel names and edges (None: the nodes could not be read); time_ns: when."""

    graph_id: int
    generation: int
    fingerprint: str | None
    time_ns: int


@dataclass(frozen=True)
class Snapshot:
    """A snapshot as rows: nodes of schema GRAPH_NODE, annotations of schema ANNOTATION, both by node index."""

    path: str
    info: SnapshotInfo
    nodes: pa.RecordBatch
    annotations: pa.RecordBatch
    problems: tuple[str, ...] = ()


def read_snapshot(path: Path) -> Snapshot:
    """Read a snapshot file. Raises AnnotqError when it is none; an annotation that cannot be used is a problem."""
    try:
        content = json.loads(path.read_bytes())
        info = SnapshotInfo(
            graph_id=_number(content["exec_graph_id"]),
            generation=_number(content.get("generation", 0)),
            fingerprint=content.get("fingerprint"),
            time_ns=_number(content["time_ns"]),
        )
        nodes = _nodes(info.graph_id, content.get("nodes") or {})
        problems = Problems()
        annotations = annotation_batch(_annotations(info.graph_id, content.get("annotations") or {}, problems))
    except OSError as error:
        raise AnnotqError(f"{path}: {error.strerror}.", "Check the path and its permissions.") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, pa.ArrowException) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise AnnotqError(f"{path} is no graph snapshot: {what}.") from None
    return Snapshot(str(path), info, nodes, annotations, problems.sentences())


def _nodes(graph_id: int, columns: Mapping[str, Any]) -> pa.RecordBatch:
    index = [_number(value) for value in columns.get("index", [])]
    kinds = [columns["kinds"][code] for code in columns.get("kind", [])]
    names = [None if code is None else columns["names"][code] for code in columns.get("name", [])]
    graph: pa.Array[Any] = pa.array([graph_id] * len(index), pa.int64())
    return pa.RecordBatch.from_arrays(
        [graph, pa.array(index, pa.int64()), coded(kinds), coded(names)], schema=GRAPH_NODE
    ).sort_by("node_index")


def _annotations(graph_id: int, columns: Mapping[str, Any], problems: Problems) -> dict[tuple[int, int], Annotation]:
    found: dict[tuple[int, int], Annotation] = {}
    distinct: list[Annotation | str] = []
    for value in columns.get("distinct", []):
        try:
            distinct.append(annotation_row(value))
        except ValueError as error:
            distinct.append(str(error))
    for node, code in zip(columns.get("node", []), columns.get("code", []), strict=True):
        row = distinct[code]
        if isinstance(row, str):
            problems.add(f"annotation skipped, {row}", f"node {node} of graph {graph_id}")
        else:
            found[graph_id, _number(node)] = row
    return found


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is no id or time")
    return value
