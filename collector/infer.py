"""Gives graph work of traces without node ids (torch < 2.12) its nodes, by capture order and kernel name.

A replay runs the nodes of its graph; on one stream it runs them in capture order, which is node order. A replay is
matched with a graph when its events, ordered by start, have exactly the kinds and kernel names of the graph's work nodes,
ordered by node index. Nothing else is accepted: another length, another name or two graphs that fit with different
regions leave the replay unmatched.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from annotq.collector.rows import run_on

WORK_KINDS = ("kernel", "memcpy", "memset")

# What tells two work nodes apart: kernels by name, copies only by kind (the profiler's name for a copy is its own).
Signature = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Candidate:
    graph_id: int
    node_indices: tuple[int, ...]
    regions: tuple[tuple[str | None, str | None], ...]


def infer_node_ids(connection: duckdb.DuckDBPyConnection, process_id: int) -> None:
    """Fill graph_id and node_index of the process's traces with encoding 'absent' as far as graphs with node lists fit."""
    traces = connection.execute(
        """SELECT trace_id FROM trace WHERE process_id = ? AND encoding = 'absent' AND NOT inferred
           AND status NOT IN ('rejected', 'arriving')""",
        [process_id],
    ).fetchall()
    if not traces:
        return
    candidates = _candidates(connection, process_id)
    for (trace_id,) in traces:
        _infer_trace(connection, trace_id, candidates)


def _candidates(connection: duckdb.DuckDBPyConnection, process_id: int) -> dict[Signature, list[_Candidate]]:
    rows = connection.execute(
        f"""SELECT n.graph_id, n.node_index, n.kind, n.name, a.region, a.phase
            FROM graph_node n JOIN graph g USING (process_id, graph_id)
            LEFT JOIN annotation a USING (process_id, graph_id, node_index)
            WHERE n.process_id = ? AND g.nodes_complete AND n.kind IN {WORK_KINDS}
            ORDER BY n.graph_id, n.node_index""",
        [process_id],
    ).fetchall()
    graphs: dict[int, list[tuple[int, str, str | None, str | None, str | None]]] = defaultdict(list)
    for graph_id, *node in rows:
        graphs[graph_id].append(tuple(node))
    found: dict[Signature, list[_Candidate]] = defaultdict(list)
    for graph_id, nodes in graphs.items():
        signature = tuple(_signature(kind, name) for _, kind, name, _, _ in nodes)
        regions = tuple((region, phase) for *_, region, phase in nodes)
        found[signature].append(_Candidate(graph_id, tuple(node[0] for node in nodes), regions))
    return found


def _infer_trace(
    connection: duckdb.DuckDBPyConnection, trace_id: int, candidates: dict[Signature, list[_Candidate]]
) -> None:
    rows = connection.execute(
        """SELECT correlation_id, kind, name, rowid FROM gpu_event WHERE trace_id = ? AND in_graph
           ORDER BY correlation_id, start_ns, rowid""",
        [trace_id],
    ).fetchall()
    replays: dict[int, list[tuple[str, str, int]]] = defaultdict(list)
    for correlation_id, kind, name, rowid in rows:
        replays[correlation_id].append((kind, name, rowid))
    rowids: list[int] = []
    graph_ids: list[int] = []
    node_indices: list[int] = []
    matched = 0
    for events in replays.values():
        fitting = candidates.get(tuple(_signature(kind, name) for kind, name, _ in events), [])
        if not _unambiguous(fitting):
            continue
        matched += 1
        rowids += [rowid for _, _, rowid in events]
        graph_ids += [fitting[0].graph_id] * len(events)
        node_indices += fitting[0].node_indices
    if not matched:
        return
    run_on(
        connection,
        "UPDATE gpu_event SET graph_id = i.g, node_index = i.n FROM incoming i WHERE gpu_event.rowid = i.r",
        pa.table({"r": rowids, "g": graph_ids, "n": node_indices}),
    )
    connection.execute("UPDATE trace SET inferred = TRUE WHERE trace_id = ?", [trace_id])
    if matched < len(replays):
        note = f"{len(replays) - matched} of {len(replays)} replays fit no known graph and stay unnamed."
        connection.execute("UPDATE trace SET note = concat_ws(' ', note, ?) WHERE trace_id = ?", [note, trace_id])


def _unambiguous(fitting: list[_Candidate]) -> bool:
    """One graph fits, or several that give every node the same region (known, not merely absent so far)."""
    if len(fitting) < 2:
        return bool(fitting)
    annotated = any(region is not None for region, _ in fitting[0].regions)
    return annotated and all(other.regions == fitting[0].regions for other in fitting)


def _signature(kind: str, name: str | None) -> tuple[str, str]:
    return (kind, name or "" if kind == "kernel" else "")
