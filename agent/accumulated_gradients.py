"""Names the work that adds up a parameter's gradient after the module that owns the parameter.

torch's mark_kernels leaves AccumulateGrad nodes out: they live as long as something holds them and would bear the name of whoever
used the parameter first. A module's own parameters have no such doubt.
"""

from __future__ import annotations

import threading
from typing import Any

from annotq.agent.capture_marks import CaptureMarks

_KEY = "annotq_accumulates"  # in the metadata of a node: it has our hooks


class AccumulatedGradients:
    """Hooks on the AccumulateGrad nodes of modules that run in a capture; they do nothing outside of annotated captures."""

    def __init__(self) -> None:
        self._marks = CaptureMarks()
        self._active = True

    def name(self, module: Any, name: str, path: str) -> list[Any]:
        """Let gradients of the module's own parameters be added up under `name`, in backward.

        The nodes, to be held until forward() has used the parameters: until then nothing else holds them.
        """
        import torch

        nodes: list[Any] = []
        if not torch.is_grad_enabled():
            return nodes
        fields = {"name": name, "region_path": path, "autograd_phase": "backward"}
        for parameter in module._parameters.values():
            if parameter is None or not parameter.requires_grad or not parameter.is_leaf:
                continue
            node = torch.autograd.graph.get_gradient_edge(parameter).node
            nodes.append(node)
            if _KEY in node.metadata:
                continue
            node.metadata[_KEY] = True
            self._watch(node, fields)
        return nodes

    def remove(self) -> None:
        """Let the hooks do nothing; they go with the nodes."""
        self._active = False

    def _watch(self, node: Any, fields: dict[str, Any]) -> None:
        begun = threading.local()  # of this node: it runs once at a time in a thread

        def before(_gradients: Any) -> None:
            begun.scope = self._marks.begin() if self._active else None

        def after(_inputs: Any, _outputs: Any) -> None:
            scope, begun.scope = getattr(begun, "scope", None), None
            if scope is not None:
                self._marks.end(scope, fields)

        node.register_prehook(before)
        node.register_hook(after)
