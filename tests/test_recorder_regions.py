"""Regions: profiler ranges in eager code, annotations of kernels while a graph is captured, the nesting in both."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.profiler import profile

from annotq.agent import mark_kernels, region, regions, warnings_once


def ranges_of(work: Any) -> list[str]:
    """The user annotations of a profile of work(), by start."""
    with profile() as profiler:
        work()
    assert profiler.events() is not None
    return [event.name for event in profiler.events() if event.is_user_annotation]  # type: ignore[union-attr]


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What mark_kernels is called with while a capture seems to run: no capture without a GPU."""
    calls: list[dict[str, Any]] = []

    @contextmanager
    def note(annotation: dict[str, Any], *, backward: bool = True) -> Iterator[None]:
        calls.append(annotation)
        yield

    monkeypatch.setattr(regions, "_capturing", lambda: True)
    monkeypatch.setattr(regions, "mark_kernels", note)
    return calls


def test_eager_regions_are_profiler_ranges() -> None:
    @region("decorated")
    def double(x: torch.Tensor, *, times: int = 2) -> torch.Tensor:
        """Twice."""
        return x * times

    def work() -> None:
        with region("outer", layer=3), region("inner"):
            assert double(torch.ones(2), times=3).sum() == 6

    assert ranges_of(work) == ["outer", "inner", "decorated"]
    assert (double.__name__, double.__doc__) == ("double", "Twice.")


def test_captured_regions_carry_name_path_and_attributes(marked: list[dict[str, Any]]) -> None:
    with region("layers.0"), region("mlp", layer=0, shape=(2, 3), data=torch.ones(2)):
        pass
    with region("loss"):
        pass
    assert marked == [
        {"name": "layers.0", "region_path": "layers.0"},
        {
            "name": "mlp",
            "region_path": "layers.0 > mlp",
            "layer": 0,
            "shape": [2, 3],
            "data": "Tensor torch.Size([2]) torch.float32 cpu",
        },
        {"name": "loss", "region_path": "loss"},
    ]


def test_the_path_goes_from_eager_code_into_a_capture(
    marked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions, "_capturing", lambda: False)
    with region("step"):
        monkeypatch.setattr(regions, "_capturing", lambda: True)
        with region("forward"):
            pass
    assert marked == [{"name": "forward", "region_path": "step > forward"}]


def test_each_thread_has_its_own_path(marked: list[dict[str, Any]]) -> None:
    with region("main"):
        thread = threading.Thread(target=lambda: region("other").__enter__())
        thread.start()
        thread.join()
        with region("inner"):
            pass
    assert [call["region_path"] for call in marked] == ["main", "other", "main > inner"]


def test_an_exception_passes_through_and_ends_the_region(marked: list[dict[str, Any]]) -> None:
    with pytest.raises(KeyError, match="mine"), region("outer"), region("inner"):
        raise KeyError("mine")
    with region("after"):
        pass
    assert marked[-1]["region_path"] == "after"


def test_one_object_serves_many_times_and_inside_itself(marked: list[dict[str, Any]]) -> None:
    again = region("again")
    with again, again:
        pass
    with again:
        pass
    assert [call["region_path"] for call in marked] == ["again", "again > again", "again"]


@pytest.mark.parametrize("when", ["enter", "exit"])
def test_what_torch_cannot_do_is_a_warning(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def broken(annotation: dict[str, Any]) -> Iterator[None]:
        if when == "exit":
            yield
        raise RuntimeError("driver says no")

    monkeypatch.setattr(regions, "_capturing", lambda: True)
    monkeypatch.setattr(regions, "mark_kernels", broken)
    monkeypatch.setattr(warnings_once, "_seen", set())
    with pytest.warns(RuntimeWarning, match="driver says no") as caught:
        for _ in range(2):
            with region("a"):
                pass
    assert len(caught) == 1


def test_a_region_does_not_break_a_compiled_graph() -> None:
    def named(x: torch.Tensor) -> torch.Tensor:
        with region("mlp"):
            return x * 2

    compiled = torch.compile(named, fullgraph=True, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]


def test_mark_kernels_is_torchs_own() -> None:
    assert mark_kernels is torch.cuda.graph_annotations.mark_kernels
