"""A stand-in for torch.cuda.CUDAGraph on machines without a GPU: torch's documented graph data and torch's own life cycle."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.cuda import graphs

Nodes = Sequence[tuple[str, str | None]]


def graph_data(exec_graph_id: int, nodes: Nodes, edges: Sequence[tuple[int, int]] = ()) -> dict[str, Any]:
    """What `CUDAGraph.get_graph_data()` returns for nodes (type, kernel name) numbered from 0, and edges between them."""
    return {
        "exec_graph_id": exec_graph_id,
        "nodes": [
            {
                "index": index,
                "node_type": kind,
                "tools_id": exec_graph_id << 32 | index,
                "graph_id": exec_graph_id,
                "node_id": index,
                "kernel_name": name,
                "event_ptr": 0,
                "host_fn_addr": 0,
                "host_fn_name": None,
                "dependencies": [start for start, end in edges if end == index],
                "dependents": [end for start, end in edges if start == index],
            }
            for index, (kind, name) in enumerate(nodes)
        ],
    }


class StandInGraph:
    """instantiate() runs torch's global hooks as CUDAGraph.instantiate() does; reset() and collection fire the callbacks."""

    def __init__(self, nodes: Nodes, edges: Sequence[tuple[int, int]] = ()) -> None:
        self._nodes, self._edges = nodes, edges
        self._arm()

    def instantiate(self, exec_graph_id: int) -> None:
        self._exec_graph_id = exec_graph_id
        graphs._run_global_hooks(graphs._global_instantiate_hooks, self)

    def get_graph_data(self) -> Mapping[str, Any]:
        return graph_data(self._exec_graph_id, self._nodes, self._edges)

    def register_destroy_callback(self, callback: Callable[[], None]) -> None:
        self._retained.callbacks[len(self._retained.callbacks)] = callback

    def reset(self) -> None:
        self._retained.fire()
        self._finalizer.detach()
        self._arm()

    def _arm(self) -> None:
        self._retained = graphs._RetainedCallbacks()
        self._finalizer = weakref.finalize(self, self._retained.fire)
