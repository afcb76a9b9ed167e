"""The one writer: takes what a reader produced for one file and puts it into the store in one transaction.

A file is loaded whole or not at all. What it says about a process (host, groups, annotations, graph nodes) is merged into
the rows that are already there; its events are appended, sorted by start within each batch.
"""

from __future__ import annotations

import json

import duckdb

from annotq.agent.annotations import AnnotationFile
from annotq.agent.errors import AnnotqError
from annotq.agent.graphs import GraphFile
from annotq.agent.intake import Loaded
from annotq.agent.kineto import TraceInfo
from annotq.agent.read_ahead import ReadTrace
from annotq.collector.align import update_clocks
from annotq.collector.infer import infer_node_ids
from annotq.collector.rows import (
    Target,
    check_annotations,
    forget_trace,
    insert_events,
    insert_host_spans,
    insert_trace,
    merge_annotations,
    merge_nodes,
    mismatches,
    remember,
    renumber_steps,
    stored_path,
)
from annotq.collector.store import Store, id_of


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
        replaced = self._check_claim(info, process_id)
        with self.store.transaction() as connection:
            if replaced is not None:
                forget_trace(connection, replaced)
            self._merge_process(info, process_id)
            trace_id = id_of(process_id, info.sha256)
            insert_trace(connection, info, trace_id, process_id, self.target)
            for batch in trace.gpu_events():
                insert_events(connection, batch, trace_id, process_id, info.rank)
            for batch in trace.host_spans():
                insert_host_spans(connection, batch, trace_id, process_id, info.rank)
            merge_annotations(connection, trace.annotations(), process_id, "inline")
            merge_nodes(connection, trace.observed_nodes(), process_id, complete=False)
            remember(connection, process_id, info.sha256, info.path, "trace")
            renumber_steps(connection, trace_id, self.target)
            infer_node_ids(connection, process_id)
            update_clocks(connection, self.target.job, self.target.attempt)
        problems = mismatches(self.store.connection, process_id)
        return Loaded(False, info.rank, info.gpu_events, info.graph_events, problems=problems)

    def load_annotations(self, file: AnnotationFile) -> Loaded:
        """Load the annotations of one process. Raises AnnotqError when they contradict those that are there already."""
        process_id = self.target.process_id(file.rank)
        if self.is_known(file.sha256, file.rank):
            return Loaded(known=True, rank=file.rank)
        with self.store.transaction() as connection:
            self._ensure_process(file.rank)
            check_annotations(connection, file.rows, process_id, file.path)
            merge_annotations(connection, file.rows, process_id, "file")
            remember(connection, process_id, file.sha256, file.path, "annotations")
            infer_node_ids(connection, process_id)
        problems = mismatches(self.store.connection, process_id)
        return Loaded(False, file.rank, annotated_nodes=file.rows.num_rows, problems=problems)

    def load_graphs(self, file: GraphFile) -> Loaded:
        """Load the node lists of a process's graphs; traces without ids are joined by them."""
        process_id = self.target.process_id(file.rank)
        if self.is_known(file.sha256, file.rank):
            return Loaded(known=True, rank=file.rank)
        with self.store.transaction() as connection:
            self._ensure_process(file.rank)
            merge_nodes(connection, file.rows, process_id, complete=True)
            remember(connection, process_id, file.sha256, file.path, "graphs")
            infer_node_ids(connection, process_id)
        return Loaded(False, file.rank, graph_nodes=file.rows.num_rows)

    def reject_trace(self, path: str, sha256: str, rank: int, reason: str) -> None:
        """Leave a row for a trace that could not be used, so that coverage shows it. A later good read replaces it."""
        process_id = self.target.process_id(rank)
        trace_id = id_of(process_id, sha256)
        path = stored_path(path)
        with self.store.transaction() as connection:
            self._ensure_process(rank)
            connection.execute(
                "DELETE FROM trace WHERE process_id = ? AND path = ? AND status = 'rejected'", [process_id, path]
            )
            if not _scalar(connection, "SELECT count(*) FROM trace WHERE trace_id = ?", [trace_id]):
                row = [trace_id, process_id, self.target.job, self.target.attempt, rank, path, sha256]
                connection.execute(
                    """INSERT INTO trace VALUES (?, ?, ?, ?, ?, ?, ?, 0, NULL, NULL, 'none', FALSE, 'none', 0,
                       'rejected', 0, 0, 0, 0, ?, NULL, NULL)""",
                    [*row, stored_path(reason)],
                )

    def _check_claim(self, info: TraceInfo, process_id: int) -> int | None:
        """The id of a trace that this one replaces (the same path, read only in part before), or None.

        Raises AnnotqError when another process, or another file for the same time, is there under this rank.
        """
        connection = self.store.connection
        claimed = connection.execute("SELECT host, pid FROM process WHERE process_id = ?", [process_id]).fetchall()
        earlier = connection.execute(
            """SELECT trace_id, path, status, window_start_ns < ? AND window_end_ns > ? FROM trace
               WHERE process_id = ? AND status <> 'rejected' ORDER BY 4 DESC, path""",
            [info.window_end_ns, info.window_start_ns, process_id],
        ).fetchall()
        if not earlier or not claimed:
            return None
        ((host, pid),) = claimed
        for trace_id, path, status, _ in earlier:
            if path == stored_path(info.path) and status == "partial":
                return int(trace_id)
        _, path, _, overlaps = earlier[0]
        twice = f"{info.path}: rank {info.rank} is claimed twice:"
        hint = "For another run of the job use --attempt N or --job NAME; for a wrong rank --rank N."
        if _differ(host, info.host) or _differ(pid, info.pid):
            mine, theirs = f"process {info.pid} on {info.host}", f"process {pid} on {host}"
            raise AnnotqError(f"{twice} this is {mine}, {path} is {theirs}.", hint)
        if overlaps:
            raise AnnotqError(f"{twice} its window overlaps that of {path}.", hint)
        return None

    def _ensure_process(self, rank: int) -> None:
        self.store.connection.execute(
            "INSERT INTO process (process_id, job, attempt, rank) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            [self.target.process_id(rank), self.target.job, self.target.attempt, rank],
        )

    def _merge_process(self, info: TraceInfo, process_id: int) -> None:
        self._ensure_process(info.rank)
        groups = _groups(info.process_groups)
        only = groups[0] if len(groups) == 1 else (None, None)
        self.store.connection.execute(
            """UPDATE process SET world_size = coalesce(?, world_size), host = coalesce(?, host), pid = coalesce(?, pid),
               gpu = coalesce(?, gpu), versions = coalesce(?, versions), process_groups = coalesce(?, process_groups),
               default_group = coalesce(?, default_group),
               default_group_size = coalesce(?, default_group_size) WHERE process_id = ?""",
            [
                info.world_size,
                info.host,
                info.pid,
                info.gpu,
                json.dumps(info.versions, sort_keys=True) if info.versions else None,
                info.process_groups,
                *only,
                process_id,
            ],
        )


def _groups(process_groups: str | None) -> list[tuple[str | None, int | None]]:
    """Name and number of ranks of each process group in distributedInfo.pg_config."""
    found = [group for group in json.loads(process_groups or "[]") if isinstance(group, dict)]
    return [
        (str(group["pg_name"]) if "pg_name" in group else None, size if isinstance(size, int) else None)
        for group in found
        for size in [group.get("pg_size", len(group["ranks"]) if isinstance(group.get("ranks"), list) else None)]
    ]


def _differ(left: object, right: object) -> bool:
    return left is not None and right is not None and left != right


def _scalar(connection: duckdb.DuckDBPyConnection, query: str, parameters: list[object]) -> int:
    return int(connection.execute(query, parameters).fetchall()[0][0])
