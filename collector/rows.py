"""The statements that put read batches into the tables. Each runs inside the transaction of whoever writes."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from annotq.agent.batches import COLLECTIVE_COLUMNS
from annotq.agent.errors import AnnotqError
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
    """The row of a trace whose events are still to come; it counts once its status is no longer 'arriving'."""
    connection.execute(
        "DELETE FROM trace WHERE process_id = ? AND path = ? AND status = 'rejected'",
        [process_id, stored_path(info.path)],
    )
    connection.execute(
        "INSERT INTO trace VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, FALSE, ?, 0, ?, ?, ?, ?, ?, ?, NULL, NULL)",
        [
            trace_id,
            process_id,
            target.job,
            target.attempt,
            info.rank,
            stored_path(info.path),
            info.sha256,
            info.base_ns,
            info.window_start_ns,
            info.window_end_ns,
            info.encoding,
            info.step_source,
            "arriving",
            info.gpu_events,
            info.graph_events,
            info.dropped_events,
            info.overrun_events,
            stored_path(" ".join(info.problems)) or None,
        ],
    )


def insert_events(
    connection: duckdb.DuckDBPyConnection, batch: pa.RecordBatch, trace_id: int, process_id: int, rank: int
) -> None:
    columns = f"""{trace_id}::BIGINT, {process_id}::BIGINT, {rank}::BIGINT, start_ns, duration_ns, kind, name, device, stream,
        correlation_id, in_graph, graph_id, node_index, bytes, step, region, region_path, region_instance, overrun,
        communication, {_COLLECTIVE}, phase"""
    _append(connection, batch.append_column("communication", _communication(batch)), columns, "gpu_event")


def insert_host_spans(
    connection: duckdb.DuckDBPyConnection, batch: pa.RecordBatch, trace_id: int, process_id: int, rank: int
) -> None:
    """Append launches, user annotations and steps."""
    columns = f"{trace_id}::BIGINT, {process_id}::BIGINT, {rank}::BIGINT, *"
    _append(connection, batch, columns, "host_span")


def _append(connection: duckdb.DuckDBPyConnection, batch: pa.RecordBatch, columns: str, table: str) -> None:
    """Append rows. Not by the name of a registered batch: within a transaction DuckDB would keep all of them in memory."""
    connection.from_arrow(batch).project(columns).insert_into(table)


def run_on(
    connection: duckdb.DuckDBPyConnection, sql: str, incoming: pa.RecordBatch | pa.Table
) -> list[tuple[Any, ...]]:
    """Run SQL that reads the rows as `incoming`; they stay in memory until the transaction ends.

    Registered, because DuckDB finds no Python variable by its name once external access is off.
    """
    connection.register("incoming", incoming)
    try:
        return connection.execute(sql).fetchall()
    finally:
        with suppress(duckdb.Error):  # the statement failed, and with it the transaction
            connection.unregister("incoming")


def _communication(batch: pa.RecordBatch) -> pa.BooleanArray:
    """Whether each event is a communication kernel; the names are looked at once each, not once per event."""
    names = batch.column("name")
    assert isinstance(names, pa.DictionaryArray)
    found = [_COMMUNICATION.search(str(name)) is not None for name in names.dictionary.to_pylist()]
    by_name = np.array(found, dtype=np.bool_)
    collective = batch.column("collective").is_valid().to_numpy(zero_copy_only=False)
    return pa.array(by_name[names.indices.to_numpy()] | collective, pa.bool_())


def forget_trace(connection: duckdb.DuckDBPyConnection, trace_id: int) -> None:
    """Take a trace out again, with its events and the memory of its file."""
    connection.execute(
        """DELETE FROM source_file WHERE (process_id, sha256) IN (SELECT process_id, sha256 FROM trace WHERE trace_id = ?)""",
        [trace_id],
    )
    for table in ("gpu_event", "host_span", "trace", "arriving"):
        connection.execute(f"DELETE FROM {table} WHERE trace_id = ?", [trace_id])


def check_annotations(connection: duckdb.DuckDBPyConnection, rows: pa.RecordBatch, process_id: int, path: str) -> None:
    """Refuse annotations that give a node of this process another meaning: they come from another process.

    Raises AnnotqError. More nodes than before, as in a later snapshot of the same process, are welcome.
    """
    if rows.num_rows == 0:
        return
    differing = run_on(
        connection,
        f"""SELECT count(*) FROM incoming i JOIN annotation a USING (graph_id, node_index)
            WHERE a.process_id = {process_id} AND a.attributes <> i.attributes
                AND graph_id NOT IN ({_of_the_agent(process_id)})""",
        rows,
    )[0][0]
    if differing:
        other = connection.execute(
            "SELECT path FROM source_file WHERE process_id = ? AND kind = 'annotations' ORDER BY path", [process_id]
        ).fetchall()
        where = ", ".join(row[0] for row in other) or "the trace itself"
        raise AnnotqError(
            f"{path}: {differing:,} of {rows.num_rows:,} nodes are annotated differently than in {where}.",
            "For another run of the job use --attempt N or --job NAME; for a wrong rank --rank N.",
        )


def merge_annotations(
    connection: duckdb.DuckDBPyConnection, rows: pa.RecordBatch, process_id: int, source: str
) -> None:
    """Add annotations of a process; a node that is there already keeps the same meaning (see check_annotations).

    What the agent says about a graph stands: files and traces lack the nesting of the regions.
    """
    if rows.num_rows == 0:
        return
    accept = "TRUE" if source == "agent" else f"graph_id NOT IN ({_of_the_agent(process_id)})"
    run_on(connection, f"INSERT OR REPLACE INTO annotation SELECT {process_id}, * FROM incoming WHERE {accept}", rows)
    graphs = f"""INSERT INTO graph (process_id, graph_id, reported, nodes_complete)
                 SELECT DISTINCT {process_id}, graph_id, TRUE, FALSE FROM incoming WHERE {accept}
                 ON CONFLICT DO UPDATE SET reported = TRUE"""
    run_on(connection, graphs, rows)
    connection.execute(
        """UPDATE process SET annotation_source = CASE WHEN annotation_source = 'agent' THEN 'agent' ELSE ? END
           WHERE process_id = ?""",
        [source, process_id],
    )


def _of_the_agent(process_id: int) -> str:
    return f"SELECT graph_id FROM graph WHERE process_id = {process_id} AND generation IS NOT NULL"


def merge_nodes(connection: duckdb.DuckDBPyConnection, rows: pa.RecordBatch, process_id: int, complete: bool) -> None:
    """Node lists: complete ones come from the graph itself, others from what replays showed and only fill gaps."""
    if rows.num_rows == 0:
        return
    known = f"SELECT graph_id FROM graph WHERE process_id = {process_id} AND nodes_complete"
    accept = "TRUE" if complete else f"graph_id NOT IN ({known})"
    conflict = "REPLACE" if complete else "IGNORE"
    insert = f"INSERT OR {conflict} INTO graph_node SELECT {process_id}, * FROM incoming WHERE {accept}"
    run_on(connection, insert, rows)
    graphs = f"""INSERT INTO graph (process_id, graph_id, reported, nodes_complete)
                 SELECT DISTINCT {process_id}, graph_id, {complete}, {complete} FROM incoming WHERE {accept}
                 ON CONFLICT DO UPDATE SET reported = reported OR excluded.reported,
                     nodes_complete = excluded.nodes_complete"""
    run_on(connection, graphs, rows)
    # The agent's own fingerprint also covers the edges.
    unnamed = f"""graph_id NOT IN (SELECT graph_id FROM graph WHERE process_id = {process_id} AND generation IS NOT NULL
                                    AND fingerprint IS NOT NULL)"""
    for (graph_id,) in run_on(connection, f"SELECT DISTINCT graph_id FROM incoming WHERE {unnamed}", rows):
        nodes = connection.execute(
            "SELECT kind, name FROM graph_node WHERE process_id = ? AND graph_id = ? ORDER BY node_index",
            [process_id, graph_id],
        ).fetchall()
        connection.execute(
            "UPDATE graph SET fingerprint = ? WHERE process_id = ? AND graph_id = ?",
            [fingerprint([kind for kind, _ in nodes], [name for _, name in nodes]), process_id, graph_id],
        )


def renumber_steps(connection: duckdb.DuckDBPyConnection, target: Target) -> None:
    """Where windows of a process use the same step numbers again, give each its own range.

    The ranges are the same on all ranks of the job attempt, so that the nth windows of the ranks stay together (replay
    ordinals begin at 0 in every window).
    """
    windows = """SELECT trace_id, first_step <= lag(last_step) OVER w AS again, (row_number() OVER w - 1) AS number,
                     max(last_step) OVER () + 1 AS stride
                 FROM trace
                 WHERE job = ? AND attempt = ? AND status NOT IN ('rejected', 'arriving') AND first_step IS NOT NULL
                 WINDOW w AS (PARTITION BY process_id ORDER BY window_start_ns)"""
    jobs: list[object] = [target.job, target.attempt]
    if connection.execute(f"SELECT count(*) FROM ({windows}) WHERE again", jobs).fetchall() != [(0,)]:
        connection.execute(
            f"""UPDATE trace SET step_offset = w.number * w.stride FROM ({windows}) AS w
                WHERE trace.trace_id = w.trace_id AND step_offset <> w.number * w.stride""",
            jobs,
        )


def mismatches(connection: duckdb.DuckDBPyConnection, process_id: int) -> tuple[str, ...]:
    """One sentence per trace of the process in whose graph work no annotated node occurs, though there are some."""
    unnamed = connection.execute(
        f"""SELECT t.path FROM trace t WHERE t.process_id = {process_id} AND t.graph_events > 0
            AND EXISTS (SELECT 1 FROM annotation a WHERE a.process_id = {process_id})
            AND NOT EXISTS (SELECT 1 FROM gpu_event e JOIN annotation a USING (process_id, graph_id, node_index)
                            WHERE e.trace_id = t.trace_id) ORDER BY t.path"""
    ).fetchall()
    files = connection.execute(
        "SELECT path FROM source_file WHERE process_id = ? AND kind = 'annotations' ORDER BY path", [process_id]
    ).fetchall()
    where = ", ".join(row[0] for row in files) or "the trace itself"
    return tuple(f"{path} with the annotations in {where}: {_NO_MATCH}" for (path,) in unnamed)


def stored_path(path: str) -> str:
    """A path as text that a database takes: bytes of a file name that are no UTF-8 are written out."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def remember(connection: duckdb.DuckDBPyConnection, process_id: int, sha256: str, path: str, kind: str) -> None:
    connection.execute("INSERT INTO source_file VALUES (?, ?, ?, ?)", [process_id, sha256, stored_path(path), kind])
