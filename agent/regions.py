"""Named parts of the workload, captured or eager: torch's mark_kernels plus the nesting path, or a profiler range.

Nothing of this runs when a captured graph is replayed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

import torch

from annotq.agent import config
from annotq.agent.plain_values import plain, text_of
from annotq.agent.region_path import Place, enter, leave
from annotq.agent.resumed import running_within
from annotq.agent.warnings_once import error_text, warn_once

try:
    from torch.cuda.graph_annotations import mark_kernels as mark_kernels
except ImportError:  # torch before 2.14

    def mark_kernels(annotation: str | dict[str, Any], *, backward: bool = True) -> AbstractContextManager[None]:
        """Do nothing: this torch cannot annotate the kernels of a CUDA graph."""
        return nullcontext()


_P = ParamSpec("_P")
_R = TypeVar("_R")

_RESERVED = ("name", "region_path")


def region(name: str | None = None, /, **attributes: Any) -> Region:
    """Name the work in a `with` block or of a decorated function, forward and (inside a CUDA graph) backward.

    While the current stream is captured, every kernel captured in it gets the name, the path of the regions around it and
    the attributes (of `torch.cuda.graph`, with `enable_annotations=True`); otherwise the region is a
    `torch.profiler.record_function`. Attributes that JSON cannot hold are kept as text. Works without start(); does nothing
    under ANNOTQ_DISABLED=1 and in code that torch.compile traces. Of a generator or coroutine, the region is what it runs.
    """
    if name is None:
        name = attributes.pop("name", None)
    return Region(name, attributes)


class Region:
    """What region() returns. The same object may be entered again, also while it is entered, by one thread at a time."""

    __slots__ = ("_attributes", "_entered", "_name")

    def __init__(self, name: object, attributes: dict[str, Any]) -> None:
        self._name = name  # whatever a user gives
        self._attributes = attributes
        self._entered: list[tuple[Place, AbstractContextManager[Any] | None]] | None = None

    def __enter__(self) -> Region:
        # Traced code is asked first: a compiled graph must not be broken for a name.
        if torch.compiler.is_compiling() or _disabled():
            return self
        place = enter(text_of(self._name))
        if self._entered is None:
            self._entered = []
        self._entered.append((place, self._begin(place)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._entered:  # inert or traced
            return
        place, inner = self._entered.pop()
        leave(place)
        if inner is None:
            return
        try:
            inner.__exit__(kind, error, trace)
        except Exception as failure:
            if failure is not error:
                _lost(failure)

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        name, attributes = self._name, self._attributes
        if (wrapped := running_within(function, lambda: Region(name, attributes))) is not None:
            return cast(Callable[_P, _R], wrapped)

        @functools.wraps(function)
        def within(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with Region(name, attributes):
                return function(*args, **kwargs)

        return within

    def _begin(self, place: Place) -> AbstractContextManager[Any] | None:
        try:
            inner: AbstractContextManager[Any]
            if _capturing():
                fields = plain(self._attributes) if self._attributes else {}
                for name in _RESERVED:
                    if fields.pop(name, None) is not None:
                        warn_once(
                            f"region {name}", f"a region cannot have an attribute called {name}: it was passed over."
                        )
                inner = mark_kernels({"name": place.name, "region_path": str(place), **fields})
            else:
                inner = torch.profiler.record_function(place.name)
            inner.__enter__()
        except Exception as failure:
            _lost(failure)
            return None
        return inner


def _capturing() -> bool:
    # Asked in this order: without a GPU, is_current_stream_capturing() raises.
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


@functools.cache
def _disabled() -> bool:
    return config.is_disabled()


def _lost(failure: Exception) -> None:
    warn_once(f"region {type(failure).__name__}", f"a region could not be recorded: {error_text(failure)}.")
