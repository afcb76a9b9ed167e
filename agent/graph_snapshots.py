"""What the recorder knows of a CUDA graph at the moment of its instantiation, in the form of a snapshot file (snapshots.py).

Runs in the training process, with the standard library alone; it reads torch's dictionaries and never touches the GPU.
"""

from __future__ import annotations

import json
import marshal
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from annotq.agent.child_graphs import shown_name
from annotq.agent.fingerprint import fingerprint
from annotq.agent.plain_values import plain

FORMAT = 1
PATH_SEPARATOR = " > "

_LOW_HALF = (1 << 32) - 1


def graph_snapshot(
    data: Mapping[str, Any],
    annotations: Mapping[int, Sequence[Any]],
    *,
    capture_graph_id: int | None,
    generation: int,
    time_ns: int,
) -> dict[str, Any]:
    """A snapshot file's content from `CUDAGraph.get_graph_data()` and torch's dictionary of annotations.

    Both are read, not kept. Raises KeyError or TypeError for data of another form than torch documents.
    """
    exec_graph_id = data["exec_graph_id"]
    # In node order, which is what a trace shows: the low half of the id. `index` is only the place in this list.
    nodes = sorted(data["nodes"], key=_node_index)
    index = [_node_index(node) for node in nodes]
    kinds = [node["node_type"] for node in nodes]
    shown = {name: shown_name(name) for name in {node["kernel_name"] for node in nodes} if name is not None}
    names = [shown.get(node["kernel_name"]) for node in nodes]
    kind_codes: dict[str, int] = {}
    name_codes: dict[str, int] = {}
    return {
        "format": FORMAT,
        "exec_graph_id": exec_graph_id,
        "capture_graph_id": capture_graph_id,
        "generation": generation,
        "fingerprint": fingerprint(kinds, names, _edges(nodes)),
        "time_ns": time_ns,
        "nodes": {
            "index": index,
            "kind": [kind_codes.setdefault(kind, len(kind_codes)) for kind in kinds],
            "name": [None if name is None else name_codes.setdefault(name, len(name_codes)) for name in names],
            "kinds": list(kind_codes),
            "names": list(name_codes),
        },
        "annotations": _annotation_columns(exec_graph_id, index, annotations),
    }


def _node_index(node: Mapping[str, Any]) -> int:
    return int(node["tools_id"]) & _LOW_HALF


def _edges(nodes: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Edges as places in node order; torch gives them as places in its own list."""
    place = {node["index"]: position for position, node in enumerate(nodes)}
    return [(start, place[end]) for start, node in enumerate(nodes) for end in node["dependents"]]


def _annotation_columns(
    exec_graph_id: int, index: Sequence[int], annotations: Mapping[int, Sequence[Any]]
) -> dict[str, list[Any]]:
    """Node, code and the distinct annotations.

    Looked up node by node: a pass over torch's dictionary would cost as much as all graphs have nodes, for every graph.
    """
    node_column: list[int] = []
    code_column: list[int] = []
    distinct: list[dict[str, Any]] = []
    codes: dict[object, int] = {}
    high_half = exec_graph_id << 32
    for node in index:
        merged = merged_fields(annotations.get(high_half | node))
        if not merged:
            continue
        key = _content_key(merged)
        code = codes.get(key)
        if code is None:
            code = codes[key] = len(distinct)
            distinct.append(_with_whole_path(plain(merged)))
        node_column.append(node)
        code_column.append(code)
    return {"node": node_column, "code": code_column, "distinct": distinct}


def merged_fields(entries: Sequence[Any] | None) -> dict[str, Any]:
    """One dictionary from a node's entries, the later ones winning (as annotations.annotation_row reads a file's)."""
    if not entries:
        return {}
    if len(entries) == 1 and isinstance(entries[0], dict):
        return entries[0]
    merged: dict[str, Any] = {}
    for entry in entries:
        merged |= entry if isinstance(entry, dict) else {"name": entry}
    return merged


def _content_key(merged: dict[str, Any]) -> object:
    """Equal for dictionaries that are written alike. Nested scopes give every node a dictionary of its own, so this runs
    once per node; marshal does it in 0.4 us and, unlike a tuple of items, tells 1 from True."""
    try:
        return marshal.dumps(merged, 2)  # version 2: without references, which depend on who else holds a string
    except ValueError:  # a value that is no plain one
        return json.dumps(plain(merged), sort_keys=True)


def _with_whole_path(fields: dict[str, Any]) -> dict[str, Any]:
    """Where torch's mark_kernels is nested in a region, the path is the region's: it lacks the innermost name."""
    path, name = fields.get("region_path"), fields.get("name")
    if path and name and path != name and not str(path).endswith(f"{PATH_SEPARATOR}{name}"):
        fields["region_path"] = f"{path}{PATH_SEPARATOR}{name}"
    return fields


@dataclass
class _Life:
    """A torch.cuda.CUDAGraph as far as it was instantiated. Must not reference it: that would keep it alive."""

    generation: int = -1
    exec_graph_id: int | None = None
    watched: bool = False


class GraphLives:
    """Counts the instantiations of each CUDAGraph object and tells when an executable graph is gone."""

    def __init__(self, destroyed: Callable[[int], None]) -> None:
        """destroyed: called with an exec graph id, possibly from a finalizer: it must neither block nor lock."""
        self._destroyed = destroyed
        self._lives: weakref.WeakKeyDictionary[Any, _Life] = weakref.WeakKeyDictionary()

    def instantiated(self, graph: Any, exec_graph_id: int) -> int:
        """Note an instantiation; the generation, from 0. The graph's previous executable is destroyed by it."""
        life = self._lives.setdefault(graph, _Life())
        if life.exec_graph_id is not None:
            self._destroyed(life.exec_graph_id)
        life.generation += 1
        life.exec_graph_id = exec_graph_id
        if not life.watched:
            life.watched = True
            # Of the object, on reset() or when it is collected. torch's own destroy hook tells annotated graphs only.
            graph.register_destroy_callback(lambda: self._gone(life))
        return life.generation

    def _gone(self, life: _Life) -> None:
        life.watched = False  # torch forgets its callbacks at reset()
        if life.exec_graph_id is not None:
            exec_graph_id, life.exec_graph_id = life.exec_graph_id, None
            self._destroyed(exec_graph_id)
