"""Graph node ids from CUPTI where the driver has none: put in torch's place, taken away again, never elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from annotq.agent import node_ids
from annotq.agent.node_ids import CuptiIds, IdSource

annotations = pytest.importorskip("torch.cuda._graph_annotations", reason="needs torch 2.14")
graphs = pytest.importorskip("torch.cuda.graphs")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    node_ids.remove()


def old_driver(monkeypatch: pytest.MonkeyPatch, version: int | None = 13000) -> None:
    if annotations._cuda_runtime is None:
        pytest.skip("cuda-bindings is not installed")
    monkeypatch.setattr(node_ids, "_driver_version", lambda: version)


def test_an_older_driver_gets_its_ids_from_cupti(monkeypatch: pytest.MonkeyPatch) -> None:
    old_driver(monkeypatch)
    if node_ids._find_cupti() is None:
        pytest.skip("libcupti is not installed")
    own = annotations._cuda_runtime
    annotations._tools_id_available = False  # as torch remembers it of a capture before install()
    assert node_ids.install() == IdSource("cupti", "the driver (CUDA 13.0) has no graph ids")
    assert node_ids.install().name == node_ids.id_source().name == "cupti"
    assert isinstance(annotations._cuda_runtime, CuptiIds)
    assert annotations._cuda_runtime is graphs._cuda_runtime
    assert not annotations._is_tools_id_unavailable()
    assert annotations._cuda_runtime.cudaStreamCaptureStatus is own.cudaStreamCaptureStatus
    node_ids.remove()
    assert annotations._cuda_runtime is graphs._cuda_runtime is own
    assert annotations._tools_id_available is None
    node_ids.remove()
    assert annotations._cuda_runtime is own


@pytest.mark.parametrize(
    ("version", "source"),
    [(13010, IdSource("driver")), (13030, IdSource("driver")), (None, IdSource("none", "there is no NVIDIA driver"))],
)
def test_a_driver_with_ids_and_no_driver_change_nothing(
    monkeypatch: pytest.MonkeyPatch, version: int | None, source: IdSource
) -> None:
    old_driver(monkeypatch, version)
    own = annotations._cuda_runtime
    assert node_ids.install() == source
    assert annotations._cuda_runtime is graphs._cuda_runtime is own
    assert not node_ids.is_installed()


def test_without_cupti_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    old_driver(monkeypatch, 12080)
    monkeypatch.setattr(node_ids, "_cupti_places", lambda: iter(["libno_such_cupti.so", "libc.so.6"]))
    assert node_ids.install() == IdSource("none", "the driver (CUDA 12.8) has no graph ids and no libcupti was found")


def test_bindings_that_are_missing_or_too_old_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for runtime, words in [(None, "not installed"), (SimpleNamespace(cudaGraphGetId=1), "cudaGraphNodeGetToolsId")]:
        monkeypatch.setattr(annotations, "_cuda_runtime", runtime)
        source = node_ids.install()
        assert source.name == "none"
        assert words in source.why


def test_an_unknown_torch_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    old_driver(monkeypatch)
    monkeypatch.setattr(torch, "__version__", "2.16.0+cu130")
    source = node_ids.install()
    assert source.name == "none"
    assert "2.16.0" in source.why
    assert not node_ids.is_installed()


def test_a_torch_that_holds_no_bindings_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(graphs, "_cuda_runtime")
    assert node_ids.install() == IdSource("none", node_ids._unknown_torch() or "")
    assert "as expected" in node_ids.install().why


def cupti_that_answers(status: int, value: int) -> Any:
    """Three functions with CUPTI's signatures."""

    def answer(handle: int, out: Any) -> int:
        assert handle == 0xABC
        out._obj.value = value
        return status

    return SimpleNamespace(
        **dict.fromkeys(("cuptiGetGraphNodeId", "cuptiGetGraphId", "cuptiGetGraphExecId"), Answer(answer))
    )


class Answer:
    """A function with room for `argtypes`, as one of a loaded library has."""

    argtypes: list[Any] | None = None

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> int:
        return int(self.function(*arguments))


RUNTIME = SimpleNamespace(cudaError_t=SimpleNamespace(cudaSuccess="ok", cudaErrorInvalidValue="invalid"), other=1)


def test_cuptis_answers_have_the_form_of_the_bindings() -> None:
    ids = CuptiIds(RUNTIME, cupti_that_answers(0, 7 << 32 | 5))
    assert ids.cudaGraphNodeGetToolsId(0xABC) == ("ok", 7 << 32 | 5)
    ids = CuptiIds(RUNTIME, cupti_that_answers(0, 7))
    assert ids.cudaGraphGetId(0xABC) == ids.cudaGraphExecGetId(0xABC) == ("ok", 7)
    assert ids.other == 1


def test_a_failure_of_cupti_and_torchs_probe_are_invalid_values() -> None:
    ids = CuptiIds(RUNTIME, cupti_that_answers(1, 7))
    assert ids.cudaGraphGetId(0xABC) == ("invalid", None)
    assert ids.cudaGraphNodeGetToolsId(0) == ("invalid", None)


def test_looking_for_the_driver_does_not_need_one() -> None:
    assert node_ids._driver_version() is None or node_ids._driver_version() > 1000
