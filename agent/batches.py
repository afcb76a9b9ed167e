"""The Arrow schemas that leave the agent: what a reader or recorder produces and the collector loads.

Times are integer nanoseconds of the rank's own CLOCK_REALTIME; ids are signed 64-bit integers. Names are
dictionary-coded: a trace of a million kernels holds a few hundred different names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

NAME = pa.dictionary(pa.int32(), pa.string())

# The fields that Kineto writes on an eager collective and that annotq's recorder writes into the annotation
# of a captured one, under Kineto's own names (left) and as our columns (right).
COLLECTIVE_FIELDS = {
    "Collective name": ("collective", NAME),
    "Process Group Name": ("group_name", NAME),
    "Process Group Description": ("group_description", NAME),
    "Process Group Ranks": ("group_ranks", NAME),
    "Group size": ("group_size", pa.int64()),
    "dtype": ("dtype", NAME),
    "In msg nelems": ("in_elements", pa.int64()),
    "Out msg nelems": ("out_elements", pa.int64()),
    "In split size": ("in_split", NAME),
    "Out split size": ("out_split", NAME),
    "Src Rank": ("source_rank", pa.int64()),
    "Dst Rank": ("destination_rank", pa.int64()),
    "Seq": ("sequence", pa.int64()),
}
COLLECTIVE_COLUMNS = [pa.field(name, type_) for name, type_ in COLLECTIVE_FIELDS.values()]

GPU_EVENT = pa.schema(
    [
        pa.field("start_ns", pa.int64(), nullable=False),
        pa.field("duration_ns", pa.int64(), nullable=False),
        pa.field("kind", NAME, nullable=False),  # kernel, memcpy, memset
        pa.field("name", NAME, nullable=False),
        pa.field("device", pa.int64()),
        pa.field("stream", pa.int64()),
        pa.field("correlation_id", pa.int64()),
        pa.field("in_graph", pa.bool_(), nullable=False),
        pa.field("graph_id", pa.int64()),  # the executable graph; null when eager or when the trace has no ids
        pa.field("node_index", pa.int64()),
        pa.field("bytes", pa.int64()),  # memcpy and memset only
        pa.field("step", pa.int64()),
        pa.field("region", NAME),  # eager work only: innermost user annotation around the launch
        pa.field("region_path", NAME),  # the whole nesting, outermost first, joined with " > "
        pa.field("region_instance", pa.int64()),  # which pass through the region: 0, 1, ... by start in the trace
        pa.field(
            "phase", NAME
        ),  # of that pass: forward, or backward (of a forward operator in the region); null without region
        pa.field("overrun", pa.bool_(), nullable=False),  # the duration is not believable, see kineto.py
        *COLLECTIVE_COLUMNS,
    ]
)

HOST_SPAN = pa.schema(
    [
        pa.field("start_ns", pa.int64(), nullable=False),
        pa.field("duration_ns", pa.int64(), nullable=False),
        pa.field("kind", NAME, nullable=False),  # graph_launch, launch, annotation, step
        pa.field("name", NAME, nullable=False),
        pa.field("thread_id", pa.int64()),
        pa.field("correlation_id", pa.int64()),  # launches only
        pa.field("step", pa.int64()),
    ]
)

ANNOTATION = pa.schema(
    [
        pa.field("graph_id", pa.int64(), nullable=False),
        pa.field("node_index", pa.int64(), nullable=False),
        pa.field("region", NAME),
        pa.field("region_path", NAME),
        pa.field("phase", NAME, nullable=False),  # forward, backward
        pa.field("attributes", NAME, nullable=False),  # JSON object, keys sorted
        *COLLECTIVE_COLUMNS,
    ]
)

GRAPH_NODE = pa.schema(
    [
        pa.field("graph_id", pa.int64(), nullable=False),
        pa.field("node_index", pa.int64(), nullable=False),
        pa.field("kind", NAME, nullable=False),  # kernel, memcpy, memset, or another node type in lower case
        pa.field("name", NAME),  # kernel name; null for nodes that are not kernels
    ]
)


def coded(values: Iterable[str | None]) -> pa.Array[Any]:
    """Texts as a dictionary-coded array of type NAME.

    Not Array.dictionary_encode(): that imports pyarrow.compute, 30 ms that a reader of a trace need not spend.
    """
    codes: dict[str, int] = {}
    indices = [None if value is None else codes.setdefault(value, len(codes)) for value in values]
    dictionary: pa.Array[Any] = pa.array(list(codes), pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), dictionary)
