"""Annotates the nodes that a capture adds between two moments, as torch's mark_kernels does for a scope, without a scope.

mark_kernels itself cannot be used where the second moment may never come (a collective or a backward node that raises): nobody
would leave its scope, and its region would stay.
"""

from __future__ import annotations

from typing import Any


class CaptureMarks:
    """begin() and end() around something that may add nodes to the capture of the current stream."""

    def begin(self) -> Any:
        """The state of the capture; None when no annotated capture is under way."""
        import torch
        from torch.cuda import _graph_annotations as annotations

        if not annotations._annotations_enabled or annotations._is_tools_id_unavailable():
            return None
        if not torch.cuda.is_current_stream_capturing():
            return None
        scope = annotations._begin_kernel_scope()
        root = annotations._capture_root_graph_id
        if scope is None or (root is not None and annotations._graph_id(scope.graph) != root):
            return None  # in the body of a conditional node, whose ids are others
        return scope

    def end(self, scope: Any, fields: dict[str, Any], fallback: str = "") -> bool:
        """Annotate what was captured since begin() with `fields`; False when nothing was.

        fallback: the region's name where no region is around.
        """
        from torch.cuda import _graph_annotations as annotations

        nodes = annotations._end_kernel_scope(scope)
        if nodes:
            region = annotations._current_region() or {}
            if fallback and not (region.get("name") or region.get("module_fqn")):
                fields = {"name": fallback, **fields}
            annotations._pending_scopes.append((fields, nodes))
        return bool(nodes)
