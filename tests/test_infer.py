"""Traces without node ids get them by capture order and kernel name, or not at all."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from jobs import DATA, load, replayed_step, rows, write_annotations
from traces import write_trace

NAMES = ["gemm", "relu", "gemm"]
RECEIPT = "SELECT matched, orphan, encoding FROM coverage"


def write_graphs(path: Path, graphs: dict[int, Sequence[str]]) -> Path:
    """Node lists as torch's CUDAGraph.get_graph_data() gives them."""
    data = [
        {
            "exec_graph_id": graph,
            "nodes": [
                {"index": i, "node_type": "kernel", "tools_id": graph << 32 | i, "kernel_name": name}
                for i, name in enumerate(names)
            ],
        }
        for graph, names in graphs.items()
    ]
    path.write_text(json.dumps(data))
    return path


def absent_trace(tmp_path: Path, names: Sequence[str] = NAMES) -> Path:
    events = [
        event for number in (0, 1) for event in replayed_step(number, 1000.0 * (number + 1), [10] * len(names), names)
    ]
    return write_trace(tmp_path / "rank0.json", events, rank=0, encoding="absent")


def test_a_known_node_list_names_the_kernels_and_coverage_says_so(tmp_path: Path) -> None:
    absent_trace(tmp_path)
    write_annotations(tmp_path / "rank0.annotations.json", {0: "a", 1: "b", 2: "c"})
    write_graphs(tmp_path / "rank0.graphs.json", {2: NAMES})
    load(tmp_path / "store.duckdb", tmp_path, job="j")
    assert rows(tmp_path / "store.duckdb", RECEIPT) == [(6, 0, "inferred")]
    found = rows(tmp_path / "store.duckdb", "SELECT DISTINCT name, node_index, region FROM kernels ORDER BY node_index")
    assert found == [("gemm", 0, "a"), ("relu", 1, "b"), ("gemm", 2, "c")]


def test_the_node_list_may_come_after_the_trace(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    load(store, absent_trace(tmp_path), job="j")
    assert rows(store, RECEIPT) == [(0, 6, "absent")]
    load(store, write_annotations(tmp_path / "rank0.annotations.json", {0: "a", 1: "b", 2: "c"}), job="j")
    load(store, write_graphs(tmp_path / "rank0.graphs.json", {2: NAMES}), job="j")
    assert rows(store, RECEIPT) == [(6, 0, "inferred")]


@pytest.mark.parametrize(
    "ran", [["gemm", "gemm", "relu"], ["gemm", "relu"], ["gemm", "relu", "gemm", "relu"], ["gemm", "tanh", "gemm"]]
)
def test_names_that_do_not_fit_are_not_guessed(tmp_path: Path, ran: list[str]) -> None:
    absent_trace(tmp_path, ran)
    write_annotations(tmp_path / "rank0.annotations.json", {0: "a", 1: "b", 2: "c"})
    write_graphs(tmp_path / "rank0.graphs.json", {2: NAMES})
    load(tmp_path / "store.duckdb", tmp_path, job="j")
    assert rows(tmp_path / "store.duckdb", RECEIPT) == [(0, 2 * len(ran), "absent")]


def test_two_graphs_that_fit_with_different_regions_are_not_guessed(tmp_path: Path) -> None:
    absent_trace(tmp_path)
    (tmp_path / "rank0.annotations.json").write_text(
        json.dumps({str(2 << 32): [{"name": "a"}], str(3 << 32): [{"name": "z"}]})
    )
    write_graphs(tmp_path / "rank0.graphs.json", {2: NAMES, 3: NAMES})
    load(tmp_path / "store.duckdb", tmp_path, job="j")
    assert rows(tmp_path / "store.duckdb", RECEIPT) == [(0, 6, "absent")]


def test_a_graph_instantiated_twice_with_the_same_regions_is_no_ambiguity(tmp_path: Path) -> None:
    absent_trace(tmp_path)
    (tmp_path / "rank0.annotations.json").write_text(
        json.dumps({str(graph << 32): [{"name": "a"}] for graph in (2, 3)})
    )
    write_graphs(tmp_path / "rank0.graphs.json", {2: NAMES, 3: NAMES})
    load(tmp_path / "store.duckdb", tmp_path, job="j")
    assert rows(tmp_path / "store.duckdb", "SELECT matched, unannotated, orphan FROM coverage") == [(2, 4, 0)]


@pytest.mark.parametrize("rank", [0, 2])
def test_a_real_trace_in_three_encodings_gives_one_region_table(tmp_path: Path, rank: int) -> None:
    original = json.loads(gzip.decompress((DATA / f"slow4/rank{rank}.pt.trace.json.gz").read_bytes()))
    annotations = (DATA / f"slow4/rank{rank}.annotations.json").read_bytes()
    nodes = observed_nodes(original)
    for encoding in ("packed", "split", "absent"):
        folder = tmp_path / encoding
        folder.mkdir()
        (folder / f"rank{rank}.annotations.json").write_bytes(annotations)
        (folder / f"rank{rank}.graphs.json").write_text(json.dumps({"exec_graph_id": 2, "nodes": nodes}))
        (folder / f"rank{rank}.json").write_text(json.dumps(encoded(original, encoding)))
        load(tmp_path / "store.duckdb", folder)
    columns = "region, phase, instances, kernels, median_ns, p95_ns, p99_ns, total_ns"
    tables = [
        rows(tmp_path / "store.duckdb", f"SELECT {columns} FROM regions WHERE job = ? ORDER BY region, phase", job)
        for job in ("packed", "split", "absent")
    ]
    assert tables[0] == tables[1] == tables[2]
    assert len(tables[0]) == 21
    found = rows(tmp_path / "store.duckdb", "SELECT job, encoding FROM coverage ORDER BY job")
    assert found == [("absent", "inferred"), ("packed", "packed"), ("split", "split")]


def observed_nodes(trace: dict) -> list[dict]:
    """The node list of the graph, as its replays show it."""
    kinds = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
    found = {
        event["args"]["graph node id"]: event
        for event in trace["traceEvents"]
        if event.get("cat") in kinds and event["args"].get("graph node id")
    }
    return [
        {"index": i, "node_type": kinds[event["cat"]], "tools_id": node, "kernel_name": event["name"]}
        for i, (node, event) in enumerate(sorted(found.items()))
    ]


def encoded(trace: dict, encoding: str) -> dict:
    """The trace with its graph ids written as another version of the profiler would."""
    events = []
    for event in trace["traceEvents"]:
        args = dict(event.get("args", {}))
        if encoding == "absent":
            args.pop("graph id", None)
            args.pop("graph node id", None)
        elif encoding == "split" and "graph node id" in args:
            args["graph node id"] &= 0xFFFFFFFF
        events.append({**event, "args": args})
    return {**trace, "traceEvents": events}
