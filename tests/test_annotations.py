"""Annotation files in every form in which they are written, inline annotations, and graph node lists."""

from __future__ import annotations

import json
import os
import pickle
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import pytest
from traces import graph_launch, kernel, write_trace

from annotq.agent.annotations import read_annotations
from annotq.agent.errors import AnnotqError
from annotq.agent.file_kinds import is_annotation_file, is_graph_file
from annotq.agent.graphs import read_graphs
from annotq.agent.kineto import read_trace

DATA = Path(__file__).parent / "data"
NODE = 2 << 32 | 5


def one(tmp_path: Path, value: Any) -> dict[str, Any]:
    path = tmp_path / "rank0.annotations.json"
    path.write_text(json.dumps({str(NODE): value}))
    file = read_annotations(path)
    assert file.problems == ()
    (row,) = file.rows.to_pylist()
    assert (row["graph_id"], row["node_index"]) == (2, 5)
    return dict(row)


def test_real_file() -> None:
    file = read_annotations(DATA / "control4" / "rank3.annotations.json")
    assert (file.rank, file.rows.num_rows, file.problems) == (3, 239, ())
    assert {"layers.0.attn", "layers.3.mlp"} <= set(file.rows["region"].to_pylist())
    assert set(file.rows["phase"].to_pylist()) == {"forward", "backward"}


@pytest.mark.parametrize(
    ("value", "region"),
    [
        ([{"name": "mlp", "module_fqn": "layers.0"}], "mlp"),
        ([{"module_fqn": "layers.0", "module_name": "Layer"}], "layers.0"),
        ([{"module_name": "Layer"}], "Layer"),
        ([{"kind": "a", "layer": 3, "stream": 7, "autograd_phase": "backward"}], "a, 3"),
        (["bare"], "bare"),
        ("bare", "bare"),
        ([{"str": "wrapped"}], "wrapped"),
        ([{"name": "first", "layer": 1}, {"name": "later"}], "later"),
        ([{"autograd_phase": "backward"}], None),
    ],
)
def test_region_name(tmp_path: Path, value: Any, region: str | None) -> None:
    row = one(tmp_path, value)
    assert (row["region"], row["region_path"]) == (region, region)


def test_fields(tmp_path: Path) -> None:
    row = one(
        tmp_path,
        [
            {
                "name": "ar",
                "region_path": "step > ar",
                "autograd_phase": "backward",
                "Collective name": "allreduce",
                "Group size": 4,
            }
        ],
    )
    assert (row["region_path"], row["phase"]) == ("step > ar", "backward")
    assert (row["collective"], row["group_size"], row["in_elements"]) == ("allreduce", 4, None)
    assert list(json.loads(row["attributes"])) == [
        "Collective name",
        "Group size",
        "autograd_phase",
        "name",
        "region_path",
    ]


def test_bad_entries_are_skipped_and_told(tmp_path: Path) -> None:
    path = tmp_path / "rank1_annotations.json"
    path.write_text(
        json.dumps(
            {"abc": ["x"], "7": ["x"], str(1 << 70): ["x"], str(NODE): 5, str(NODE + 1): [], str(NODE + 2): ["ok"]}
        )
    )
    file = read_annotations(path)
    assert file.rows["region"].to_pylist() == ["ok"]
    assert len(file.problems) == 3
    assert "'abc'; 3 in all" in file.problems[0]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_plain_values(tmp_path: Path, protocol: int) -> None:
    found: defaultdict[int, list[Any]] = defaultdict(list)
    found[NODE].append(OrderedDict(name="mlp", shape=(1, 2.5), flags={True}, nothing=None))
    path = tmp_path / "kernel_annotations_rank12_fwd_bwd.pkl"
    path.write_bytes(pickle.dumps(found, protocol))
    file = read_annotations(path)
    assert (file.rank, file.problems, file.rows["region"].to_pylist()) == (12, (), ["mlp"])


class Attack:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch attacked",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps({NODE: [Attack()]}), "system"),
        (b"cbuiltins\neval\n(S'1'\ntR.", "builtins.eval"),
        (pickle.dumps({NODE: [Path("x")]}), "pathlib"),
        (pickle.dumps([1]), "list, not a dictionary"),
        (pickle.dumps({NODE: ["x"]})[:-5], "damaged"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", "damaged"),
        (b"", "empty"),
    ],
)
def test_refused_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "rank0.pkl"
    path.write_bytes(content)
    with pytest.raises(AnnotqError, match=words) as failed:
        read_annotations(path)
    assert str(path) in str(failed.value)
    assert not (tmp_path / "attacked").exists()


def test_deep_nesting_is_an_error_not_a_crash(tmp_path: Path) -> None:
    deep = tmp_path / "rank0.annotations.json"
    deep.write_text('{"1": ' + "[" * 200_000 + "]" * 200_000 + "}")
    with pytest.raises(AnnotqError, match="not JSON"):
        read_annotations(deep)
    deep_pickle = tmp_path / "rank0.pkl"
    lists = b"]" * 100_000 + b"a" * 99_999
    deep_pickle.write_bytes(b"\x80\x04}\x8a\x05\x05\x00\x00\x00\x02}X\x04\x00\x00\x00name" + lists + b"ss.")
    file = read_annotations(deep_pickle)
    assert "nested too deeply" in file.problems[0]


def test_no_rank(tmp_path: Path) -> None:
    path = tmp_path / "annotations.json"
    path.write_text("{}")
    with pytest.raises(AnnotqError, match="--rank"):
        read_annotations(path)
    assert read_annotations(path, rank=4).rank == 4


def test_which_files_hold_annotations(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('\n { "8589934592": []}')
    assert is_annotation_file(other)
    assert is_annotation_file(tmp_path / "kernel_annotations_rank0.pkl")
    assert is_annotation_file(tmp_path / "rank0.annotations.json")
    assert not is_annotation_file(write_trace(tmp_path / "rank0.json", []))
    assert not is_annotation_file(tmp_path / "missing.json")
    assert is_graph_file(tmp_path / "rank0.graphs.json")
    assert not is_graph_file(tmp_path / "rank0.json")


@pytest.mark.parametrize("flag", [{}, {"cudaGraphInlineAnnotated": True}])
@pytest.mark.parametrize("header_last", [False, True])
def test_inline_annotations(tmp_path: Path, flag: dict[str, Any], header_last: bool) -> None:
    events = [graph_launch(1, correlation=1)]
    events += [kernel("eager", 5, name_of_no_interest=1)]
    for replay in range(2):
        start = 10 + 100 * replay
        events += [
            kernel(
                "a",
                start,
                correlation=1,
                graph=2,
                node=0,
                grid=[1, 1, 1],
                module_fqn="layers.0",
                autograd_phase="backward",
            ),
            kernel("b", start + 20, correlation=1, graph=2, node=1),
        ]
    with read_trace(write_trace(tmp_path / "t.json", events, header_last=header_last, **flag)) as trace:
        assert trace.info.inline
        assert trace.info.gpu_events == 5
        (row,) = trace.annotations().to_pylist()
    assert (row["graph_id"], row["node_index"], row["region"], row["phase"]) == (2, 0, "layers.0", "backward")
    assert json.loads(row["attributes"]) == {"module_fqn": "layers.0", "autograd_phase": "backward"}


def test_no_inline_annotations(tmp_path: Path) -> None:
    with read_trace(write_trace(tmp_path / "t.json", [kernel("k", 5)])) as trace:
        assert not trace.info.inline
        assert trace.annotations().num_rows == 0


def test_graph_node_lists(tmp_path: Path) -> None:
    nodes = [
        {"index": 0, "node_type": "kernel", "tools_id": 2 << 32 | 4, "kernel_name": "gemm", "dependencies": []},
        {"index": 1, "node_type": "cudaGraphNodeTypeMemset", "tools_id": None, "kernel_name": None},
        {"index": 2, "node_type": "CU_GRAPH_NODE_TYPE_MEMCPY"},
        {"index": 3},
    ]
    path = tmp_path / "rank6.graphs.json"
    path.write_text(json.dumps([{"exec_graph_id": 2, "nodes": nodes}, {"nodes": []}]))
    file = read_graphs(path)
    assert file.rank == 6
    assert [tuple(row.values()) for row in file.rows.to_pylist()] == [
        (2, 1, "memset", None),
        (2, 2, "memcpy", None),
        (2, 4, "kernel", "gemm"),
    ]
    assert len(file.problems) == 2


@pytest.mark.parametrize("content", ["[]", "5", "{", '{"exec_graph_id": 1, "nodes": []}'])
def test_bad_graph_files(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rank0.graphs.json"
    path.write_text(content)
    with pytest.raises(AnnotqError, match=r"graphs\.json"):
        read_graphs(path)
