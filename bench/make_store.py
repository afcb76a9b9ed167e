"""A store of 50 million generated kernels: 64 ranks, one graph of 2,000 nodes in 200 regions, forward and backward.

    python bench/make_store.py OUT

The rows go into the real tables, sorted as ingest leaves them: by rank, then by start. Durations are a hash of rank,
replay and node, so every run makes the same store: each region has its own base, kernels vary by a tenth, one in a
hundred takes four times as long.
"""

from __future__ import annotations

import sys
from pathlib import Path

from annotq.collector.store import Store

RANKS = 64
NODES = 2000
REPLAYS = 391
JOB = "bench"
NODES_PER_REGION = 5
REGIONS = NODES // NODES_PER_REGION // 2  # each once forward, once backward
EPOCH_NS = 1_790_000_000_000_000_000

PROCESS = f"""
INSERT INTO process BY NAME
SELECT rank AS process_id, '{JOB}' AS job, 0 AS attempt, rank, {RANKS} AS world_size, rank % 8 AS local_rank,
    'node' || (rank // 8) AS host, 'file' AS annotation_source
FROM range({RANKS}) AS r(rank)
"""
TRACE = f"""
INSERT INTO trace BY NAME
SELECT rank AS trace_id, rank AS process_id, '{JOB}' AS job, 0 AS attempt, rank,
    'rank' || rank || '.pt.trace.json' AS path, md5('rank' || rank) AS sha256, {EPOCH_NS} AS base_ns,
    'packed' AS encoding, false AS inferred,
    'profiler' AS step_source, 0 AS step_offset, 'complete' AS status, {NODES * REPLAYS} AS gpu_events,
    {NODES * REPLAYS} AS graph_events, 0 AS dropped_events, 0 AS overrun_events
FROM range({RANKS}) AS r(rank)
"""
GRAPH = f"""
INSERT INTO graph BY NAME
SELECT rank AS process_id, 2 AS graph_id, 'bench' AS fingerprint, true AS reported, false AS nodes_complete
FROM range({RANKS}) AS r(rank)
"""
GRAPH_NODE = f"""
INSERT INTO graph_node BY NAME
SELECT rank AS process_id, 2 AS graph_id, node AS node_index, 'kernel' AS kind, 'kernel_' || (node % 97) AS name
FROM range({RANKS}) AS r(rank), range({NODES}) AS n(node)
"""
ANNOTATION = f"""
INSERT INTO annotation BY NAME
SELECT rank AS process_id, 2 AS graph_id, node AS node_index, 'layers.' || region AS region,
    'layers.' || region AS region_path,
    CASE WHEN node < {NODES // 2} THEN 'forward' ELSE 'backward' END AS phase,
    '{{"name": "layers.' || region || '"}}' AS attributes
FROM (
    SELECT rank, node, node // {NODES_PER_REGION} % {REGIONS} AS region
    FROM range({RANKS}) AS r(rank), range({NODES}) AS n(node)
)
"""
GPU_EVENT = f"""
INSERT INTO gpu_event BY NAME
SELECT rank AS trace_id, rank AS process_id, rank, {EPOCH_NS} + replay * 200000000 + node * 100000 AS start_ns,
    CAST((4000 + 100 * (node // {NODES_PER_REGION} % {REGIONS})) * (0.9 + 0.2 * (draw % 1000) / 1000)
        * CASE WHEN draw % 100 = 0 THEN 4 ELSE 1 END AS BIGINT) AS duration_ns,
    'kernel' AS kind, 'kernel_' || (node % 97) AS name, 0 AS device, 7 AS stream, replay + 1 AS correlation_id,
    true AS in_graph, 2 AS graph_id, node AS node_index, replay AS step, false AS overrun, false AS communication
FROM (
    SELECT $rank AS rank, replay, node, CAST(hash($rank, replay, node) % 1000003 AS BIGINT) AS draw
    FROM range({REPLAYS}) AS p(replay), range({NODES}) AS n(node)
    ORDER BY replay, node
)
"""
HOST_SPAN = f"""
INSERT INTO host_span BY NAME
SELECT rank AS trace_id, rank AS process_id, rank, {EPOCH_NS} + replay * 200000000 - 50000 AS start_ns,
    30000 AS duration_ns, 'graph_launch' AS kind, 'cudaGraphLaunch' AS name, 1 AS thread_id,
    replay + 1 AS correlation_id, replay AS step
FROM range({RANKS}) AS r(rank), range({REPLAYS}) AS p(replay)
ORDER BY rank, replay
"""


def make_store(out: Path) -> None:
    """Write the store, or bring the views of an earlier one up to date; an interrupted run leaves nothing at `out`."""
    if out.exists():
        Store(out).close()
        return
    partial = out.with_name(out.name + ".partial")
    partial.unlink(missing_ok=True)
    with Store(partial, memory="2GB") as store:
        for statement in (PROCESS, TRACE, GRAPH, GRAPH_NODE, ANNOTATION, HOST_SPAN):
            store.connection.execute(statement)
        for rank in range(RANKS):
            store.connection.execute(GPU_EVENT, {"rank": rank})
    partial.rename(out)


if __name__ == "__main__":
    make_store(Path(sys.argv[1]))
