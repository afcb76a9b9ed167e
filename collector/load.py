"""Takes what a reader produced for one file and puts it into a store file in one transaction.

A file is loaded whole or not at all. What it says about a process (host, groups, annotations, graph nodes) is merged into
the rows that are already there; its events are appended, sorted by start within each batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from annotq.agent.annotations import AnnotationFile
from annotq.agent.graphs import GraphFile
from annotq.agent.intake import Loaded
from annotq.agent.process_info import ProcessInfo
from annotq.agent.read_ahead import ReadTrace
from annotq.agent.snapshots import Snapshot
from annotq.collector import trace_load
from annotq.collector.infer import infer_node_ids
from annotq.collector.nested_graphs import check_nested
from annotq.collector.process_rows import add_note, end_process, ensure_process, register_process
from annotq.collector.rows import (
    Target,
    check_annotations,
    insert_events,
    insert_host_spans,
    merge_annotations,
    merge_nodes,
    mismatches,
    remember,
)
from annotq.collector.snapshot_rows import destroy_graphs, insert_snapshot
from annotq.collector.store import Store
from annotq.collector.trace_load import Arrived, arrived, begin_trace, end_trace, settle


class Loader:
    """Loads files into one store. Not thread-safe: DuckDB has one writer.

    After `register` it also takes what only a recorder knows, of that one process (annotq.agent.intake.ProcessEnd).
    """

    def __init__(self, store: Store, target: Target) -> None:
        self.store = store
        self.target = target
        self._rank: int | None = None

    def register(self, info: ProcessInfo) -> None:
        """Make this the end of one recorded process. Raises RankTakenError when another process holds its rank."""
        with self.store.transaction() as connection:
            register_process(connection, info)
        self.target, self._rank = Target(info.job, info.attempt), info.rank

    def is_known(self, sha256: str, rank: int | None) -> bool:
        """Whether this job attempt holds a file of this content, for that rank or (rank None) for any."""
        return trace_load.is_known(self.store.connection, self.target, sha256, rank)

    def load_trace(self, trace: ReadTrace) -> Loaded:
        """Load a trace with its events. Raises AnnotqError when another file already claims the rank for that time."""
        info = trace.info
        process_id = self.target.process_id(info.rank)
        if self.is_known(info.sha256, info.rank):
            return Loaded(known=True, rank=info.rank)
        found = Arrived()
        with self.store.transaction() as connection:
            trace_id = begin_trace(connection, self.target, info)
            for batch in trace.gpu_events():
                insert_events(connection, batch, trace_id, process_id, info.rank)
                found += arrived(batch)
            for batch in trace.host_spans():
                insert_host_spans(connection, batch, trace_id, process_id, info.rank)
            merge_annotations(connection, trace.annotations(), process_id, "inline")
            merge_nodes(connection, trace.observed_nodes(), process_id, complete=False)
            end_trace(connection, trace_id, info.status, found)
            settle(connection, self.target)
        problems = mismatches(self.store.connection, process_id)
        return Loaded(False, info.rank, info.gpu_events, info.graph_events, problems=problems)

    def load_annotations(self, file: AnnotationFile) -> Loaded:
        """Load the annotations of one process. Raises AnnotqError when they contradict those that are there already."""
        process_id = self.target.process_id(file.rank)
        if self.is_known(file.sha256, file.rank):
            return Loaded(known=True, rank=file.rank)
        with self.store.transaction() as connection:
            ensure_process(connection, self.target, file.rank)
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
            ensure_process(connection, self.target, file.rank)
            merge_nodes(connection, file.rows, process_id, complete=True)
            remember(connection, process_id, file.sha256, file.path, "graphs")
            infer_node_ids(connection, process_id)
        return Loaded(False, file.rank, graph_nodes=file.rows.num_rows)

    def reject_trace(self, path: str, sha256: str, rank: int, reason: str) -> None:
        """Leave a row for a trace that could not be used, so that coverage shows it. A later good read replaces it."""
        with self.store.transaction() as connection:
            trace_load.reject_trace(connection, self.target, rank, path, sha256, reason)

    def load_snapshot(self, snapshot: Snapshot) -> Loaded:
        """Load an instantiated graph of the registered process, nodes and annotations."""
        process_id = self._process_id()
        with self.store.transaction() as connection:
            insert_snapshot(connection, snapshot.info, snapshot.nodes, process_id)
            merge_annotations(connection, snapshot.annotations, process_id, "agent")
            infer_node_ids(connection, process_id)
            check_nested(connection, process_id)
        return Loaded(
            False,
            self._rank,
            annotated_nodes=snapshot.annotations.num_rows,
            graph_nodes=snapshot.nodes.num_rows,
        )

    def destroy_graphs(self, graph_ids: Sequence[int], time_ns: int) -> None:
        """Note when graphs of the registered process ceased to exist."""
        with self.store.transaction() as connection:
            destroy_graphs(connection, self._process_id(), graph_ids, time_ns)

    def note(self, text: str) -> None:
        """Keep a sentence of the registered process's agent."""
        with self.store.transaction() as connection:
            add_note(connection, self._process_id(), text)

    def end_process(self, time_ns: int, how: str) -> None:
        """Note that the registered process is over."""
        with self.store.transaction() as connection:
            end_process(connection, self._process_id(), time_ns, how)

    def _process_id(self) -> int:
        assert self._rank is not None, "register comes first"
        return self.target.process_id(self._rank)
