"""Names for graph nodes outside of every region whose place says enough: sums of gradients, and captures within a region.

Autograd adds up the gradients that meet at a value (a residual connection, a weight that is used twice) and makes the 1 that
backward() starts from outside of its nodes, where torch's backward hooks do not look. And a capture that begins while a region is
open, as those of torch.compile's "reduce-overhead" do, is inside of that region as a whole.
"""

from __future__ import annotations

from collections import ChainMap, deque
from collections.abc import Mapping, Sequence
from typing import Any

from annotq.agent.graph_snapshots import merged_fields

_WORK = ("kernel", "memcpy", "memset")
# In the names of torch's kernels: what adds two tensors, and what writes ones.
_SUM, _SEED = "CUDAFunctor_add", "FillFunctor"
_FARTHEST = 64  # nodes to look past, events and other sums, on the way to one with a name
_LOW_HALF = (1 << 32) - 1

Entries = Mapping[int, Sequence[Any]]


def with_unnamed(data: Mapping[str, Any], annotations: Entries, around: Mapping[str, Any] | None = None) -> Entries:
    """torch's annotations by packed id and those of unnamed work nodes of one graph, given as get_graph_data() gives it.

    around: the region in which the whole capture lies. What is added for gradients is marked `between_nodes`.
    """
    nodes = {node["index"]: node for node in data["nodes"]}
    fields = {index: merged_fields(annotations.get(node["tools_id"])) for index, node in nodes.items()}
    unnamed = [index for index, node in nodes.items() if node["node_type"] in _WORK and "name" not in fields[index]]
    if not unnamed:
        return annotations
    found: dict[int, Sequence[Any]] = {}
    backward = any(entry.get("autograd_phase") == "backward" for entry in fields.values())
    for index in sorted(unnamed, key=lambda index: int(nodes[index]["tools_id"]) & _LOW_HALF):
        region = _between(index, nodes, fields) if backward else None
        if region is None and around is not None and not fields[index]:
            region = dict(around)
        if region is not None:
            fields[index] = {**fields[index], **region}
            found[nodes[index]["tools_id"]] = [fields[index]]
    return ChainMap(found, annotations) if found else annotations  # type: ignore[arg-type]


def _between(index: int, nodes: Mapping[int, Any], fields: Mapping[int, Mapping[str, Any]]) -> dict[str, Any] | None:
    """The region of a sum of gradients: that of the backward node before it, with another one behind it or the graph's end. Of
    the first gradient: that of the node behind it. None for all other work, which may belong to nodes outside of regions."""
    name = nodes[index]["kernel_name"] or ""
    if _SUM in name:
        before, _ = _nearest(index, "dependencies", nodes, fields)
        after, ends = _nearest(index, "dependents", nodes, fields)
        region = before if after is not None or ends else None
    elif _SEED in name:
        region, _ = _nearest(index, "dependents", nodes, fields)
    else:
        return None
    if region is None:
        return None
    kept = {key: region[key] for key in ("name", "region_path") if key in region}
    return {**kept, "autograd_phase": "backward", "between_nodes": True}


def _nearest(
    index: int, direction: str, nodes: Mapping[int, Any], fields: Mapping[int, Mapping[str, Any]]
) -> tuple[Mapping[str, Any] | None, bool]:
    """What the nearest backward node is annotated with, going along the edges past other sums and what is no work; and whether
    there is nothing but those until the graph's end."""
    seen = {index}
    waiting = deque(nodes[index][direction])
    ends = True
    while waiting and len(seen) <= _FARTHEST:
        other = waiting.popleft()
        if other in seen:
            continue
        seen.add(other)
        if "name" in fields[other]:
            if fields[other].get("autograd_phase") == "backward":
                return fields[other], False
            ends = False
        elif nodes[other]["node_type"] not in _WORK or _SUM in (nodes[other]["kernel_name"] or ""):
            waiting.extend(nodes[other][direction])
        else:
            ends = False
    return None, ends and not waiting
