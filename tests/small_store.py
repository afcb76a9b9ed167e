"""A store that fits on a screen: job "tiny", two ranks on one host, one graph of three nodes replayed twice.

Node 1 lies in layers.0.mlp, node 2 is an all_reduce, node 3 has no region. Rank 1 takes twice as long in the MLP, so
rank 0 waits for it.
"""

from __future__ import annotations

from pathlib import Path

from annotq.collector.store import Store

START_NS = 1_764_559_450_123_456_789
MLP_NS = (1_000_000, 2_000_000)
TRANSFER_NS = 300_000
REPLAY_NS = 10_000_000

_PROCESS = """
INSERT INTO process BY NAME
SELECT ? AS process_id, ? AS job, 0 AS attempt, ? AS rank, 2 AS world_size, 'node-a' AS host, 100 AS pid, 'H200' AS gpu,
       'file' AS annotation_source
"""
_GRAPH = "INSERT INTO graph BY NAME SELECT ? AS process_id, 7 AS graph_id, true AS reported, false AS nodes_complete"
_ANNOTATION = """
INSERT INTO annotation BY NAME
SELECT ? AS process_id, 7 AS graph_id, ? AS node_index, ? AS region, ? AS region_path, 'forward' AS phase,
       '{}' AS attributes
"""
_TRACE = """
INSERT INTO trace BY NAME
SELECT ? AS trace_id, ? AS process_id, ? AS job, 0 AS attempt, ? AS rank, ? AS path, ? AS sha256, 0 AS base_ns,
       ? AS window_start_ns, ? AS window_end_ns, 'packed' AS encoding, false AS inferred, 'profiler' AS step_source,
       0 AS step_offset, ? AS status, 6 AS gpu_events, 6 AS graph_events, 0 AS dropped_events, 0 AS overrun_events,
       ? AS note
"""
_EVENT = """
INSERT INTO gpu_event BY NAME
SELECT ? AS trace_id, ? AS process_id, ? AS rank, ? AS start_ns, ? AS duration_ns, 'kernel' AS kind, ? AS name,
       0 AS device, 7 AS stream, ? AS correlation_id, true AS in_graph, 7 AS graph_id, ? AS node_index, ? AS step,
       false AS overrun, ? AS communication, 'default' AS group_name, '[0, 1]' AS group_ranks
"""
_CLOCK = """
INSERT INTO clock BY NAME
SELECT ? AS job, 0 AS attempt, 'node-a' AS host, 0 AS offset_ns, 0 AS drift_ppb, 0 AS reference_ns, 0 AS error_ns,
       'same_host' AS method
"""


def small_store(path: Path, *jobs: str, note: str | None = None) -> Path:
    """Writes the store with each of `jobs` (default: "tiny"); `note` is what ingest said about every trace."""
    with Store(path) as store:
        for number, job in enumerate(jobs or ("tiny",)):
            store.connection.execute(_CLOCK, [job])
            for rank in (0, 1):
                _add_rank(store, 10 * number + rank + 1, job, rank, note)
    return path


def _add_rank(store: Store, ident: int, job: str, rank: int, note: str | None) -> None:
    run = store.connection.execute
    run(_PROCESS, [ident, job, rank])
    run(_GRAPH, [ident])
    run(_ANNOTATION, [ident, 1, "layers.0.mlp", "layers.0 > layers.0.mlp"])
    run(_ANNOTATION, [ident, 2, "grads.all_reduce", "grads.all_reduce"])
    window = [START_NS, START_NS + 2 * REPLAY_NS]
    status = "partial" if note else "complete"
    run(_TRACE, [ident, ident, job, rank, f"rank{rank}.json", f"sha{ident}", *window, status, note])
    for step in (0, 1):
        start = START_NS + step * REPLAY_NS
        arrive = start + MLP_NS[rank]
        end = start + max(MLP_NS) + TRANSFER_NS
        rows = [
            (start, MLP_NS[rank], "void gemm<float, 4>(float*, int)", 1),
            (arrive, end - arrive, "ncclDevKernel_AllReduce_Sum_f32", 2),
            (end, 5_000, "copy_kernel", 3),
        ]
        for begin, duration, name, node in rows:
            run(_EVENT, [ident, ident, rank, begin, duration, name, 50 + step, node, step, node == 2])
