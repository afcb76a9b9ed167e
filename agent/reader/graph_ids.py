"""Which graph and node a GPU event belongs to, from the three ways in which traces write it.

packed: "graph node id" is exec_graph_id << 32 | node_index (Kineto of torch >= 2.12).
split: it is the low half alone, with "graph id" beside it (torch 2.15's CUPTI exporter).
absent: neither is written (torch < 2.12); only the correlation, which all events of one replay share, tells graph work.
0 and a missing field mean eager work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from annotq.agent.reader.exact_ns import Int64s
from annotq.agent.reader.trace_events import NULL

Bools = npt.NDArray[np.bool_]

_LOW_HALF = (1 << 32) - 1


@dataclass(frozen=True)
class GraphIds:
    """Per event [n]: in_graph, and the graph and node index (NULL where unknown); how many ids were of which kind."""

    in_graph: Bools
    graph: Int64s
    node: Int64s
    packed: int
    split: int
    nodes_alone: int  # a low half without a graph
    contradictions: int  # "graph id" says otherwise than the packed id


def graph_ids(graph: Int64s, node: Int64s) -> GraphIds:
    """Read the values of "graph id" and "graph node id" [n], NULL where missing, event by event."""
    packed = node > _LOW_HALF
    split = ~packed & (graph > 0)
    alone = ~packed & ~split & (node > 0)
    whole = np.where(packed, node >> 32, np.where(split, graph, NULL))
    index = np.where(packed, node & _LOW_HALF, np.where(split & (node >= 0), node, NULL))
    return GraphIds(
        in_graph=packed | split | alone,
        graph=whole,
        node=index,
        packed=int(packed.sum()),
        split=int(split.sum()),
        nodes_alone=int(alone.sum()),
        contradictions=int((packed & (graph > 0) & (graph != whole)).sum()),
    )


class ObservedNodes:
    """The distinct nodes seen in replays, with the kind and name (as codes) each was first seen with."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], tuple[int, int]] = {}

    def add(self, ids: GraphIds, kinds: Int64s, names: Int64s) -> None:
        """Take in a batch of events; those without a graph or a node index are passed over."""
        rows = np.flatnonzero((ids.graph != NULL) & (ids.node != NULL))
        # One replay repeats the nodes of the last: look at each distinct one once.
        _, first = np.unique((ids.graph[rows] << 32) | ids.node[rows], return_index=True)
        rows = rows[first]
        columns = (ids.graph, ids.node, kinds, names)
        for graph, node, kind, name in zip(*(column[rows].tolist() for column in columns), strict=True):
            self._found.setdefault((graph, node), (kind, name))

    def rows(self) -> list[tuple[int, int, int, int]]:
        """Return (graph, node index, kind, name) in the order of graph and node index."""
        return [(*key, *self._found[key]) for key in sorted(self._found)]
