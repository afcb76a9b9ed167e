"""A graph as the recorder writes it and as the shipper reads it back."""

from __future__ import annotations

import gc
import json
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from stand_in_graph import StandInGraph, graph_data

from annotq.agent.fingerprint import fingerprint
from annotq.agent.graph_snapshots import GraphLives, graph_snapshot
from annotq.agent.plain_values import plain
from annotq.agent.snapshots import Snapshot, read_snapshot

GRAPH = 7
NODES = [("kernel", "gemm"), ("memcpy", None), ("kernel", "gemm"), ("memset", None)]
EDGES = [(0, 1), (1, 2), (1, 3)]


def snapshot(annotations: dict[int, list[Any]] | None = None, data: dict[str, Any] | None = None) -> dict[str, Any]:
    by_id = {(GRAPH << 32) + node: entries for node, entries in (annotations or {}).items()}
    data = data or graph_data(GRAPH, NODES, EDGES)
    return graph_snapshot(data, by_id, capture_graph_id=5, generation=0, time_ns=1_790_857_026_000_000_000)


def read_back(content: dict[str, Any], folder: Path) -> Snapshot:
    path = folder / "00000001.snapshot.json"
    path.write_text(json.dumps(content))
    return read_snapshot(path)


def regions(content: dict[str, Any], folder: Path) -> dict[int, tuple[str, str, str]]:
    rows = read_back(content, folder).annotations.to_pylist()
    return {row["node_index"]: (row["region"], row["region_path"], row["phase"]) for row in rows}


def test_nodes_come_back_in_node_order(tmp_path: Path) -> None:
    data = graph_data(GRAPH, NODES, EDGES)
    data["nodes"].reverse()  # torch's list need not be in node order, and its edges are places in this list
    for place, node in enumerate(data["nodes"]):
        node["index"] = place
        node["dependents"] = [len(NODES) - 1 - end for end in node["dependents"]]
    found = read_back(snapshot(data=data), tmp_path)
    assert [(row["node_index"], row["kind"], row["name"]) for row in found.nodes.to_pylist()] == [
        (index, kind, name) for index, (kind, name) in enumerate(NODES)
    ]
    assert (found.info.graph_id, found.info.generation) == (GRAPH, 0)
    assert found.info.fingerprint == fingerprint(*zip(*NODES, strict=True), EDGES) == snapshot()["fingerprint"]


def test_fingerprint_depends_on_edges_and_not_on_their_order() -> None:
    kinds, names = zip(*NODES, strict=True)
    whole = fingerprint(kinds, names, EDGES)
    assert fingerprint(kinds, names, EDGES[::-1]) == whole
    others = [fingerprint(kinds, names, edges) for edges in ((), EDGES[:2], [(0, 1), (1, 2), (2, 3)], [*EDGES, (0, 3)])]
    assert len({whole, *others}) == 5
    assert fingerprint(kinds, names) == "fcb9885248f31fc5"  # as it was before there were edges: stores hold it


def test_annotations_of_this_graph_only(tmp_path: Path) -> None:
    mlp = {"name": "mlp", "region_path": "layers.0 > mlp"}
    other = (8 << 32) - (GRAPH << 32)
    content = snapshot({0: [mlp], 2: [{**mlp, "autograd_phase": "backward"}], other + 1: [{"name": "another graph"}]})
    assert regions(content, tmp_path) == {
        0: ("mlp", "layers.0 > mlp", "forward"),
        2: ("mlp", "layers.0 > mlp", "backward"),
    }


def test_later_entries_of_a_node_win_as_in_a_file(tmp_path: Path) -> None:
    assert regions(snapshot({0: [{"name": "a", "stream": 60}, {"name": "b"}], 1: ["plain"]}), tmp_path) == {
        0: ("b", "b", "forward"),
        1: ("plain", "plain", "forward"),
    }


def test_mark_kernels_inside_a_region_ends_the_path(tmp_path: Path) -> None:
    # torch merges key by key: the inner name and the outer path.
    merged = {"name": "flash", "region_path": "layers.0 > attention"}
    assert regions(snapshot({0: [merged]}), tmp_path)[0][1] == "layers.0 > attention > flash"


def test_equal_annotations_are_written_once_and_unequal_ones_apart() -> None:
    content = snapshot({0: [{"a": 1}], 1: [{"a": True}], 2: [{"a": 1}], 3: [{"a": 1.0}]})["annotations"]
    assert content["code"] == [0, 1, 0, 2]
    assert json.dumps(content["distinct"]) == '[{"a": 1}, {"a": true}, {"a": 1.0}]'


def test_any_value_can_be_written() -> None:
    class Colour(Enum):
        RED = 1

    class Broken:
        def __str__(self) -> str:
            raise RuntimeError

    values = {"tensor": torch.ones(2, 3), "enum": Colour.RED, "nan": float("nan"), 3: {"b", "a"}, "broken": Broken()}
    assert plain(values) == {
        "tensor": "Tensor torch.Size([2, 3]) torch.float32 cpu",
        "enum": "Colour.RED",
        "nan": "nan",
        "3": ["a", "b"],
        "broken": "<Broken>",
    }
    assert snapshot({0: [values], 1: [values]})["annotations"]["code"] == [0, 0]
    loop: list[Any] = []
    loop.append(loop)
    json.dumps(plain(loop))


def test_generations_and_ends_of_a_graph_object() -> None:
    gone: list[int] = []
    lives = GraphLives(gone.append)
    graph = StandInGraph(NODES)
    assert [lives.instantiated(graph, exec_id) for exec_id in (7, 8)] == [0, 1]
    assert gone == [7]  # torch destroys an executable when it makes the next from the same graph
    graph.reset()
    assert gone == [7, 8]
    assert lives.instantiated(graph, 9) == 2
    assert lives.instantiated(StandInGraph(NODES), 10) == 0
    gc.collect()
    assert gone == [7, 8, 10]
    del graph
    gc.collect()
    assert gone == [7, 8, 10, 9]


@pytest.mark.parametrize("nodes", [[], [("kernel", None)]])
def test_graphs_without_nodes_or_names(nodes: list[tuple[str, str | None]], tmp_path: Path) -> None:
    assert read_back(snapshot(data=graph_data(GRAPH, nodes)), tmp_path).nodes.num_rows == len(nodes)
