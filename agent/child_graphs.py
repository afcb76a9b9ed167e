"""The work inside child graphs and conditional bodies: which ids its nodes get in the executable graph, and which region.

CUDA reports the kernels of a body under the executable graph's id, and no call tells with which node index. Seen on driver 580
and relied on here: the bodies' nodes are numbered after the graph's own, body after body, and a body's own bodies right after
it. A graph with nodes 0, 1, 2 whose bodies hold 2, 3 and 1 nodes: 3, 4 | 5, 6, 7 | 8. The work gets the region of the node
that it lies in, marked `inferred`; the collector checks kind and kernel name against what a replay shows before it believes
any of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NESTED_KINDS = ("child_graph", "conditional")
_LOW_HALF = (1 << 32) - 1
# libkineto leaves longer names as they are, and what a trace shows is what counts.
_LONGEST_DEMANGLED = 1024


@dataclass(frozen=True)
class BodyNode:
    """A node of a body, in node order. bodies: its own, None when they cannot be read; () of a plain node."""

    kind: str
    name: str | None = None
    bodies: tuple[tuple[BodyNode, ...], ...] | None = ()


@dataclass(frozen=True)
class NestedNode:
    """A node of a body as the executable graph numbers it; top: index of the graph's own node that it lies in."""

    index: int
    kind: str
    name: str | None
    top: int


def number_bodies(own: Sequence[tuple[int, BodyNode]]) -> tuple[list[NestedNode], bool]:
    """Number the nodes of the bodies of a graph's own nodes, given with their indices in node order.

    False when a body could not be read: nothing is known from there on, because the counting goes through it.
    """
    found: list[NestedNode] = []
    following = max((index for index, _ in own), default=-1) + 1
    # The next body is the last of the list.
    waiting = [(index, body) for index, node in own for body in _bodies_of(node)][::-1]
    while waiting:
        top, body = waiting.pop()
        if body is None:
            return found, False
        for node in body:
            found.append(NestedNode(following, node.kind, node.name, top))
            following += 1
        waiting += [(top, inner) for node in body for inner in _bodies_of(node)][::-1]
    return found, True


def _bodies_of(node: BodyNode) -> Sequence[tuple[BodyNode, ...] | None]:
    return (None,) if node.bodies is None else node.bodies


def nested_nodes(graph: Any, data: Mapping[str, Any]) -> tuple[list[NestedNode], bool]:
    """The nodes in the bodies of a torch.cuda.CUDAGraph that is just being instantiated; data: its get_graph_data().

    Nothing is asked of CUDA when there is no body. Raises what the bindings raise.
    """
    if not any(node["node_type"] in NESTED_KINDS for node in data["nodes"]):
        return [], True
    reader = _Bodies()
    handles = reader.handles(graph.raw_cuda_graph())
    own = [
        (
            int(node["tools_id"]) & _LOW_HALF,
            reader.read(handles[node["index"]]) if node["node_type"] in NESTED_KINDS else BodyNode(node["node_type"]),
        )
        for node in data["nodes"]
    ]
    return number_bodies(sorted(own, key=lambda entry: entry[0]))


def add_nested(snapshot: dict[str, Any], nested: Sequence[NestedNode]) -> None:
    """Add nested nodes to the content of a snapshot file (snapshots.py): the nodes, and their regions marked `inferred`."""
    nodes, annotations = snapshot["nodes"], snapshot["annotations"]
    kinds = {kind: code for code, kind in enumerate(nodes["kinds"])}
    names = {name: code for code, name in enumerate(nodes["names"])}
    code_of_node = dict(zip(annotations["node"], annotations["code"], strict=True))
    inferred: dict[int, int] = {}
    for node in nested:
        nodes["index"].append(node.index)
        nodes["kind"].append(kinds.setdefault(node.kind, len(kinds)))
        nodes["name"].append(None if node.name is None else names.setdefault(node.name, len(names)))
        code = code_of_node.get(node.top)
        if code is None:
            continue
        if code not in inferred:
            inferred[code] = len(annotations["distinct"])
            annotations["distinct"].append({**annotations["distinct"][code], "inferred": True})
        annotations["node"].append(node.index)
        annotations["code"].append(inferred[code])
    nodes["kinds"], nodes["names"] = list(kinds), list(names)


def shown_name(name: str) -> str:
    """A kernel's name as a trace shows it, from the symbol that the driver tells."""
    if not name.startswith("_Z") or len(name) > _LONGEST_DEMANGLED:
        return name
    import torch

    return str(torch._C._demangle(name))


class _Bodies:
    """Reads bodies through the CUDA bindings that torch holds (node_ids.py may have put its stand-in there)."""

    def __init__(self) -> None:
        from torch.cuda import graphs
        from torch.cuda._utils import _check_cuda_bindings, _check_cuda_bindings_driver

        self._runtime: Any = graphs._cuda_runtime
        self._driver: Any = graphs._cuda_driver
        self._checked = _check_cuda_bindings
        self._checked_driver = _check_cuda_bindings_driver
        types = self._driver.CUgraphNodeType
        prefix = "CU_GRAPH_NODE_TYPE_"
        # torch's names for them, see CUDAGraph.get_graph_data.
        other = {"graph": "child_graph"}
        self._kinds = {
            kind: other.get(text, text) for kind in types for text in [kind.name.removeprefix(prefix).lower()]
        }

    def handles(self, graph: Any) -> list[Any]:
        """A graph's nodes, in the order in which get_graph_data lists them."""
        _, count = self._checked(self._runtime.cudaGraphGetNodes(graph, numNodes=0))
        if not count:
            return []
        nodes, count = self._checked(self._runtime.cudaGraphGetNodes(graph, numNodes=count))
        return list(nodes[:count])

    def read(self, node: Any) -> BodyNode:
        """A node with everything inside it."""
        kind = self._kinds[self._checked_driver(self._driver.cuGraphNodeGetType(node))]
        if kind == "kernel":
            return BodyNode(kind, self._kernel_name(node))
        if kind == "child_graph":
            return BodyNode(
                kind, None, (self._body(self._checked(self._runtime.cudaGraphChildGraphNodeGetGraph(node))),)
            )
        if kind == "conditional":
            return BodyNode(kind, None, self._branches(node))
        return BodyNode(kind)

    def _body(self, graph: Any) -> tuple[BodyNode, ...]:
        nodes = self.handles(graph)
        nodes.sort(key=lambda node: self._checked(self._runtime.cudaGraphNodeGetToolsId(node)) & _LOW_HALF)
        return tuple(self.read(node) for node in nodes)

    def _branches(self, node: Any) -> tuple[tuple[BodyNode, ...], ...] | None:
        try:
            conditional = self._checked(self._runtime.cudaGraphNodeGetParams(node)).conditional
            graphs = conditional.phGraph_out
            branches = list(graphs) if isinstance(graphs, (list, tuple)) else [graphs]
            return tuple(self._body(graph) for graph in branches[: conditional.size])
        except (RuntimeError, AttributeError, TypeError):  # a driver before 13.2 does not tell them
            return None

    def _kernel_name(self, node: Any) -> str | None:
        driver = self._driver
        error, params = driver.cuGraphKernelNodeGetParams(driver.CUgraphNode(init_value=int(node)))
        if error != driver.CUresult.CUDA_SUCCESS:
            return None
        if int(params.func):
            error, name = driver.cuFuncGetName(driver.CUfunction(init_value=int(params.func)))
        elif int(params.kern):
            error, name = driver.cuKernelGetName(driver.CUkernel(init_value=int(params.kern)))
        else:
            return None
        if error != driver.CUresult.CUDA_SUCCESS:
            return None
        return shown_name(name.decode() if isinstance(name, bytes) else name)
