"""The statements for what a recorder knows about CUDA graphs: instantiated with these nodes, destroyed at that time."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa

from annotq.agent.snapshots import SnapshotInfo
from annotq.collector.rows import run_on


def insert_snapshot(
    connection: duckdb.DuckDBPyConnection, info: SnapshotInfo, nodes: pa.RecordBatch, process_id: int
) -> None:
    """Add an instantiated graph with its nodes; the fingerprint is the agent's, which also covers the edges.

    Nodes that a trace showed before are replaced by the graph's own.
    """
    complete = nodes.num_rows > 0
    connection.execute(
        """INSERT INTO graph (process_id, graph_id, fingerprint, generation, reported, nodes_complete, valid_from_ns)
           VALUES (?, ?, ?, ?, TRUE, ?, ?)
           ON CONFLICT DO UPDATE SET fingerprint = coalesce(excluded.fingerprint, fingerprint),
               generation = excluded.generation, reported = TRUE,
               nodes_complete = nodes_complete OR excluded.nodes_complete, valid_from_ns = excluded.valid_from_ns""",
        [process_id, info.graph_id, info.fingerprint, info.generation, complete, info.time_ns],
    )
    if complete:
        run_on(connection, f"INSERT OR REPLACE INTO graph_node SELECT {process_id}, * FROM incoming", nodes)


def destroy_graphs(
    connection: duckdb.DuckDBPyConnection, process_id: int, graph_ids: Sequence[int], time_ns: int
) -> None:
    """Note when graphs ceased to exist; what they are stays."""
    connection.execute(
        """UPDATE graph SET valid_to_ns = ? WHERE process_id = ? AND graph_id IN (SELECT unnest(?::BIGINT[]))""",
        [time_ns, process_id, list(graph_ids)],
    )
