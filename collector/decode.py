"""A batch off the wire as header and rows, checked so far that the store cannot take offence at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

import msgspec
import pyarrow as pa

from annotq.agent.batches import ANNOTATION, GPU_EVENT, GRAPH_NODE, HOST_SPAN
from annotq.agent.kineto import TraceInfo
from annotq.agent.snapshots import SnapshotInfo
from annotq.agent.wire import BATCH_ROWS, SCHEMA_VERSION
from annotq.collector.arrow_size import announced_bytes
from annotq.collector.trace_load import ends
from annotq.v1.collector_pb2 import Batch, Kind

# Nodes and annotations of one graph or file come in one batch.
LARGEST_LIST_ROWS = 1_000_000
# A batch of events takes 18 MB; names of templates are long.
LARGEST_ROWS_BYTES = 256 << 20

# Sums of a start, a duration and a clock offset stay within 64 bits (the year 2116), and so do steps times windows; no
# kernel lasts 100 days.
_LATEST_NS = 1 << 62
_BELOW = {"start_ns": _LATEST_NS, "duration_ns": 1 << 53, "step": 1 << 40}
_INT64 = 1 << 63
MOST_RANKS = 1_000_000


class BadBatchError(Exception):
    """A batch that is refused for good. reason: one word, for counting; detail: what and where."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class FileHeader(msgspec.Struct, frozen=True):
    """Of an annotation file or a file of node lists."""

    path: str
    sha256: str


class RejectedHeader(msgspec.Struct, frozen=True):
    """Of a trace that the shipper could not use."""

    path: str
    sha256: str
    rank: int
    reason: str


class GraphHeader(msgspec.Struct, frozen=True):
    """Of the annotations of one snapshot."""

    graph_id: int


class DestroyedHeader(msgspec.Struct, frozen=True):
    """Of graphs that ceased to exist."""

    graph_ids: list[int]
    time_ns: int


class NoteHeader(msgspec.Struct, frozen=True):
    """Of a sentence of the agent."""

    text: str


class EndHeader(msgspec.Struct, frozen=True):
    """Of the end of a process."""

    time_ns: int
    how: Literal["stopped", "gone"]


# Header and row schema of each kind; None: it has none.
_FORMS: Mapping[int, tuple[type | None, pa.Schema | None]] = {
    Kind.KIND_TRACE_BEGIN: (TraceInfo, None),
    Kind.KIND_GPU_EVENTS: (None, GPU_EVENT),
    Kind.KIND_HOST_SPANS: (None, HOST_SPAN),
    Kind.KIND_TRACE_ANNOTATIONS: (None, ANNOTATION),
    Kind.KIND_TRACE_NODES: (None, GRAPH_NODE),
    Kind.KIND_TRACE_END: (None, None),
    Kind.KIND_TRACE_REJECTED: (RejectedHeader, None),
    Kind.KIND_ANNOTATION_FILE: (FileHeader, ANNOTATION),
    Kind.KIND_GRAPH_FILE: (FileHeader, GRAPH_NODE),
    Kind.KIND_SNAPSHOT: (SnapshotInfo, GRAPH_NODE),
    Kind.KIND_SNAPSHOT_ANNOTATIONS: (GraphHeader, ANNOTATION),
    Kind.KIND_GRAPHS_DESTROYED: (DestroyedHeader, None),
    Kind.KIND_NOTE: (NoteHeader, None),
    Kind.KIND_PROCESS_END: (EndHeader, None),
}
_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {
    header: msgspec.json.Decoder(header) for header, _ in _FORMS.values() if header is not None
}


@dataclass(frozen=True)
class Decoded:
    """A checked batch. kind: a value of Kind; header: of the kind's type, None without one; rows: one batch of the kind's
    schema, with no rows when the kind has none."""

    kind: int
    header: Any
    rows: pa.RecordBatch


def kind_name(kind: int) -> str:
    """The kind in lower case (gpu_events), as batch_log keeps it; its number when it is none."""
    return Kind.Name(kind).removeprefix("KIND_").lower() if kind in Kind.values() else str(kind)


def decode(batch: Batch) -> Decoded:
    """Read and check a batch. Raises BadBatchError."""
    if batch.schema_version != SCHEMA_VERSION:
        raise BadBatchError("version", f"batch version {batch.schema_version}; this collector reads {SCHEMA_VERSION}")
    if batch.kind not in _FORMS:
        raise BadBatchError("kind", f"{kind_name(batch.kind)} is no kind of batch")
    header_type, schema = _FORMS[batch.kind]
    header = None if header_type is None else _header(batch.header, header_type)
    return Decoded(batch.kind, header, _NO_ROWS if schema is None else _rows(batch, schema))


_NO_ROWS = pa.RecordBatch.from_arrays([], names=[])


def _header(data: bytes, kind: type) -> Any:
    try:
        header = _DECODERS[kind].decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadBatchError("header", str(error)) from None
    _check_integers(header)
    if isinstance(header, TraceInfo):
        _check_trace(header)
    return header


def _check_integers(header: Any) -> None:
    names = [field.name for field in fields(header)] if is_dataclass(header) else header.__struct_fields__
    for name in names:
        value = getattr(header, name)
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and not -_INT64 <= number < _INT64:
                raise BadBatchError("header", f"{name} is {number}, which has more than 64 bits")


def _check_trace(info: TraceInfo) -> None:
    known = {
        "encoding": ("packed", "split", "absent", "none"),
        "step_source": ("profiler", "announced", "replay", "none"),
        "status": ("complete", "partial"),
    }
    for name, values in known.items():
        if getattr(info, name) not in values:
            raise BadBatchError("header", f"{name} is {getattr(info, name)!r:.80}, not one of {', '.join(values)}")
    for name in ("base_ns", "window_start_ns", "window_end_ns"):
        value = getattr(info, name)
        if value is not None and not 0 <= value < _LATEST_NS:
            raise BadBatchError("header", f"{name} is {value}")
    if info.world_size is not None and not 0 < info.world_size <= MOST_RANKS:
        raise BadBatchError("header", f"world_size is {info.world_size}")
    if info.process_groups is not None:
        try:
            msgspec.json.decode(info.process_groups)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise BadBatchError("header", f"process_groups is not JSON: {error}") from None


def _rows(batch: Batch, schema: pa.Schema) -> pa.RecordBatch:
    try:
        size = announced_bytes(batch.payload)
        if size > LARGEST_ROWS_BYTES:
            raise BadBatchError("size", f"{size:,} bytes of rows; {LARGEST_ROWS_BYTES:,} are the most")
        with pa.ipc.open_stream(batch.payload) as stream:
            if not stream.schema.equals(schema):
                raise BadBatchError("schema", _difference(stream.schema, schema))
            table = stream.read_all()
        table.validate(full=True)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise BadBatchError("payload", f"it is no Arrow stream: {error}") from None
    _check_rows(table, batch.kind)
    pieces = table.unify_dictionaries().combine_chunks().to_batches()
    return pieces[0] if pieces else pa.RecordBatch.from_pylist([], schema)


def _check_rows(table: pa.Table, kind: int) -> None:
    most = BATCH_ROWS if kind in (Kind.KIND_GPU_EVENTS, Kind.KIND_HOST_SPANS) else LARGEST_LIST_ROWS
    if table.num_rows > most:
        raise BadBatchError("size", f"{table.num_rows:,} rows; {most:,} are the most")
    for field in table.schema:
        if not field.nullable and table.column(field.name).null_count:
            raise BadBatchError("null", f"column {field.name} holds nulls")
    for name, limit in _BELOW.items():
        if name in table.schema.names:
            low, high = ends(table.column(name))
            if low is not None and high is not None and not 0 <= low <= high < limit:
                raise BadBatchError("value", f"{name} lies between {low} and {high}")


def _difference(found: pa.Schema, wanted: pa.Schema) -> str:
    """The first column in which two schemas differ, as words."""
    for position, field in enumerate(wanted):
        other = found.field(position) if position < len(found) else None
        if other is None or not other.equals(field):
            return f"column {position} is {other or 'absent'}, expected {field}"
    return f"{len(found)} columns, expected {len(wanted)}"
