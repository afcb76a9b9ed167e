"""Puts one checked batch of a registered process into the store, inside the writer's transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import duckdb

from annotq.agent.errors import AnnotqError
from annotq.agent.kineto import TraceInfo
from annotq.collector.decode import BadBatchError, Decoded, kind_name
from annotq.collector.infer import infer_node_ids
from annotq.collector.nested_graphs import check_nested
from annotq.collector.process_rows import add_note, end_process
from annotq.collector.process_state import Arriving, ProcessState
from annotq.collector.rows import (
    check_annotations,
    insert_events,
    insert_host_spans,
    merge_annotations,
    merge_nodes,
    remember,
)
from annotq.collector.snapshot_rows import destroy_graphs, insert_snapshot
from annotq.collector.trace_load import (
    arrived,
    begin_trace,
    end_trace,
    forget_arriving,
    is_known,
    reject_trace,
)
from annotq.v1.collector_pb2 import Batch, Kind

Connection = duckdb.DuckDBPyConnection
LONGEST_NOTE = 2_000


def load_batch(connection: Connection, state: ProcessState, sequence: int, batch: Decoded) -> ProcessState:
    """Load the batch, log it, and return the state of its process afterwards.

    Raises BadBatchError or AnnotqError, having changed nothing, for a batch that contradicts what is there.
    """
    if batch.kind in _PIECES:
        state, rows = _load_piece(connection, state, batch)
    else:
        rows = batch.rows.num_rows
        state = _WHOLE[batch.kind](connection, state, sequence, batch)
    log_batch(connection, state.process_id, sequence, batch.kind, rows)
    return replace(state, committed=max(state.committed, sequence))


def refuse_batch(
    connection: Connection, state: ProcessState, batch: Batch, header: Any, reason: str, detail: str, now_ns: int
) -> ProcessState:
    """Note that a batch is refused for good. Of a refused trace, what follows is ignored, and coverage shows it."""
    if batch.kind == Kind.KIND_TRACE_BEGIN:
        state = _ignoring(connection, state, batch.sequence)
        if isinstance(header, TraceInfo):
            reject_trace(connection, state.target, state.rank, header.path, header.sha256, detail)
    connection.execute(
        "INSERT INTO rejected_batch VALUES (?, ?, ?, ?, ?, ?)",
        [state.process_id, batch.sequence, kind_name(batch.kind), reason, detail, now_ns],
    )
    log_batch(connection, state.process_id, batch.sequence, batch.kind, 0)
    return replace(state, committed=max(state.committed, batch.sequence))


def is_logged(connection: Connection, process_id: int, sequence: int) -> bool:
    """Whether a batch was committed (or refused) before."""
    sql = "SELECT 1 FROM batch_log WHERE process_id = ? AND sequence = ?"
    return bool(connection.execute(sql, [process_id, sequence]).fetchall())


def log_batch(connection: Connection, process_id: int, sequence: int, kind: int, rows: int) -> None:
    """The row that makes a second delivery harmless."""
    connection.execute("INSERT INTO batch_log VALUES (?, ?, ?, ?)", [process_id, sequence, kind_name(kind), rows])


def _load_piece(connection: Connection, state: ProcessState, batch: Decoded) -> tuple[ProcessState, int]:
    """A part of the trace begun last; returns the state and the rows taken in."""
    arriving = state.arriving
    if arriving is None:
        raise BadBatchError("order", f"{kind_name(batch.kind)} belongs to no trace: none has begun")
    if arriving.trace_id is None:
        return (replace(state, arriving=None) if _ends(connection, state, batch) else state), 0
    trace_id, process_id = arriving.trace_id, state.process_id
    if batch.kind == Kind.KIND_GPU_EVENTS:
        if batch.rows.num_rows:
            insert_events(connection, batch.rows, trace_id, process_id, state.rank)
            arriving = replace(arriving, found=arriving.found + arrived(batch.rows))
    elif batch.kind == Kind.KIND_HOST_SPANS:
        insert_host_spans(connection, batch.rows, trace_id, process_id, state.rank)
    elif batch.kind == Kind.KIND_TRACE_ANNOTATIONS:
        merge_annotations(connection, batch.rows, process_id, "inline")
    elif batch.kind == Kind.KIND_TRACE_NODES:
        merge_nodes(connection, batch.rows, process_id, complete=False)
    else:
        end_trace(connection, trace_id, arriving.status or "partial", arriving.found)
        return replace(state, arriving=None), 0
    return replace(state, arriving=arriving), batch.rows.num_rows


def _ends(connection: Connection, state: ProcessState, batch: Decoded) -> bool:
    """Whether the batch ends a trace that is being ignored."""
    if batch.kind != Kind.KIND_TRACE_END:
        return False
    connection.execute("DELETE FROM arriving WHERE process_id = ?", [state.process_id])
    return True


def _begin(connection: Connection, state: ProcessState, sequence: int, batch: Decoded) -> ProcessState:
    info: TraceInfo = batch.header
    if info.rank != state.rank:
        raise BadBatchError("header", f"{info.path} is of rank {info.rank}; this process has rank {state.rank}")
    if is_known(connection, state.target, info.sha256, info.rank):
        return _ignoring(connection, state, sequence)
    trace_id = begin_trace(connection, state.target, info)
    connection.execute("INSERT INTO arriving VALUES (?, ?, ?, ?)", [state.process_id, sequence, trace_id, info.status])
    return replace(state, arriving=Arriving(sequence, trace_id, info.status))


def _ignoring(connection: Connection, state: ProcessState, sequence: int) -> ProcessState:
    forget_arriving(connection, state.process_id)
    connection.execute("INSERT INTO arriving VALUES (?, ?, NULL, NULL)", [state.process_id, sequence])
    return replace(state, arriving=Arriving(sequence, None, None))


def _rejected(connection: Connection, state: ProcessState, sequence: int, batch: Decoded) -> ProcessState:
    found = batch.header
    forget_arriving(connection, state.process_id)  # it may have failed half way
    if not is_known(connection, state.target, found.sha256, state.rank):
        reject_trace(connection, state.target, state.rank, found.path, found.sha256, found.reason)
    return replace(state, arriving=None)


def _annotation_file(connection: Connection, state: ProcessState, sequence: int, batch: Decoded) -> ProcessState:
    path, sha256 = batch.header.path, batch.header.sha256
    if not is_known(connection, state.target, sha256, state.rank):
        check_annotations(connection, batch.rows, state.process_id, path)
        merge_annotations(connection, batch.rows, state.process_id, "file")
        remember(connection, state.process_id, sha256, path, "annotations")
        infer_node_ids(connection, state.process_id)
    return state


def _graph_file(connection: Connection, state: ProcessState, sequence: int, batch: Decoded) -> ProcessState:
    path, sha256 = batch.header.path, batch.header.sha256
    if not is_known(connection, state.target, sha256, state.rank):
        merge_nodes(connection, batch.rows, state.process_id, complete=True)
        remember(connection, state.process_id, sha256, path, "graphs")
        infer_node_ids(connection, state.process_id)
    return state


def _snapshot(connection: Connection, state: ProcessState, sequence: int, batch: Decoded) -> ProcessState:
    _only_of(batch, batch.header.graph_id)
    insert_snapshot(connection, batch.header, batch.rows, state.process_id)
    return state


def _snapshot_annotations(connection: Connection, state: ProcessState, sequence: int, batch: Decoded) -> ProcessState:
    _only_of(batch, batch.header.graph_id)
    merge_annotations(connection, batch.rows, state.process_id, "agent")
    check_nested(connection, state.process_id)
    infer_node_ids(connection, state.process_id)
    return state


def _only_of(batch: Decoded, graph_id: int) -> None:
    others = [found for found in batch.rows.column("graph_id").unique().to_pylist() if found != graph_id]
    if others:
        raise BadBatchError("value", f"rows of graph {others[0]} in the snapshot of graph {graph_id}")


def _destroyed(connection: Connection, state: ProcessState, sequence: int, batch: Decoded) -> ProcessState:
    destroy_graphs(connection, state.process_id, batch.header.graph_ids, batch.header.time_ns)
    return state


def _note(connection: Connection, state: ProcessState, sequence: int, batch: Decoded) -> ProcessState:
    add_note(connection, state.process_id, batch.header.text[:LONGEST_NOTE], sequence)
    return state


def _end(connection: Connection, state: ProcessState, sequence: int, batch: Decoded) -> ProcessState:
    forget_arriving(connection, state.process_id)
    end_process(connection, state.process_id, batch.header.time_ns, batch.header.how)
    return replace(state, arriving=None)


_PIECES = (
    Kind.KIND_GPU_EVENTS,
    Kind.KIND_HOST_SPANS,
    Kind.KIND_TRACE_ANNOTATIONS,
    Kind.KIND_TRACE_NODES,
    Kind.KIND_TRACE_END,
)
_WHOLE: dict[int, Callable[[Connection, ProcessState, int, Decoded], ProcessState]] = {
    Kind.KIND_TRACE_BEGIN: _begin,
    Kind.KIND_TRACE_REJECTED: _rejected,
    Kind.KIND_ANNOTATION_FILE: _annotation_file,
    Kind.KIND_GRAPH_FILE: _graph_file,
    Kind.KIND_SNAPSHOT: _snapshot,
    Kind.KIND_SNAPSHOT_ANNOTATIONS: _snapshot_annotations,
    Kind.KIND_GRAPHS_DESTROYED: _destroyed,
    Kind.KIND_NOTE: _note,
    Kind.KIND_PROCESS_END: _end,
}
REFUSALS = (BadBatchError, AnnotqError)
