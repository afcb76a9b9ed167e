"""Regions around coroutines and generators, which only begin when they are called, and names of every sort."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.profiler import profile

from annotq.agent import region, regions, warnings_once
from annotq.agent.region_path import current_path


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
    monkeypatch.setattr(warnings_once, "_seen", set())
    return calls


@region("load")
def batches(count: int) -> Any:
    """So many, and what came back for each."""
    answers = []
    for number in range(count):
        answers.append((yield number, str(current_path())))
    return answers


def test_a_generator_is_inside_while_it_runs_and_its_consumer_is_not() -> None:
    assert inspect.isgeneratorfunction(batches)
    made = batches(2)
    assert current_path() == ""
    assert next(made) == (0, "load")
    assert current_path() == ""
    assert made.send("a") == (1, "load")
    with pytest.raises(StopIteration) as end:
        made.send("b")
    assert end.value.value == ["a", "b"]


def test_what_is_thrown_into_a_generator_arrives_inside() -> None:
    seen = []

    @region("load")
    def patient() -> Iterator[int]:
        try:
            yield 1
        except KeyError:
            seen.append(str(current_path()))
            yield 2
        finally:
            seen.append(f"end of {current_path()}")

    made = patient()
    assert (next(made), made.throw(KeyError("x"))) == (1, 2)  # type: ignore[attr-defined]
    made.close()  # type: ignore[attr-defined]
    assert (seen, current_path()) == (["load", "end of load"], "")


def test_coroutines_and_asynchronous_generators_are_inside_while_they_run() -> None:
    @region("step")
    async def step() -> str:
        await asyncio.sleep(0)
        return str(current_path())

    @region("stream")
    async def stream() -> AsyncIterator[str]:
        try:
            for _ in range(9):
                await asyncio.sleep(0)
                yield str(current_path())
        finally:
            seen.append(f"end of {current_path()}")

    async def work() -> list[Any]:
        items = stream()
        found = [await anext(items), str(current_path()), await step()]
        await items.aclose()  # type: ignore[attr-defined]
        return [*found, *await asyncio.gather(step(), step()), str(current_path())]

    seen: list[str] = []
    assert inspect.iscoroutinefunction(step) and inspect.isasyncgenfunction(stream)
    assert asyncio.run(work()) == ["stream", "", "step", "step", "step", ""]
    assert seen == ["end of stream"]


def test_the_profiler_sees_what_a_coroutine_runs() -> None:
    @region("step")
    async def step() -> None:
        torch.ones(8).sum()

    with profile() as profiler:
        asyncio.run(step())
    events = {event.name: event for event in profiler.events() or ()}
    outer, inner = events["step"].time_range, events["aten::sum"].time_range
    assert outer.start <= inner.start and inner.end <= outer.end


def held(name: str) -> Iterator[None]:
    with region(name):
        yield
        yield


def test_generators_that_are_closed_out_of_order_leave_the_path_as_it_was(marked: list[dict[str, Any]]) -> None:
    with region("outer"):
        first, second = held("first"), held("second")
        next(first)
        next(second)
        first.close()  # type: ignore[attr-defined]
        with region("inside"):
            pass
        second.close()  # type: ignore[attr-defined]
        with region("after"):
            pass
    assert [call["region_path"] for call in marked] == [
        "outer",
        "outer > first",
        "outer > first > second",
        "outer > second > inside",
        "outer > after",
    ]
    assert current_path() == ""


def test_generators_that_take_turns_do_not_make_the_path_longer(marked: list[dict[str, Any]]) -> None:
    current = held("turn")
    next(current)
    for _ in range(50):
        following = held("turn")
        next(following)
        current.close()  # type: ignore[attr-defined]
        current = following
    current.close()  # type: ignore[attr-defined]
    assert max(len(call["region_path"]) for call in marked) == len("turn > turn")
    assert current_path() == ""


class Nameless:
    def __str__(self) -> str:
        raise RuntimeError("no name")


@pytest.mark.parametrize(
    ("name", "expected"),
    [(Nameless(), "<Nameless>"), (7, "7"), ("a\udcff", "a\\xff"), ("\ud800", "\\ud800"), (None, "None")],
)
def test_any_name_will_do(name: Any, expected: str, marked: list[dict[str, Any]]) -> None:
    with region(name):
        pass
    assert marked == [{"name": expected, "region_path": expected}]


def test_an_attribute_called_name_is_passed_over_with_a_warning(marked: list[dict[str, Any]]) -> None:
    odd = region("x", name="y", layer=1, odd={Nameless(): "\ud800"})
    with pytest.warns(RuntimeWarning, match="attribute called name"), odd:
        pass
    with region(name="alone"):
        pass
    assert marked == [
        {"name": "x", "region_path": "x", "layer": 1, "odd": {"<Nameless>": "\\ud800"}},
        {"name": "alone", "region_path": "alone"},
    ]
