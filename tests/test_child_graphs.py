"""Work inside child graphs: numbered by the rule, given the region of its node, and part of the snapshot."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from annotq.agent.child_graphs import BodyNode, NestedNode, add_nested, nested_nodes, number_bodies, shown_name
from annotq.agent.snapshots import read_snapshot


def body(*names: str) -> tuple[BodyNode, ...]:
    return tuple(BodyNode("kernel", name) for name in names)


def child(*bodies: tuple[BodyNode, ...]) -> BodyNode:
    return BodyNode("child_graph", None, bodies)


def test_bodies_are_numbered_after_the_graphs_own_nodes_one_after_the_other() -> None:
    own = [(0, child(body("a", "b"))), (1, child(body("c", "d", "e"))), (2, child(body("f")))]
    nested, whole = number_bodies(own)
    assert [(node.index, node.name, node.top) for node in nested] == [
        (3, "a", 0),
        (4, "b", 0),
        (5, "c", 1),
        (6, "d", 1),
        (7, "e", 1),
        (8, "f", 2),
    ]
    assert whole


def test_bodies_in_a_body_come_right_after_it() -> None:
    inner = child(body("x", "y"))
    own = [(0, child((BodyNode("kernel", "a"), inner))), (1, BodyNode("kernel", "own")), (2, child(body("b")))]
    nested, _ = number_bodies(own)
    assert [(node.index, node.kind, node.name, node.top) for node in nested] == [
        (3, "kernel", "a", 0),
        (4, "child_graph", None, 0),
        (5, "kernel", "x", 0),
        (6, "kernel", "y", 0),
        (7, "kernel", "b", 2),
    ]


def test_the_branches_of_a_conditional_are_bodies_in_order() -> None:
    nested, whole = number_bodies([(0, BodyNode("conditional", None, (body("yes"), body("no"))))])
    assert ([(node.index, node.name) for node in nested], whole) == ([(1, "yes"), (2, "no")], True)


def test_behind_a_body_that_cannot_be_read_nothing_is_numbered() -> None:
    own = [(0, child(body("a"))), (1, BodyNode("conditional", None, None)), (2, child(body("b")))]
    nested, whole = number_bodies(own)
    assert ([(node.index, node.name) for node in nested], whole) == ([(3, "a")], False)


def test_a_graph_without_bodies_asks_cuda_nothing() -> None:
    data = {"nodes": [{"node_type": "kernel", "index": 0, "tools_id": 7 << 32}]}
    assert nested_nodes(SimpleNamespace(), data) == ([], True)


def snapshot() -> dict[str, Any]:
    return {
        "format": 1,
        "exec_graph_id": 7,
        "time_ns": 1,
        "nodes": {
            "index": [0, 1, 2],
            "kind": [0, 1, 1],
            "name": [0, None, None],
            "kinds": ["kernel", "child_graph"],
            "names": ["gemm"],
        },
        "annotations": {"node": [0, 1], "code": [0, 0], "distinct": [{"name": "mlp", "region_path": "net > mlp"}]},
    }


def test_a_snapshot_gives_nested_work_the_region_of_its_node_marked_inferred(tmp_path: Path) -> None:
    content = snapshot()
    add_nested(
        content,
        [NestedNode(3, "kernel", "gemm", 1), NestedNode(4, "memset", None, 1), NestedNode(5, "kernel", "relu", 2)],
    )
    path = tmp_path / "1.snapshot.json"
    path.write_text(json.dumps(content))
    found = read_snapshot(path)
    assert found.problems == ()
    assert [(row["node_index"], row["kind"], row["name"]) for row in found.nodes.to_pylist()] == [
        (0, "kernel", "gemm"),
        (1, "child_graph", None),
        (2, "child_graph", None),
        (3, "kernel", "gemm"),
        (4, "memset", None),
        (5, "kernel", "relu"),
    ]
    annotated = [
        (row["node_index"], row["region_path"], json.loads(row["attributes"]).get("inferred"))
        for row in found.annotations.to_pylist()
    ]
    assert annotated == [(0, "net > mlp", None), (1, "net > mlp", None), (3, "net > mlp", True), (4, "net > mlp", True)]


def test_names_are_those_of_a_trace() -> None:
    pytest.importorskip("torch")
    assert shown_name("_Z4gemmPf") == "gemm(float*)"
    assert shown_name("sm90_xmma_gemm") == "sm90_xmma_gemm"
    long = "_Z1000" + "a" * 2000 + "v"
    assert shown_name(long) == long
