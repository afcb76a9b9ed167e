"""Named parts of the workload, captured or eager: torch's mark_kernels plus the nesting path, or a profiler range.

Nothing of this runs when a captured graph is replayed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import torch

from annotq.agent import config
from annotq.agent.graph_snapshots import PATH_SEPARATOR
from annotq.agent.plain_values import plain
from annotq.agent.warnings_once import error_text, warn_once

try:
    from torch.cuda.graph_annotations import mark_kernels as mark_kernels
except ImportError:  # torch before 2.14

    def mark_kernels(annotation: str | dict[str, Any], *, backward: bool = True) -> AbstractContextManager[None]:
        """Do nothing: this torch cannot annotate the kernels of a CUDA graph."""
        return nullcontext()


_P = ParamSpec("_P")
_R = TypeVar("_R")

# Per thread and per asyncio task; names of the regions around, outermost first.
_path: ContextVar[str] = ContextVar("annotq_region_path", default="")


def region(name: str, **attributes: Any) -> Region:
    """Name the work in a `with` block or of a decorated function, forward and (inside a CUDA graph) backward.

    While the current stream is captured, every kernel captured in it gets the name, the path of the regions around it and
    the attributes (of `torch.cuda.graph`, with `enable_annotations=True`); otherwise the region is a
    `torch.profiler.record_function`. Attributes that JSON cannot hold are kept as text. Works without start(); does nothing
    under ANNOTQ_DISABLED=1 and in code that torch.compile traces.
    """
    return Region(name, attributes)


class Region:
    """What region() returns. The same object may be entered again, also while it is entered, by one thread at a time."""

    __slots__ = ("_attributes", "_entered", "_name")

    def __init__(self, name: str, attributes: dict[str, Any]) -> None:
        self._name = name
        self._attributes = attributes
        self._entered: list[tuple[str, AbstractContextManager[Any] | None]] | None = None

    def __enter__(self) -> Region:
        # Traced code is asked first: a compiled graph must not be broken for a name.
        if torch.compiler.is_compiling() or _disabled():
            return self
        outer = _path.get()
        path = f"{outer}{PATH_SEPARATOR}{self._name}" if outer else str(self._name)
        _path.set(path)
        if self._entered is None:
            self._entered = []
        self._entered.append((outer, self._begin(path)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._entered:  # inert or traced
            return
        outer, inner = self._entered.pop()
        # Not reset(token): an async generator may be closed in another context than it was entered in.
        _path.set(outer)
        if inner is None:
            return
        try:
            inner.__exit__(kind, error, trace)
        except Exception as failure:
            if failure is not error:
                _lost(failure)

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        name, attributes = self._name, self._attributes

        @functools.wraps(function)
        def within(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with Region(name, attributes):
                return function(*args, **kwargs)

        return within

    def _begin(self, path: str) -> AbstractContextManager[Any] | None:
        try:
            inner: AbstractContextManager[Any]
            if _capturing():
                fields = plain(self._attributes) if self._attributes else {}
                inner = mark_kernels({"name": str(self._name), "region_path": path, **fields})
            else:
                inner = torch.profiler.record_function(str(self._name))
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
