"""Captures that nobody annotated are annotated through torch's hooks; the graph here is a stand-in, the state is torch's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

annotations = pytest.importorskip("torch.cuda._graph_annotations", reason="needs torch 2.14")
graphs = pytest.importorskip("torch.cuda.graphs")
torch = pytest.importorskip("torch")

from annotq.agent.captures import Captures  # noqa: E402


class Graph:
    """What the hooks see of a CUDAGraph."""

    def __init__(self, exec_id: int) -> None:
        self._recorded_exec_ids: set[int] = set()
        self.exec_id = exec_id
        self.destroyed: list[Any] = []

    def register_destroy_callback(self, callback: Any) -> None:
        self.destroyed.append(callback)

    def capture(self, *, annotated: bool = False, mark: str = "") -> None:
        """As torch.cuda.graph does it, with nodes that are marked at once."""
        annotations._set_annotations_enabled(annotated)
        graphs._run_global_hooks(graphs._global_capture_start_hooks, self)
        self.recorded = annotations._annotations_enabled
        if self.recorded and mark:
            annotations._pending_scopes.append(({"name": mark}, [self.exec_id << 32]))
        if annotated:
            annotations.resolve_pending_annotations()
        graphs._run_global_hooks(graphs._global_capture_end_hooks, self)
        self._recorded_exec_ids.add(self.exec_id)


@pytest.fixture
def began(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    if annotations._cuda_runtime is None:
        pytest.skip("cuda-bindings is not installed")
    monkeypatch.setattr(annotations, "_tools_id_available", True)
    monkeypatch.setattr(annotations, "maybe_stamp_capture_root", lambda stream: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    calls: list[str] = []
    captures = Captures(lambda: calls.append("began"))
    assert captures.install() == captures.install() == ""
    yield calls
    captures.remove()
    annotations._set_annotations_enabled(False)
    annotations.clear_kernel_annotations()


def test_a_capture_without_the_flag_is_annotated_and_resolved(began: list[str]) -> None:
    graph = Graph(5)
    graph.capture(mark="mlp")
    assert graph.recorded
    assert not annotations._annotations_enabled
    assert annotations.get_kernel_annotations() == {5 << 32: [{"name": "mlp"}]}
    assert began == ["began"]


def test_a_capture_with_the_flag_is_left_to_torch(began: list[str]) -> None:
    graph = Graph(5)
    graph.capture(annotated=True, mark="mlp")
    assert annotations._annotations_enabled  # torch.cuda.graph itself turns it off
    assert graph.destroyed == []
    assert began == ["began"]


def test_a_capture_that_failed_does_not_spoil_the_next(began: list[str]) -> None:
    graphs._run_global_hooks(graphs._global_capture_start_hooks, Graph(4))  # and never ends
    graph = Graph(5)
    graph.capture(mark="mlp")
    assert graph.recorded
    assert not annotations._annotations_enabled


def test_destroyed_graphs_are_forgotten_at_the_next_capture(began: list[str]) -> None:
    graph, other = Graph(5), Graph(6)
    graph.capture(mark="mlp")
    for callback in graph.destroyed:
        callback()
    assert list(annotations.get_kernel_annotations()) == [5 << 32]
    other.capture(mark="attn")
    assert list(annotations.get_kernel_annotations()) == [6 << 32]


def test_child_graph_nodes_are_annotated_while_it_is_installed(began: list[str]) -> None:
    Graph(5).capture()
    nested = {kind.name for kind in annotations._get_annotatable_types()} & {
        "CU_GRAPH_NODE_TYPE_GRAPH",
        "CU_GRAPH_NODE_TYPE_CONDITIONAL",
    }
    assert len(nested) == 2
    Captures().remove()
    assert len(annotations._get_nested_graph_types()) == 2
    assert not annotations._get_annotatable_types() & annotations._get_nested_graph_types()


def test_without_node_ids_nothing_is_turned_on(began: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotations, "_tools_id_available", False)
    graph = Graph(5)
    graph.capture()
    assert not graph.recorded
    assert began == []


def test_an_unknown_torch_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.16.0")
    assert "2.16.0" in Captures().install()
    monkeypatch.undo()
    monkeypatch.delattr(annotations, "resolve_pending_annotations")
    assert "as expected" in Captures().install()
    assert not graphs._global_capture_start_hooks
