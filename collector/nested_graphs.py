"""Checks the nodes inside child graphs against what replays show; without that their regions are a guess.

The agent counts such nodes through (agent/child_graphs.py) and marks their regions `inferred`. A replay shows every node's
kind and kernel name: one contradiction, or work where no node was counted, and all of the graph's inferred regions go.
"""

from __future__ import annotations

import duckdb

# As json.dumps writes it, keys sorted, into annotation.attributes.
_INFERRED = """a.attributes LIKE '%"inferred": true%'"""

_CONTRADICTED = f"""
    WITH guessed AS (
        SELECT DISTINCT a.graph_id FROM annotation a WHERE a.process_id = ? AND {_INFERRED}
    ), shown AS (
        SELECT DISTINCT e.trace_id, e.graph_id, e.node_index, e.kind, e.name
        FROM gpu_event e JOIN guessed g USING (graph_id)
        WHERE e.process_id = ? AND e.in_graph
    )
    SELECT s.graph_id, min(s.trace_id), count(DISTINCT s.node_index), arg_min(s.name, s.node_index), min(s.node_index)
    FROM shown s LEFT JOIN graph_node n ON n.process_id = ? AND n.graph_id = s.graph_id AND n.node_index = s.node_index
    LEFT JOIN annotation a ON a.process_id = n.process_id AND a.graph_id = n.graph_id AND a.node_index = n.node_index
    WHERE n.node_index IS NULL
        OR ({_INFERRED} AND (n.kind <> s.kind OR (s.kind = 'kernel' AND n.name IS NOT NULL AND n.name <> s.name)))
    GROUP BY s.graph_id ORDER BY s.graph_id"""


def check_nested(connection: duckdb.DuckDBPyConnection, process_id: int) -> tuple[str, ...]:
    """Take back the inferred regions that replays contradict; a sentence per graph, also added to its trace's note.

    Called after a trace or a snapshot of the process was loaded: either may come first.
    """
    guessed = connection.execute(
        f"SELECT count(*) FROM annotation a WHERE a.process_id = ? AND {_INFERRED}", [process_id]
    ).fetchall()
    if guessed == [(0,)]:
        return ()
    sentences = []
    for graph_id, trace_id, nodes, name, index in connection.execute(_CONTRADICTED, [process_id] * 3).fetchall():
        taken = connection.execute(
            f"DELETE FROM annotation a WHERE a.process_id = ? AND a.graph_id = ? AND {_INFERRED}",
            [process_id, graph_id],
        ).fetchall()[0][0]
        sentence = (
            f"Graph {graph_id}: {taken} nodes inside child graphs stay unnamed, their numbering does not fit what ran "
            f"({nodes} nodes differ, first node {index}: {name[:80]!r})."
        )
        connection.execute("UPDATE trace SET note = concat_ws(' ', note, ?) WHERE trace_id = ?", [sentence, trace_id])
        sentences.append(sentence)
    return tuple(sentences)
