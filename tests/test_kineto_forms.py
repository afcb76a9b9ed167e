"""One trace in every form in which it is found: the batches are the same."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from traces import annotation, graph_launch, kernel, launch, raw, step, write_trace

from annotq.agent.kineto import Trace, read_trace

EVENTS = [
    step(3, 1000, 200),
    graph_launch(1010, correlation=5),
    kernel("gemm<1, 2>(float*)", raw("1020.125"), 10, correlation=5, graph=2, node=0),
    kernel('a "quoted" \\ name {"ph":', raw("1030.999"), raw("5.001"), correlation=5, graph=2, node=1),
    kernel("Memcpy DtoD", 1040, 2, correlation=5, graph=2, node=4, cat="gpu_memcpy", bytes=4096),
    annotation("eval", 1100, 50),
    launch(1110, correlation=6),
    kernel("gemm<1, 2>(float*)", 1120, 10, correlation=6),
]


def rows(trace: Trace) -> list[list[dict[str, object]]]:
    with trace:
        gpu = [row for batch in trace.gpu_events() for row in batch.to_pylist()]
        host = [row for batch in trace.host_spans() for row in batch.to_pylist()]
        return [gpu, host, trace.observed_nodes().to_pylist()]


@pytest.mark.parametrize(
    ("style", "gzip", "header_last"), [*product(["pretty", "lines", "compact"], [False, True], [False, True])]
)
def test_form_changes_nothing(tmp_path: Path, style: str, gzip: bool, header_last: bool) -> None:
    plain = rows(read_trace(write_trace(tmp_path / "plain.json", EVENTS)))
    other = read_trace(write_trace(tmp_path / "other", EVENTS, style=style, gzip=gzip, header_last=header_last))
    assert other.info.problems == ()
    assert other.info.gpu_events == 4
    assert rows(other) == plain


def test_top_level_array(tmp_path: Path) -> None:
    with_base_0 = rows(read_trace(write_trace(tmp_path / "a.json", EVENTS, base_ns=None)))
    array = read_trace(write_trace(tmp_path / "rank0.json", EVENTS, style="array"))
    assert array.info.problems == ()
    assert rows(array) == with_base_0


@pytest.mark.parametrize("encoding", ["packed", "split"])
def test_graph_ids_are_the_same_in_both_encodings(tmp_path: Path, encoding: str) -> None:
    trace = read_trace(write_trace(tmp_path / "a.json", EVENTS, encoding=encoding))
    assert (trace.info.encoding, trace.info.graph_events) == (encoding, 3)
    gpu, _, nodes = rows(trace)
    assert [(row["in_graph"], row["graph_id"], row["node_index"]) for row in gpu] == [
        (True, 2, 0),
        (True, 2, 1),
        (True, 2, 4),
        (False, None, None),
    ]
    assert [(node["node_index"], node["kind"], node["name"]) for node in nodes] == [
        (0, "kernel", "gemm<1, 2>(float*)"),
        (1, "kernel", 'a "quoted" \\ name {"ph":'),
        (4, "memcpy", None),
    ]


def test_without_ids_the_launch_tells_graph_work(tmp_path: Path) -> None:
    trace = read_trace(write_trace(tmp_path / "a.json", EVENTS, encoding="absent"))
    assert (trace.info.encoding, trace.info.graph_events) == ("absent", 3)
    gpu, _, nodes = rows(trace)
    assert [(row["in_graph"], row["graph_id"], row["step"]) for row in gpu] == [(True, None, 3)] * 3 + [
        (False, None, 3)
    ]
    assert nodes == []


def test_without_ids_and_launches_a_shared_correlation_tells_graph_work(tmp_path: Path) -> None:
    gpu_only = [event for event in EVENTS if event["cat"] in ("kernel", "gpu_memcpy")]
    trace = read_trace(write_trace(tmp_path / "a.json", gpu_only, encoding="absent"))
    assert (trace.info.encoding, trace.info.graph_events, trace.info.step_source) == ("absent", 3, "replay")


def test_mixed_encodings_are_read_and_told(tmp_path: Path) -> None:
    mixed = [dict(event, args=dict(event["args"])) for event in EVENTS]
    mixed[3]["args"]["graph node id"] = 1
    mixed[4]["args"]["graph id"] = 9
    trace = read_trace(write_trace(tmp_path / "a.json", mixed))
    assert trace.info.encoding == "packed"
    assert any("below 2^32" in problem for problem in trace.info.problems)
    assert any("contradicts" in problem for problem in trace.info.problems)
    assert [(row["graph_id"], row["node_index"]) for row in rows(trace)[0][:3]] == [(2, 0), (2, 1), (2, 4)]


def test_older_spellings_of_categories(tmp_path: Path) -> None:
    events = [
        kernel("k", 10, cat="Kernel"),
        kernel("Memset", 30, cat="Memset", bytes=8),
        launch(5, correlation=1) | {"cat": "Runtime"},
    ]
    assert [row["kind"] for row in rows(read_trace(write_trace(tmp_path / "a.json", events)))[0]] == [
        "kernel",
        "memset",
    ]


def test_no_base_time_means_absolute_microseconds(tmp_path: Path) -> None:
    event = kernel("k", raw("1790857026000000.123456"), raw("1.5e-2"))
    gpu = rows(read_trace(write_trace(tmp_path / "a.json", [event], base_ns=None)))[0]
    assert (gpu[0]["start_ns"], gpu[0]["duration_ns"]) == (1790857026000000123, 15)


@pytest.mark.parametrize(("devices", "problems"), [([], 0), ([{"id": 0, "name": "NVIDIA H200"}], 1), (None, 1)])
def test_a_trace_without_gpu_work_is_a_problem_unless_there_was_no_gpu(
    tmp_path: Path, devices: list[object] | None, problems: int
) -> None:
    header = {} if devices is None else {"deviceProperties": devices}
    path = write_trace(tmp_path / "rank0.json", [step(0, 1000, 50), annotation("eval", 1010, 5)], rank=0, **header)
    with read_trace(path) as trace:
        assert len(trace.info.problems) == problems
        assert trace.info.status == "complete"
