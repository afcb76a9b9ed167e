"""The recorder inside a training process, through the names that a script uses; what it wrote is read as the shipper reads it."""

from __future__ import annotations

import gc
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from stand_in_graph import StandInGraph
from torch.cuda import graphs
from torch.profiler import profile, schedule

import annotq.agent
from annotq.agent import process_facts, recorder, warnings_once
from annotq.agent.snapshots import read_snapshot
from annotq.agent.spool_reader import ProcessFolder, process_folders

NODES = [("kernel", "gemm"), ("kernel", "gelu")]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The spool of a process that has recorded nothing yet."""
    monkeypatch.setattr(recorder, "_recorded", set())
    monkeypatch.setattr(warnings_once, "_seen", set())
    monkeypatch.setenv("ANNOTQ_SPOOL", str(tmp_path / "spool"))
    yield tmp_path / "spool"
    annotq.agent.stop()


def folder(root: Path) -> ProcessFolder:
    (found,) = process_folders(root)
    assert isinstance(found, ProcessFolder)
    return found


def kinds(root: Path) -> list[str]:
    return [file.kind for file in folder(root).files()]


def content(root: Path, kind: str) -> list[Any]:
    return [json.loads(file.path.read_bytes()) for file in folder(root).files() if file.kind == kind]


def test_who_this_process_is(root: Path) -> None:
    annotq.agent.start(job="llama", attempt=1, rank=2, world_size=4, local_rank=0, coordinates={"dp": 1, "tp": 0})
    info = folder(root).info
    assert (info.job, info.attempt, info.rank, info.world_size, info.local_rank) == ("llama", 1, 2, 4, 0)
    assert info.coordinates == {"dp": 1, "tp": 0}
    assert info.versions["torch"] == torch.__version__
    assert time.time_ns() - info.start_ns < 60e9


def test_a_recording_ends_once(root: Path) -> None:
    annotq.agent.start(job="j")
    annotq.agent.start(job="another")
    assert folder(root).info.job == "j"
    annotq.agent.stop()
    annotq.agent.stop()
    (end,) = content(root, "end")
    assert kinds(root) == ["end"] and end["how"] == "stopped" and end["time_ns"] > folder(root).info.start_ns
    with pytest.warns(RuntimeWarning, match="recorded by this process already"):
        annotq.agent.start(job="j")
    annotq.agent.start(job="k")
    assert len(list(process_folders(root))) == 2


def test_steps_are_counted_and_measured(root: Path) -> None:
    annotq.agent.step()  # before start(): nothing
    annotq.agent.start(job="j")
    assert folder(root).last_beat().step is None  # type: ignore[union-attr]
    annotq.agent.step()
    first = folder(root).last_beat()
    time.sleep(0.02)
    annotq.agent.step()
    second = folder(root).last_beat()
    assert first is not None and second is not None
    assert (first.step, first.step_ns, second.step) == (0, None, 1)
    assert second.step_ns is not None and 20e6 <= second.step_ns < 20e9 and second.time_ns > first.time_ns
    annotq.agent.step(100)
    annotq.agent.step()
    assert folder(root).last_beat().step == 101  # type: ignore[union-attr]
    assert kinds(root) == []


def test_a_graph_is_written_when_instantiated_and_again_when_gone(root: Path) -> None:
    annotations = torch.cuda.graph_annotations.get_kernel_annotations()
    annotq.agent.start(job="j")
    graph = StandInGraph(NODES, [(0, 1)])
    try:
        annotations[7 << 32] = [{"name": "mlp", "region_path": "layers.0 > mlp"}]  # type: ignore[index]
        graph.instantiate(7)
    finally:
        torch.cuda.graph_annotations.clear_kernel_annotations()
    graph.instantiate(8)
    del graph
    gc.collect()
    annotq.agent.stop()
    assert sorted(kinds(root)) == ["destroyed", "destroyed", "end", "snapshot", "snapshot"]
    first, second = (read_snapshot(file.path) for file in folder(root).files() if file.kind == "snapshot")
    assert [first.info.graph_id, second.info.graph_id] == [7, 8]
    assert [first.info.generation, second.info.generation] == [0, 1]
    assert first.info.fingerprint == second.info.fingerprint
    assert [row["region_path"] for row in first.annotations.to_pylist()] == ["layers.0 > mlp"]
    assert [gone["graph_ids"] for gone in content(root, "destroyed")] == [[7], [8]]


def test_the_gpu_is_learned_with_the_first_graph(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_facts, "gpu_name", lambda: None)  # CUDA is not initialized yet
    annotq.agent.start(job="j")
    before = folder(root).info
    monkeypatch.setattr(process_facts, "gpu_name", lambda: "NVIDIA H200")
    StandInGraph(NODES).instantiate(7)
    after = folder(root).info
    assert (before.gpu, after.gpu) == (None, "NVIDIA H200")
    assert before.key == after.key


def test_a_graph_that_cannot_be_read_is_warned_of_once_and_noted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unreadable(StandInGraph):
        def get_graph_data(self) -> Any:
            raise RuntimeError("get_graph_data requires CUDA driver >= 13.1")

    monkeypatch.setattr("annotq.agent.graph_hooks.find_spec", lambda name: object())
    annotq.agent.start(job="j")
    with pytest.warns(RuntimeWarning, match=r"13\.1.*annotq doctor") as caught:
        Unreadable(NODES).instantiate(7)
        Unreadable(NODES).instantiate(8)
    assert len(caught) == 1
    (note,) = content(root, "note")
    assert "get no names" in note["text"] and "13.1" in note["text"]


def test_without_the_bindings_there_is_a_note_and_no_warning(root: Path) -> None:
    class Unreadable(StandInGraph):
        def get_graph_data(self) -> Any:
            raise RuntimeError("This CUDAGraph API requires the cuda-bindings package")

    annotq.agent.start(job="j")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Unreadable(NODES).instantiate(7)
    assert kinds(root) == ["note"]


def test_a_replay_runs_nothing_of_ours(root: Path) -> None:
    annotq.agent.start(job="j")
    StandInGraph(NODES).instantiate(7)
    assert not graphs._global_replay_start_hooks and not graphs._global_replay_end_hooks
    # Nor does a destroy hook: one that is registered makes torch keep a list for every graph.
    assert not graphs._graph_destroy_hooks_active()
    assert len(graphs._global_instantiate_hooks) == 1
    annotq.agent.stop()
    assert not graphs._global_instantiate_hooks
    assert kinds(root)[-1] == "end"


def profiled(steps: int, handler: Any) -> None:
    with profile(schedule=schedule(wait=1, warmup=1, active=2), on_trace_ready=handler) as profiler:
        for _ in range(steps):
            with annotq.agent.region("outer"), annotq.agent.region("inner"):
                torch.ones(8).sum()
            profiler.step()
            annotq.agent.step()


def test_profiler_windows_arrive_whole(root: Path) -> None:
    annotq.agent.start(job="j")
    profiled(8, annotq.agent.trace_handler())
    annotq.agent.stop()
    assert kinds(root) == ["trace", "trace", "end"]
    for trace in content(root, "trace"):
        found = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
        assert found.count("inner") == found.count("outer") == 2
    assert not list(folder(root).path.glob(".tmp-*"))


def test_a_window_without_start_is_warned_of_once(root: Path) -> None:
    with pytest.warns(RuntimeWarning, match=r"start\(\) was not called") as caught:
        profiled(8, annotq.agent.trace_handler())
    assert len([warning for warning in caught if warning.category is RuntimeWarning]) == 1
    assert not root.exists()


def test_a_window_that_torch_cannot_write_is_warned_of(root: Path) -> None:
    class Cut:
        def export_chrome_trace(self, path: str) -> None:
            Path(path).write_text('{"traceEvents": [{"name": "cut he')

    annotq.agent.start(job="j")
    with pytest.warns(RuntimeWarning, match="incomplete after 33 bytes"):
        annotq.agent.trace_handler()(Cut())
    annotq.agent.stop()
    assert kinds(root) == ["end"]


def test_problems_are_warnings_even_where_warnings_are_errors(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        annotq.agent.start(job="j", spool=tmp_path / "file")
    assert "start() did not work: NotADirectoryError" in capsys.readouterr().err
    annotq.agent.step()
    annotq.agent.start(job="j")  # the next try may work
    assert folder(root).info.job == "j"


def test_wrong_arguments_are_warned_of(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANNOTQ_SPOOL_BYTES", "lots")
    with pytest.warns(RuntimeWarning) as caught:
        annotq.agent.start(job="j", rank="first")  # type: ignore[arg-type]
    sentences = " ".join(str(warning.message) for warning in caught)
    assert "rank='first'" in sentences and "ANNOTQ_SPOOL_BYTES is 'lots'" in sentences
    assert folder(root).info.rank == 0
