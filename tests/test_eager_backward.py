"""Eager backward work bears the region of its forward operator: Kineto's arrows lead there."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import NCCL, load, rows
from traces import PID, Event, annotation, kernel, launch, step, write_trace

from annotq.agent.kineto import read_trace

AUTOGRAD = 937  # autograd's own thread


def arrow(number: int, forward_us: float, backward_us: float, thread: int = AUTOGRAD) -> list[Event]:
    """From the forward operator that begins at one moment to the backward one that begins at the other."""
    common = {"cat": "fwdbwd", "name": "fwdbwd", "id": number, "pid": PID}
    return [
        {"ph": "s", **common, "tid": PID, "ts": forward_us},
        {"ph": "f", **common, "tid": thread, "ts": backward_us, "bp": "e"},
    ]


def launched(correlation: int, start_us: float, name: str = "gemm", thread: int = AUTOGRAD) -> list[Event]:
    """A kernel and its launch."""
    return [
        launch(start_us, correlation=correlation, tid=thread),
        kernel(name, start_us + 20, correlation=correlation),
    ]


# mlp is passed through at 110 and 310; its gradients are computed at 500 (second pass) and 600.
PASSES = [
    step(1, 100, 900),
    annotation("net", 105, 300),
    annotation("mlp", 110, 50),
    annotation("mlp", 310, 50),
    *launched(1, 120, thread=PID),
    *arrow(1, 115, 600),
    *arrow(2, 315, 500),
]


def work(tmp_path: Path, *events: Event) -> list[tuple[object, ...]]:
    path = write_trace(tmp_path / "rank0.json", [*PASSES, *events])
    with read_trace(path) as trace:
        found = [row for batch in trace.gpu_events() for row in batch.to_pylist()]
    return [
        (row["correlation_id"], row["region"], row["region_path"], row["phase"], row["region_instance"])
        for row in sorted(found, key=lambda row: row["correlation_id"])
    ]


FORWARD = (1, "mlp", "net > mlp", "forward", 0)


def test_a_gradient_belongs_to_the_pass_that_it_is_of(tmp_path: Path) -> None:
    assert work(tmp_path, *launched(2, 505), *launched(3, 605)) == [
        FORWARD,
        (2, "mlp", "net > mlp", "backward", 1),
        (3, "mlp", "net > mlp", "backward", 0),
    ]


def test_adding_up_the_gradient_follows_its_operator(tmp_path: Path) -> None:
    assert work(tmp_path, *launched(2, 590))[1] == (2, "mlp", "net > mlp", "backward", 1)


def test_work_before_the_first_arrow_is_of_nobody(tmp_path: Path) -> None:
    assert work(tmp_path, *launched(2, 495))[1] == (2, None, None, None, None)


def test_a_region_around_the_launch_wins(tmp_path: Path) -> None:
    around = annotation("hook", 503, 20, tid=AUTOGRAD)
    assert work(tmp_path, around, *launched(2, 505))[1] == (2, "hook", "hook", "forward", 0)


def test_an_operator_outside_of_every_region_gives_none(tmp_path: Path) -> None:
    outside = arrow(3, 450, 700)
    assert work(tmp_path, *outside, *launched(2, 705))[1] == (2, None, None, None, None)


def test_threads_that_also_run_forward_are_left_alone(tmp_path: Path) -> None:
    here = arrow(3, 115, 650, thread=PID)
    assert work(tmp_path, *here, *launched(2, 660, thread=PID))[1] == (2, None, None, None, None)


def test_a_collective_of_autograds_thread_is_of_all_gradients(tmp_path: Path) -> None:
    assert work(tmp_path, *launched(2, 505, NCCL))[1] == (2, None, None, None, None)


@pytest.mark.parametrize("damage", [{"ts": "soon"}, {"id": None}, {"id": [1]}])
def test_a_damaged_arrow_only_loses_its_region(tmp_path: Path, damage: dict[str, object]) -> None:
    broken = [{**end, **damage} for end in arrow(3, 115, 700)]
    path = write_trace(tmp_path / "rank0.json", [*PASSES, *broken, *launched(2, 505)])
    with read_trace(path) as trace:
        assert trace.info.status == "complete"
        assert sum(batch.num_rows for batch in trace.gpu_events()) == 2


def test_views_show_the_phase(tmp_path: Path) -> None:
    write_trace(tmp_path / "rank0.json", [*PASSES, *launched(2, 505), *launched(3, 605)])
    load(tmp_path / "store.duckdb", tmp_path, job="j")
    assert rows(tmp_path / "store.duckdb", "SELECT region, phase, instances, kernels FROM regions ORDER BY phase") == [
        ("mlp", "backward", 2, 2),
        ("mlp", "forward", 1, 1),
    ]
