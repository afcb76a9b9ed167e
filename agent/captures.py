"""Turns torch's recording of annotations on for captures that nobody annotated, whoever captures.

`torch.cuda.graph(..., enable_annotations=True)` records what mark_kernels says; without the flag, and in a capture that calls
CUDAGraph.capture_begin itself, nothing is recorded. torch's capture hooks run inside both, so they can do what the flag does:
on after the capture began, resolve and off before the graph is instantiated. Captures that have the flag are left alone.
"""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from annotq.agent.node_ids import CHECKED_TORCH

_NEEDED = (
    "_annotations_enabled",
    "_set_annotations_enabled",
    "maybe_stamp_capture_root",
    "resolve_pending_annotations",
    "remove_kernel_annotations",
    "_get_annotatable_types",
    "_get_nested_graph_types",
)


class Captures:
    """Annotates every capture of this process between install() and remove()."""

    def __init__(
        self, began: Callable[[], None] | None = None, around: Callable[[], dict[str, Any] | None] = lambda: None
    ) -> None:
        """began: called at the start of every annotated capture; it must not launch GPU work. around: what the region that is
        open in this thread annotates with."""
        self._began = began
        self._around = around
        self._regions: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        self._handles: list[Any] = []
        self._ours: int | None = None  # id() of the graph whose capture was switched on here
        self._gone: deque[set[int]] = deque()  # exec ids of such graphs, destroyed since the last capture
        self._filter: Any = None

    def install(self) -> str:
        """Register the hooks; empty, or why it cannot be done (an unknown torch). A second call does nothing."""
        if self._handles:
            return ""
        if (why := _unknown()) is not None:
            return why
        from torch.cuda.graphs import register_graph_capture_end_hook, register_graph_capture_start_hook

        # child_graphs.py reads the bodies that this says are left out.
        warnings.filterwarnings("ignore", "get_graph_data: this graph contains", UserWarning)
        self._filter = warnings.filters[0]
        self._handles = [register_graph_capture_start_hook(self._start), register_graph_capture_end_hook(self._end)]
        return ""

    def region_of(self, graph: Any) -> dict[str, Any] | None:
        """What the region annotates with in which this graph's capture began; None outside of every region."""
        return self._regions.get(graph)

    def remove(self) -> None:
        """Take the hooks away; a capture that is under way stays annotated until torch ends it."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        with suppress(ValueError):
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]
        with suppress(ImportError, AttributeError):
            _nested_nodes_too(False)

    def _start(self, graph: Any) -> None:
        import torch
        from torch.cuda import _graph_annotations as annotations

        self._forget_gone()
        if annotations._is_tools_id_unavailable():
            return
        if not annotations._annotations_enabled or self._ours is not None:
            self._ours = id(graph)
            annotations._set_annotations_enabled(True)
            annotations.maybe_stamp_capture_root(torch.cuda.current_stream())
        _nested_nodes_too(True)
        self._regions.pop(graph, None)
        if (region := self._around()) is not None:
            self._regions[graph] = region
        if self._began is not None:
            self._began()

    def _end(self, graph: Any) -> None:
        from torch.cuda import _graph_annotations as annotations

        if self._ours != id(graph):
            return
        self._ours = None
        try:
            annotations.resolve_pending_annotations()
        finally:
            annotations._set_annotations_enabled(False)
        # torch fills this set with the ids of the executable graphs. It must not lead back to the graph.
        exec_ids, gone = graph._recorded_exec_ids, self._gone
        graph.register_destroy_callback(lambda: gone.append(exec_ids))

    def _forget_gone(self) -> None:
        """Drop what torch keeps of destroyed graphs that nobody asked it to annotate; not in the finalizer, whose moment is
        the garbage collector's."""
        from torch.cuda._graph_annotations import remove_kernel_annotations

        ids: set[int] = set()
        while self._gone:
            ids |= self._gone.popleft()
        remove_kernel_annotations(ids)


def _nested_nodes_too(wanted: bool) -> None:
    """Let torch note the region of child-graph and conditional nodes, whose bodies child_graphs.py names, and not warn that
    it leaves the bodies out."""
    from torch.cuda import _graph_annotations as annotations

    # None lets torch make each set anew.
    annotations._ANNOTATABLE_TYPES = annotations._NESTED_GRAPH_TYPES = None
    if wanted:
        annotations._ANNOTATABLE_TYPES = annotations._get_annotatable_types() | annotations._get_nested_graph_types()
        annotations._NESTED_GRAPH_TYPES = set()


def _unknown() -> str | None:
    try:
        import torch
        from torch.cuda import _graph_annotations as annotations
        from torch.cuda.graphs import CUDAGraph
    except ImportError:
        return "torch is missing or older than 2.14"
    if ".".join(torch.__version__.split(".")[:2]) not in CHECKED_TORCH:
        return f"torch {torch.__version__} is not among the versions known to work ({', '.join(CHECKED_TORCH)})"
    if not all(hasattr(annotations, name) for name in _NEEDED) or not hasattr(CUDAGraph, "register_destroy_callback"):
        return f"torch {torch.__version__} does not record annotations as expected"
    return None
