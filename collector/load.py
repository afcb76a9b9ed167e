"""The one writer: takes what a reader produced for one file and puts it into the store in one transaction.

A file is loaded whole or not at all. What it says about a process (host, groups, annotations, graph nodes) is merged into
the rows that are already there; its events are appended, sorted by start within each batch.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa

from annotq.agent.annotations import AnnotationFile
from annotq.agent.batches import COLLECTIVE_COLUMNS
from annotq.agent.errors import AnnotqError
from annotq.agent.fingerprint import fingerprint
from annotq.agent.graphs import GraphFile
from annotq.agent.intake import Loaded
from annotq.agent.kineto import TraceInfo
from annotq.agent.read_ahead import ReadTrace
from annotq.collector.align import update_clocks
from annotq.collector.infer import infer_node_ids
from annotq.collector.store import Store, id_of

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


class Loader:
    """Loads files into one store. Not thread-safe: DuckDB has one writer."""

    def __init__(self, store: Store, target: Target) -> None:
        self.store = store
        self.target = target

    def is_known(self, sha256: str, rank: int | None) -> bool:
        """Whether this job attempt holds a file of this content, for that rank or (rank None) for any."""
        query = """SELECT count(*) FROM source_file f JOIN process p USING (process_id)
                   WHERE f.sha256 = ? AND p.job = ? AND p.attempt = ? AND p.rank = coalesce(?, p.rank)"""
        parameters = [sha256, self.target.job, self.target.attempt, rank]
        return bool(_scalar(self.store.connection, query, parameters))

    def load_trace(self, trace: ReadTrace) -> Loaded:
        """Load a trace with its events. Raises AnnotqError when another file already claims the rank for that time."""
        info = trace.info
        process_id = self.target.process_id(info.rank)
        if self.is_known(info.sha256, info.rank):
            return Loaded(known=True, rank=info.rank)
        self._check_claim(info, process_id)
        with self.store.transaction() as connection:
            self._merge_process(info, process_id)
            trace_id = id_of(process_id, info.sha256)
            _insert_trace(connection, info, trace_id, process_id, self.target)
            for batch in trace.gpu_events():
                _insert_events(connection, batch, trace_id, process_id, info.rank)
            for batch in trace.host_spans():
                connection.register("incoming", batch)
                connection.execute(
                    f"INSERT INTO host_span SELECT {trace_id}, {process_id}, {info.rank}, * FROM incoming"
                )
            _merge_annotations(connection, trace.annotations(), process_id, "inline")
            _merge_nodes(connection, trace.observed_nodes(), process_id, complete=False)
            _remember(connection, process_id, info.sha256, info.path, "trace")
            _renumber_steps(connection, process_id)
            infer_node_ids(connection, process_id)
            update_clocks(connection, self.target.job, self.target.attempt)
        problems = _mismatches(self.store.connection, process_id)
        return Loaded(False, info.rank, info.gpu_events, info.graph_events, problems=problems)

    def load_annotations(self, file: AnnotationFile) -> Loaded:
        """Load the annotations of one process."""
        process_id = self.target.process_id(file.rank)
        if self.is_known(file.sha256, file.rank):
            return Loaded(known=True, rank=file.rank)
        with self.store.transaction() as connection:
            self._ensure_process(file.rank)
            _merge_annotations(connection, file.rows, process_id, "file")
            _remember(connection, process_id, file.sha256, file.path, "annotations")
            infer_node_ids(connection, process_id)
        problems = _mismatches(self.store.connection, process_id)
        return Loaded(False, file.rank, annotated_nodes=file.rows.num_rows, problems=problems)

    def load_graphs(self, file: GraphFile) -> Loaded:
        """Load the node lists of a process's graphs; traces without ids are joined by them."""
        process_id = self.target.process_id(file.rank)
        if self.is_known(file.sha256, file.rank):
            return Loaded(known=True, rank=file.rank)
        with self.store.transaction() as connection:
            self._ensure_process(file.rank)
            _merge_nodes(connection, file.rows, process_id, complete=True)
            _remember(connection, process_id, file.sha256, file.path, "graphs")
            infer_node_ids(connection, process_id)
        return Loaded(False, file.rank, graph_nodes=file.rows.num_rows)

    def reject_trace(self, path: str, sha256: str, rank: int, reason: str) -> None:
        """Leave a row for a trace that could not be used, so that coverage shows it. A later good read replaces it."""
        process_id = self.target.process_id(rank)
        trace_id = id_of(process_id, sha256)
        with self.store.transaction() as connection:
            self._ensure_process(rank)
            connection.execute(
                "DELETE FROM trace WHERE process_id = ? AND path = ? AND status = 'rejected'", [process_id, path]
            )
            if not _scalar(connection, "SELECT count(*) FROM trace WHERE trace_id = ?", [trace_id]):
                row = [trace_id, process_id, self.target.job, self.target.attempt, rank, path, sha256]
                connection.execute(
                    """INSERT INTO trace VALUES (?, ?, ?, ?, ?, ?, ?, 0, NULL, NULL, 'none', FALSE, 'none', 0,
                       'rejected', 0, 0, 0, 0, ?)""",
                    [*row, reason],
                )

    def _check_claim(self, info: TraceInfo, process_id: int) -> None:
        connection = self.store.connection
        claimed = connection.execute("SELECT host, pid FROM process WHERE process_id = ?", [process_id]).fetchone()
        earlier = connection.execute(
            """SELECT path, window_start_ns < ? AND window_end_ns > ? FROM trace
               WHERE process_id = ? AND status <> 'rejected' ORDER BY 2 DESC, path LIMIT 1""",
            [info.window_end_ns, info.window_start_ns, process_id],
        ).fetchone()
        if earlier is None or claimed is None:
            return
        path, overlaps = earlier
        twice = f"{info.path}: rank {info.rank} is claimed twice:"
        hint = "For another run of the job use --attempt N or --job NAME; for a wrong rank --rank N."
        if _differ(claimed[0], info.host) or _differ(claimed[1], info.pid):
            mine, theirs = f"process {info.pid} on {info.host}", f"process {claimed[1]} on {claimed[0]}"
            raise AnnotqError(f"{twice} this is {mine}, {path} is {theirs}.", hint)
        if overlaps:
            raise AnnotqError(f"{twice} its window overlaps that of {path}.", hint)

    def _ensure_process(self, rank: int) -> None:
        self.store.connection.execute(
            "INSERT INTO process (process_id, job, attempt, rank) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            [self.target.process_id(rank), self.target.job, self.target.attempt, rank],
        )

    def _merge_process(self, info: TraceInfo, process_id: int) -> None:
        self._ensure_process(info.rank)
        self.store.connection.execute(
            """UPDATE process SET world_size = coalesce(?, world_size), host = coalesce(?, host), pid = coalesce(?, pid),
               gpu = coalesce(?, gpu), versions = coalesce(?, versions), process_groups = coalesce(?, process_groups),
               default_group = coalesce(?, default_group) WHERE process_id = ?""",
            [
                info.world_size,
                info.host,
                info.pid,
                info.gpu,
                json.dumps(info.versions, sort_keys=True) if info.versions else None,
                info.process_groups,
                _only_group(info.process_groups),
                process_id,
            ],
        )


def _insert_trace(
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


def _insert_events(
    connection: duckdb.DuckDBPyConnection, batch: pa.RecordBatch, trace_id: int, process_id: int, rank: int
) -> None:
    connection.register("incoming", batch.append_column("communication", _communication(batch)))
    connection.execute(
        f"""INSERT INTO gpu_event SELECT {trace_id}, {process_id}, {rank}, start_ns, duration_ns, kind, name, device,
            stream, correlation_id, in_graph, graph_id, node_index, bytes, step, region, region_path,
            region_instance, overrun, communication, {_COLLECTIVE} FROM incoming"""
    )


def _communication(batch: pa.RecordBatch) -> pa.BooleanArray:
    """Whether each event is a communication kernel; the names are looked at once each, not once per event."""
    names = batch.column("name")
    assert isinstance(names, pa.DictionaryArray)
    found = [_COMMUNICATION.search(str(name)) is not None for name in names.dictionary.to_pylist()]
    by_name = np.array(found, dtype=np.bool_)
    collective = batch.column("collective").is_valid().to_numpy(zero_copy_only=False)
    return pa.array(by_name[names.indices.to_numpy()] | collective, pa.bool_())


def _merge_annotations(
    connection: duckdb.DuckDBPyConnection, rows: pa.RecordBatch, process_id: int, source: str
) -> None:
    """A node annotated again (a later, longer snapshot of the same process) takes the newer annotation."""
    if rows.num_rows == 0:
        return
    connection.register("incoming", rows)
    connection.execute(f"INSERT OR REPLACE INTO annotation SELECT {process_id}, * FROM incoming")
    connection.execute(
        f"""INSERT INTO graph (process_id, graph_id, reported, nodes_complete)
            SELECT DISTINCT {process_id}, graph_id, TRUE, FALSE FROM incoming
            ON CONFLICT DO UPDATE SET reported = TRUE"""
    )
    connection.execute("UPDATE process SET annotation_source = ? WHERE process_id = ?", [source, process_id])


def _merge_nodes(connection: duckdb.DuckDBPyConnection, rows: pa.RecordBatch, process_id: int, complete: bool) -> None:
    """Node lists: complete ones come from the graph itself, others from what replays showed and only fill gaps."""
    if rows.num_rows == 0:
        return
    connection.register("incoming", rows)
    known = f"SELECT graph_id FROM graph WHERE process_id = {process_id} AND nodes_complete"
    accept = "TRUE" if complete else f"graph_id NOT IN ({known})"
    conflict = "REPLACE" if complete else "IGNORE"
    connection.execute(f"INSERT OR {conflict} INTO graph_node SELECT {process_id}, * FROM incoming WHERE {accept}")
    connection.execute(
        f"""INSERT INTO graph (process_id, graph_id, reported, nodes_complete)
            SELECT DISTINCT {process_id}, graph_id, {complete}, {complete} FROM incoming WHERE {accept}
            ON CONFLICT DO UPDATE SET reported = reported OR excluded.reported, nodes_complete = excluded.nodes_complete"""
    )
    changed = connection.execute("SELECT DISTINCT graph_id FROM incoming ORDER BY graph_id").fetchall()
    for (graph_id,) in changed:
        nodes = connection.execute(
            "SELECT kind, name FROM graph_node WHERE process_id = ? AND graph_id = ? ORDER BY node_index",
            [process_id, graph_id],
        ).fetchall()
        connection.execute(
            "UPDATE graph SET fingerprint = ? WHERE process_id = ? AND graph_id = ?",
            [fingerprint([kind for kind, _ in nodes], [name for _, name in nodes]), process_id, graph_id],
        )


def _renumber_steps(connection: duckdb.DuckDBPyConnection, process_id: int) -> None:
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


def _mismatches(connection: duckdb.DuckDBPyConnection, process_id: int) -> tuple[str, ...]:
    """One sentence per trace of the process in whose graph work no annotated node occurs, though there are some."""
    unnamed = connection.execute(
        f"""SELECT t.path FROM trace t WHERE t.process_id = {process_id} AND t.graph_events > 0
            AND EXISTS (SELECT 1 FROM annotation a WHERE a.process_id = {process_id})
            AND NOT EXISTS (SELECT 1 FROM gpu_event e JOIN annotation a USING (process_id, graph_id, node_index)
                            WHERE e.trace_id = t.trace_id)"""
    ).fetchall()
    return tuple(f"{path}: {_NO_MATCH}" for (path,) in unnamed)


def _remember(connection: duckdb.DuckDBPyConnection, process_id: int, sha256: str, path: str, kind: str) -> None:
    connection.execute("INSERT INTO source_file VALUES (?, ?, ?, ?)", [process_id, sha256, path, kind])


def _only_group(process_groups: str | None) -> str | None:
    groups = json.loads(process_groups) if process_groups else []
    names = {
        str(group.get("pg_name")) for group in groups if isinstance(group, dict) and group.get("pg_name") is not None
    }
    return names.pop() if len(names) == 1 else None


def _differ(left: object, right: object) -> bool:
    return left is not None and right is not None and left != right


def _scalar(connection: duckdb.DuckDBPyConnection, query: str, parameters: list[object]) -> int:
    row = connection.execute(query, parameters).fetchone()
    return int(row[0]) if row else 0
