"""Reads graph node lists: torch's `CUDAGraph.get_graph_data()` saved as JSON, one dictionary or a list of them.

Needed where a trace has no graph ids (torch < 2.12): there only the order of a graph's nodes tells them apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa

from annotq.agent.batches import GRAPH_NODE
from annotq.agent.errors import AnnotqError
from annotq.agent.problems import Problems
from annotq.agent.rank_names import rank_from_name

_LOW_HALF = (1 << 32) - 1
# CU_GRAPH_NODE_TYPE_KERNEL (driver), cudaGraphNodeTypeKernel (runtime).
_TYPE_PREFIX = re.compile(r"(?:cu_graph_node_type_|cudagraphnodetype)")


@dataclass(frozen=True)
class GraphFile:
    """One rank's graphs: rows of schema GRAPH_NODE, sorted by graph and node, and what was skipped."""

    path: str
    sha256: str
    rank: int
    rows: pa.RecordBatch
    problems: tuple[str, ...]


def read_graphs(path: Path, *, rank: int | None = None) -> GraphFile:
    """Read the nodes of one or more graphs; the rank is the argument's, else the file name's.

    Raises AnnotqError for a file that holds no graph and for no rank.
    """
    try:
        data = path.read_bytes()
        content = json.loads(data)
    except OSError as error:
        raise AnnotqError(f"{path}: {error.strerror}.", "Check the path and its permissions.") from None
    except (ValueError, RecursionError) as error:
        raise AnnotqError(f"{path} is not JSON: {error}.", _HINT) from None
    rank = rank if rank is not None else rank_from_name(path.name)
    if rank is None:
        raise AnnotqError(f"{path}: neither the file's name nor an option says its rank.", "Give `--rank N`.")
    problems = Problems()
    found: dict[tuple[int, int], tuple[str, str | None]] = {}
    for position, graph in enumerate(content if isinstance(content, list) else [content]):
        where = f"graph {position} of {path}"
        graph_id = _natural(graph.get("exec_graph_id")) if isinstance(graph, Mapping) else None
        if graph_id is None or not isinstance(graph.get("nodes"), list):
            problems.add('graph skipped, it is no dictionary with a number "exec_graph_id" and a list "nodes"', where)
            continue
        for node in graph["nodes"]:
            _add(found, graph_id, node, problems, where)
    if not found:
        raise AnnotqError(f"{path} holds no graph node.", _HINT)
    return GraphFile(str(path), sha256(data).hexdigest(), rank, _batch(found), problems.sentences())


_HINT = "Save what torch.cuda.CUDAGraph.get_graph_data() returns, as JSON."


def _add(
    found: dict[tuple[int, int], tuple[str, str | None]], graph_id: int, node: Any, problems: Problems, where: str
) -> None:
    fields = node if isinstance(node, Mapping) else {}
    tools_id = _natural(fields.get("tools_id"))
    # The low half is what a trace shows; `index` is only the position in this list.
    index = _natural(fields.get("index")) if tools_id is None else tools_id & _LOW_HALF
    if index is None or not isinstance(fields.get("node_type"), str):
        problems.add('node skipped, it lacks "index" (or "tools_id") or "node_type"', f"{node!r:.80} in {where}")
        return
    name = fields.get("kernel_name")
    kind = _TYPE_PREFIX.sub("", fields["node_type"].lower())
    found[graph_id, index] = kind, name if isinstance(name, str) else None


def _natural(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def _batch(found: dict[tuple[int, int], tuple[str, str | None]]) -> pa.RecordBatch:
    keys = sorted(found)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([graph for graph, _ in keys], pa.int64()),
            pa.array([index for _, index in keys], pa.int64()),
            pa.array([found[key][0] for key in keys], pa.string()).dictionary_encode(),
            pa.array([found[key][1] for key in keys], pa.string()).dictionary_encode(),
        ],
        schema=GRAPH_NODE,
    )
