"""The statements that put read batches into the tables. Each runs inside the loader's transaction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from annotq.agent.batches import COLLECTIVE_COLUMNS
from annotq.agent.fingerprint import fingerprint
from annotq.agent.kineto import TraceInfo
from annotq.collector.store import id_of

# Kernels that wait for other ranks: NCCL, and the symmetric-memory collectives of torch and of serving engines.
_COMMUNICATION = re.compile("^nccl|multimem_|(one|two)_shot_all_reduce|cross_device_reduce")
# As in the view coverage.
_NO_MATCH = (
    "No annotated node occurs in this trace: the annotations belong to another process, "
    "or to graphs that were not replayed in it."
)
_COLLECTIVE = ", ".join(field.name for field in COLLECTIVE_COLUMNS)


@dataclass(frozen=True)
class Target:
    """The job attempt that files are loaded into."""

    job: str
    attempt: int = 0

    def process_id(self, rank: int) -> int:
        return id_of(self.job, self.attempt, rank)


def insert_trace(
    connection: duckdb.DuckDBPyConnection, info: TraceInfo, trace_id: int, process_id: int, target: Target
) -> None:
    connection.execute(
        "DELETE FROM trace WHERE process_id = ? AND path = ? AND status = 'rejected'", [process_id, info.path]
    )
    connection.execute(
        "INSERT INTO trace VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, FALSE, ?, 0, ?, ?, ?, ?, ?, ?)",
        [
            trace_id,
            process_id,
            target.job,
            target.attempt,
            info.rank,
            info.path,
            info.sha256,
            info.base_ns,
            info.window_start_ns,
            info.window_end_ns,
            info.encoding,
            info.step_source,
            info.status,
            info.gpu_events,
            info.graph_events,
            info.dropped_events,
            info.overrun_events,
            " ".join(info.problems) or None,
        ],
    )


def insert_events(
    connection: duckdb.DuckDBPyConnection, batch: pa.RecordBatch, trace_id: int, process_id: int, rank: int
) -> None:
    _run(
        connection,
        f"""INSERT INTO gpu_event SELECT {trace_id}, {process_id}, {rank}, start_ns, duration_ns, kind, name, device,
            stream, correlation_id, in_graph, graph_id, node_index, bytes, step, region, region_path,
            region_instance, overrun, communication, {_COLLECTIVE} FROM incoming""",
        batch.append_column("communication", _communication(batch)),
    )


def insert_host_spans(
    connection: duckdb.DuckDBPyConnection, batch: pa.RecordBatch, trace_id: int, process_id: int, rank: int
) -> None:
    """Append launches, user annotations and steps."""
    _run(connection, f"INSERT INTO host_span SELECT {trace_id}, {process_id}, {rank}, * FROM incoming", batch)


def _run(connection: duckdb.DuckDBPyConnection, sql: str, incoming: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Run SQL that reads `incoming`: DuckDB finds the batch by the name of this parameter.

    Not register(): within a transaction that keeps every batch in memory until the commit.
    """
    assert incoming is not None
    return connection.execute(sql).fetchall()


def _communication(batch: pa.RecordBatch) -> pa.BooleanArray:
    """Whether each event is a communication kernel; the names are looked at once each, not once per event."""
    names = batch.column("name")
    assert isinstance(names, pa.DictionaryArray)
    found = [_COMMUNICATION.search(str(name)) is not None for name in names.dictionary.to_pylist()]
    by_name = np.array(found, dtype=np.bool_)
    collective = batch.column("collective").is_valid().to_numpy(zero_copy_only=False)
    return pa.array(by_name[names.indices.to_numpy()] | collective, pa.bool_())


def merge_annotations(
    connection: duckdb.DuckDBPyConnection, rows: pa.RecordBatch, process_id: int, source: str
) -> None:
    """A node annotated again (a later, longer snapshot of the same process) takes the newer annotation."""
    if rows.num_rows == 0:
        return
    _run(connection, f"INSERT OR REPLACE INTO annotation SELECT {process_id}, * FROM incoming", rows)
    graphs = f"""INSERT INTO graph (process_id, graph_id, reported, nodes_complete)
                 SELECT DISTINCT {process_id}, graph_id, TRUE, FALSE FROM incoming
                 ON CONFLICT DO UPDATE SET reported = TRUE"""
    _run(connection, graphs, rows)
    connection.execute("UPDATE process SET annotation_source = ? WHERE process_id = ?", [source, process_id])


def merge_nodes(connection: duckdb.DuckDBPyConnection, rows: pa.RecordBatch, process_id: int, complete: bool) -> None:
    """Node lists: complete ones come from the graph itself, others from what replays showed and only fill gaps."""
    if rows.num_rows == 0:
        return
    known = f"SELECT graph_id FROM graph WHERE process_id = {process_id} AND nodes_complete"
    accept = "TRUE" if complete else f"graph_id NOT IN ({known})"
    conflict = "REPLACE" if complete else "IGNORE"
    insert = f"INSERT OR {conflict} INTO graph_node SELECT {process_id}, * FROM incoming WHERE {accept}"
    _run(connection, insert, rows)
    graphs = f"""INSERT INTO graph (process_id, graph_id, reported, nodes_complete)
                 SELECT DISTINCT {process_id}, graph_id, {complete}, {complete} FROM incoming WHERE {accept}
                 ON CONFLICT DO UPDATE SET reported = reported OR excluded.reported,
                     nodes_complete = excluded.nodes_complete"""
    _run(connection, graphs, rows)
    for (graph_id,) in _run(connection, "SELECT DISTINCT graph_id FROM incoming ORDER BY graph_id", rows):
        nodes = connection.execute(
            "SELECT kind, name FROM graph_node WHERE process_id = ? AND graph_id = ? ORDER BY node_index",
            [process_id, graph_id],
        ).fetchall()
        connection.execute(
            "UPDATE graph SET fingerprint = ? WHERE process_id = ? AND graph_id = ?",
            [fingerprint([kind for kind, _ in nodes], [name for _, name in nodes]), process_id, graph_id],
        )


def renumber_steps(connection: duckdb.DuckDBPyConnection, process_id: int) -> None:
    """Steps that are replay ordinals start at 0 in every trace; later windows of a process go on counting."""
    windows = connection.execute(
        """SELECT t.trace_id, coalesce(max(e.step) + 1, 0) FROM trace t LEFT JOIN gpu_event e USING (trace_id)
           WHERE t.process_id = ? AND t.step_source = 'replay' AND t.status <> 'rejected'
           GROUP BY t.trace_id, t.window_start_ns ORDER BY t.window_start_ns""",
        [process_id],
    ).fetchall()
    offset = 0
    for trace_id, steps in windows:
        connection.execute("UPDATE trace SET step_offset = ? WHERE trace_id = ?", [offset, trace_id])
        offset += steps


def mismatches(connection: duckdb.DuckDBPyConnection, process_id: int) -> tuple[str, ...]:
    """One sentence per trace of the process in whose graph work no annotated node occurs, though there are some."""
    unnamed = connection.execute(
        f"""SELECT t.path FROM trace t WHERE t.process_id = {process_id} AND t.graph_events > 0
            AND EXISTS (SELECT 1 FROM annotation a WHERE a.process_id = {process_id})
            AND NOT EXISTS (SELECT 1 FROM gpu_event e JOIN annotation a USING (process_id, graph_id, node_index)
                            WHERE e.trace_id = t.trace_id)"""
    ).fetchall()
    return tuple(f"{path}: {_NO_MATCH}" for (path,) in unnamed)


def remember(connection: duckdb.DuckDBPyConnection, process_id: int, sha256: str, path: str, kind: str) -> None:
    connection.execute("INSERT INTO source_file VALUES (?, ?, ?, ?)", [process_id, sha256, path, kind])
