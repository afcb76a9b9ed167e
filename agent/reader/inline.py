"""Annotations that a trace carries itself, in the `args` of its graph kernels (torch >= 2.15, annotate_trace)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from annotq.agent.annotations import Annotation, annotation_batch, annotation_row
from annotq.agent.reader.trace_events import NULL

NAMING = ("name", "module_fqn", "module_name", "str")

# What Kineto itself writes into the args of a GPU event; everything else is an annotation's.
KINETO_ARGUMENTS = frozenset(
    """queued|device|context|stream|correlation|registers per thread|shared memory|blocks per SM|warps per SM|grid|
    block|est. achieved occupancy %|occupancy|graph id|graph node id|channel|channel_type|bytes|memory bandwidth (GB/s)|
    External id|external id|cbid|fromDevice|toDevice|inDevice|outDevice|Trace name|Trace iteration|Ev Idx|priority|
    kernel_hash|kernel_kwargs|kernel_file|kernel_backend|Rank|Comms Id|Global ranks start|Global ranks stride|
    Record function id|Sequence number|Fwd thread id""".replace("\n    ", "").split("|")
)


class InlineAnnotations:
    """Collects the annotation of each graph node from the first of its kernels that carries one."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], Annotation] = {}

    def add(self, graph: int, node: int, arguments: Mapping[str, Any]) -> None:
        """Look at the arguments of one event in a graph."""
        if (graph, node) in self._found or NULL in (graph, node) or not any(key in arguments for key in NAMING):
            return
        own = {key: value for key, value in arguments.items() if key not in KINETO_ARGUMENTS}
        self._found[graph, node] = annotation_row(own)

    def __len__(self) -> int:
        return len(self._found)

    def batch(self) -> pa.RecordBatch:
        """Return one row per annotated node, of schema ANNOTATION."""
        return annotation_batch(self._found)
