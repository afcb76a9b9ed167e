"""Steps and eager regions follow the launch, not the moment at which the GPU gets round to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from traces import Event, annotation, graph_launch, kernel, launch, step, write_trace

from annotq.agent.kineto import read_trace


def read(tmp_path: Path, events: list[Event], **options: Any) -> tuple[dict[str, dict[str, Any]], str]:
    """The GPU events by name, and the source of their steps."""
    with read_trace(write_trace(tmp_path / "t.json", events, **options)) as trace:
        assert trace.info.problems == ()
        return {row["name"]: row for batch in trace.gpu_events() for row in batch.to_pylist()}, trace.info.step_source


def test_step_of_the_launch(tmp_path: Path) -> None:
    found, source = read(
        tmp_path,
        [
            step(4, 100, 100),
            step(5, 200, 100),
            launch(199, correlation=1),
            launch(200, correlation=2),
            launch(300, correlation=3),
            kernel("late", 250, 1, correlation=1),
            kernel("border", 260, 1, correlation=2),
            kernel("after the last step", 310, 1, correlation=3),
            kernel("launch not in the trace", 320, 1, correlation=9),
        ],
    )
    assert source == "profiler"
    assert [row["step"] for row in found.values()] == [4, 5, None, None]


def test_eager_region_is_the_innermost_on_the_launching_thread(tmp_path: Path) -> None:
    found, _ = read(
        tmp_path,
        [
            annotation("outer", 100, 100),
            annotation("inner", 120, 20),
            annotation("elsewhere", 100, 100, tid=9),
            step(1, 90, 200),
            launch(125, correlation=1),
            launch(140, correlation=2),
            launch(125, correlation=3, tid=9),
            launch(200, correlation=4),
            launch(125, correlation=5, tid=8),
            kernel("in inner", 300, 1, correlation=1),
            kernel("past inner", 310, 1, correlation=2),
            kernel("other thread", 320, 1, correlation=3),
            kernel("past outer", 330, 1, correlation=4),
            kernel("thread without annotations", 340, 1, correlation=5),
        ],
    )
    assert [(row["region"], row["region_path"]) for row in found.values()] == [
        ("inner", "outer > inner"),
        ("outer", "outer"),
        ("elsewhere", "elsewhere"),
        (None, None),
        (None, None),
    ]


def test_graph_work_gets_no_eager_region(tmp_path: Path) -> None:
    found, _ = read(
        tmp_path, [annotation("a", 1, 50), graph_launch(5, correlation=1), kernel("k", 60, 1, correlation=1, graph=2)]
    )
    assert found["k"]["region"] is None


def test_without_profiler_steps_replays_are_counted_by_graph(tmp_path: Path) -> None:
    def replay(graph: int, correlation: int, start: int, *names: str) -> list[Event]:
        kernels = [
            kernel(f"{name}", start + 10 * i, 1, graph=graph, node=i, correlation=correlation)
            for i, name in enumerate(names)
        ]
        return [graph_launch(start - 5, correlation=correlation), *kernels]

    # Graphs 2 and 8 hold the same nodes: 8 is 2, instantiated again.
    events = [
        *replay(8, 30, 300, "a", "b"),
        *replay(2, 10, 100, "a", "b"),
        *replay(3, 15, 200, "other"),
        launch(400, correlation=40),
        kernel("eager", 410, 1, correlation=40),
    ]
    for encoding in ("packed", "split", "absent"):
        with read_trace(write_trace(tmp_path / "t.json", events, encoding=encoding)) as trace:
            assert trace.info.step_source == "replay"
            rows = [row for batch in trace.gpu_events() for row in batch.to_pylist()]
            launches = [row for batch in trace.host_spans() for row in batch.to_pylist()]
        steps = {(row["correlation_id"], row["name"]): row["step"] for row in rows}
        assert steps == {(10, "a"): 0, (10, "b"): 0, (30, "a"): 1, (30, "b"): 1, (15, "other"): 0, (40, "eager"): None}
        assert [(row["kind"], row["step"]) for row in launches] == [
            ("graph_launch", 0),
            ("graph_launch", 0),
            ("graph_launch", 1),
            ("launch", None),
        ]


def test_only_launches_that_led_to_work_are_kept(tmp_path: Path) -> None:
    events = [
        launch(5, correlation=1),
        launch(6, correlation=2, name="cudaDeviceSynchronize"),
        graph_launch(7, correlation=3),
        step(0, 1, 100),
        annotation("a", 8, 2),
        kernel("k", 20, correlation=1),
    ]
    with read_trace(write_trace(tmp_path / "t.json", events)) as trace:
        rows = [row for batch in trace.host_spans() for row in batch.to_pylist()]
    assert [(row["kind"], row["name"], row["correlation_id"], row["step"]) for row in rows] == [
        ("step", "ProfilerStep#0", None, 0),
        ("launch", "cudaLaunchKernel", 1, 0),
        ("graph_launch", "cudaGraphLaunch", 3, 0),
        ("annotation", "a", None, 0),
    ]


def test_collective_fields(tmp_path: Path) -> None:
    fields = {
        "Collective name": "allreduce",
        "In msg nelems": 1024,
        "Out msg nelems": 1024,
        "Group size": 4,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1, 2, 3]",
        "In split size": "[]",
        "Seq": 17,
    }
    events = [
        kernel("plain", 5, 1),
        kernel("ncclDevKernel_AllReduce", 10, **fields),
        kernel("listed", 30, **{**fields, "Process Group Ranks": [0, 1]}),
    ]
    found, _ = read(tmp_path, events)
    nccl = found["ncclDevKernel_AllReduce"]
    assert (nccl["collective"], nccl["in_elements"], nccl["group_size"], nccl["sequence"]) == ("allreduce", 1024, 4, 17)
    assert (nccl["group_ranks"], nccl["in_split"], nccl["source_rank"]) == ("[0, 1, 2, 3]", "[]", None)
    assert found["listed"]["group_ranks"] == "[0, 1]"
    assert found["plain"]["collective"] is None


def test_what_the_trace_says_of_its_process(tmp_path: Path) -> None:
    path = write_trace(
        tmp_path / "t.json",
        [launch(5, correlation=1), kernel("k", 10, 2, correlation=1, device=1)],
        rank=3,
        world_size=8,
        host_name="node7",
        cuda_driver_version=13000,
        deviceProperties=[{"id": 0, "name": "A"}, {"id": 1, "name": "B"}],
    )
    info = read_trace(path).info
    assert (info.rank, info.world_size, info.host, info.pid, info.gpu) == (3, 8, "node7", 1260, "B")
    assert info.versions == {"cuda_driver": "13000"}
    assert (info.window_start_ns, info.window_end_ns) == (info.base_ns + 5_000, info.base_ns + 12_000)
