"""Puts simulated jobs into the tables of a real store, as ingest would have left them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
from simulated_events import BEGIN_NS, FIRST_STEP, GRAPH, Clocks, Column, event_table
from simulated_job import SimulatedJob
from simulated_layout import Family
from simulated_program import NODE_STRIDE, Operation

from annotq.collector.align import update_clocks
from annotq.collector.collective_alignment import align_hosts
from annotq.collector.store import Store

# Events that are put together at a time.
BLOCK_ROWS = 2_000_000
# Jobs after which a store in memory begins anew: deleted rows keep their memory.
FORGOTTEN = 50
# From the call that launches a graph to its first kernel on an idle GPU.
LAUNCH_NS = 6_000


def simulated_store(path: Path, **jobs: SimulatedJob) -> Path:
    """A new store file with these jobs, by name."""
    with Store(path, memory="1GB") as store:
        for name, job in jobs.items():
            add_job(store.connection, name, job)
    return path


class MemoryStore:
    """A store in memory that holds one job at a time: the same tables and views, without the cost of a file."""

    def __init__(self) -> None:
        self._store = _empty_store()
        self._held = 0

    def hold(self, job: SimulatedJob, name: str = "job") -> None:
        """Forget the job that was there and take in this one."""
        if self._held == FORGOTTEN:
            self._store.close()
            self._store, self._held = _empty_store(), 0
        run = self._store.connection.execute
        for (table,) in run("SELECT table_name FROM duckdb_tables() WHERE table_name <> 'store_version'").fetchall():
            run(f"DELETE FROM {table}")
        add_job(self._store.connection, name, job)
        self._held += 1

    def ask(self, sql: str, parameters: Sequence[object] = ()) -> pa.Table:
        """All rows of one SELECT, as Door.ask(...).table."""
        table: pa.Table = self._store.connection.sql(sql, params=list(parameters)).to_arrow_table()
        return table


def _empty_store() -> Store:
    return Store(Path(":memory:"), memory="2GB")


def add_job(connection: duckdb.DuckDBPyConnection, name: str, job: SimulatedJob) -> None:
    """Insert all rows of the job: processes, traces, graphs, annotations, GPU events, launches, clocks."""
    first = 1 + int(connection.execute("SELECT coalesce(max(process_id), 0) FROM process").fetchall()[0][0])
    clocks = Clocks(job)
    ranks = job.plan.layout.size
    _insert_ranks(connection, name, job, first)
    _insert_clocks(connection, name, job)
    kernels = sum(ran.start_ns.size for ran in job.ran)
    block = max(1, BLOCK_ROWS * ranks // max(1, kernels))
    for low in range(0, ranks, block):
        incoming = event_table(job, clocks, range(low, min(low + block, ranks)))
        connection.register("incoming", incoming)
        connection.execute(
            f"""INSERT INTO gpu_event BY NAME
                SELECT {first} + rank AS trace_id, {first} + rank AS process_id, * FROM incoming"""
        )
        connection.unregister("incoming")
    _insert_traces(connection, name, first)
    _insert_host_spans(connection, job, clocks, first)
    # After the traces: a job on several hosts without known clocks gets what the collector makes of it.
    if not job.plan.clocks.known:
        update_clocks(connection, name, 0)
        align_hosts(connection)


def host_name(host: int) -> str:
    return f"node-{host:03d}"


def _insert_ranks(connection: duckdb.DuckDBPyConnection, name: str, job: SimulatedJob, first: int) -> None:
    layout = job.plan.layout
    ranks = range(layout.size)
    processes = {
        "process_id": [first + rank for rank in ranks],
        "job": [name] * layout.size,
        "attempt": [0] * layout.size,
        "rank": list(ranks),
        "world_size": [layout.size] * layout.size,
        "local_rank": [rank % layout.ranks_per_host for rank in ranks],
        "host": [host_name(layout.host_of(rank)) for rank in ranks],
        "pid": [1000 + rank for rank in ranks],
        "gpu": ["NVIDIA H200"] * layout.size,
        "coordinates": [json.dumps(layout.coordinates(rank)) for rank in ranks],
        "annotation_source": ["file"] * layout.size,
    }
    _insert(connection, "process", pa.table(processes))
    stages = [layout.stage_of(rank) for rank in ranks]
    extra = {rank for cause in job.plan.causes if cause.extra_nodes for rank in cause.ranks}
    graphs = {
        "process_id": processes["process_id"],
        "graph_id": [GRAPH] * layout.size,
        "fingerprint": [f"stage{stages[rank]}" + (f"x{rank}" if rank in extra else "") for rank in ranks],
        "reported": [True] * layout.size,
        "nodes_complete": [False] * layout.size,
    }
    _insert(connection, "graph", pa.table(graphs))
    parts = [_annotations(ran.operation, job, first) for ran in job.ran if not ran.operation.eager]
    _insert(connection, "annotation", pa.concat_tables(parts))


def _annotations(operation: Operation, job: SimulatedJob, first: int) -> pa.Table:
    """The annotated nodes of an operation on all its ranks."""
    copies = np.ones(len(operation.ranks), dtype=np.int64)
    for cause in job.plan.causes:
        if cause.extra_nodes and cause.concerns(operation):
            copies[np.isin(operation.ranks, cause.ranks)] = round(1 + cause.size)
    kernels = len(operation.usual_ns)
    rank = np.repeat(operation.ranks, copies * kernels)
    within = np.concatenate([np.arange(kernels * count) for count in copies])
    count = np.repeat(copies, copies * kernels)
    node = operation.first_node + NODE_STRIDE * (within // count) + within % count
    size = len(rank)
    group, texts = _groups(operation.family, rank)
    return pa.table(
        {
            "process_id": first + rank,
            "graph_id": np.full(size, GRAPH),
            "node_index": node,
            "region": [operation.region] * size,
            "region_path": [operation.region] * size,
            "phase": [operation.phase] * size,
            "attributes": [json.dumps({"name": operation.region})] * size,
            "collective": pa.array([None if operation.computes else operation.kind] * size, pa.string()),
            "group_name": texts["name"].take(group),
            "group_description": texts["description"].take(group),
            "group_ranks": texts["ranks"].take(group),
            "group_size": texts["size"].take(group),
        }
    )


def _groups(family: Family | None, rank: Column) -> tuple[pa.Array, dict[str, pa.Array]]:
    """By row, the number of the rank's group (NULL without one), and what the groups are called."""
    members = np.zeros((0, 1), dtype=np.int64) if family is None else family.ranks
    numbers = range(len(members))
    texts = {
        "name": pa.array([family.name(number) for number in numbers] if family else [], pa.string()),
        "description": pa.array([family.description for _ in numbers] if family else [], pa.string()),
        "ranks": pa.array([family.ranks_text(number) for number in numbers] if family else [], pa.string()),
        "size": pa.array([members.shape[1]] * len(members), pa.int64()),
    }
    if family is None:
        return pa.nulls(len(rank), pa.int64()), texts
    group_of = np.empty(members.size, dtype=np.int64)
    group_of[members] = np.arange(len(members))[:, None]
    return pa.array(group_of[rank]), texts


def _insert_clocks(connection: duckdb.DuckDBPyConnection, name: str, job: SimulatedJob) -> None:
    known, shown = job.plan.clocks, Clocks(job)
    if not known.known:
        return
    hosts = job.plan.layout.hosts
    rows = {
        "job": [name] * hosts,
        "attempt": [0] * hosts,
        "host": [host_name(host) for host in range(hosts)],
        "offset_ns": -shown.offsets_ns,
        "drift_ppb": -shown.drifts_ppb,
        "reference_ns": BEGIN_NS + shown.offsets_ns,
        "error_ns": [known.error_ns] * hosts,
        "method": ["same_host" if hosts == 1 else "ping"] * hosts,
    }
    _insert(connection, "clock", pa.table(rows))


def _insert_traces(connection: duckdb.DuckDBPyConnection, name: str, first: int) -> None:
    # Every process counts its times from another moment, as Kineto's baseTimeNanoseconds.
    connection.execute(
        f"""INSERT INTO trace BY NAME
        SELECT trace_id, process_id, $name AS job, 0 AS attempt, rank, concat('rank', rank, '.pt.trace.json') AS path,
            md5(concat($name, rank)) AS sha256, {BEGIN_NS} - 1000000007 * (1 + rank % 5) AS base_ns,
            min(start_ns) AS window_start_ns, max(start_ns + duration_ns) AS window_end_ns, 'packed' AS encoding,
            false AS inferred, 'profiler' AS step_source, 0 AS step_offset, 'complete' AS status,
            count(*) AS gpu_events, count(*) FILTER (WHERE in_graph) AS graph_events, 0 AS dropped_events,
            0 AS overrun_events, min(step) AS first_step, max(step) AS last_step
        FROM gpu_event
        WHERE trace_id >= $first
        GROUP BY trace_id, process_id, rank ORDER BY rank""",
        {"name": name, "first": first},
    )


def _insert_host_spans(connection: duckdb.DuckDBPyConnection, job: SimulatedJob, clocks: Clocks, first: int) -> None:
    """The profiler's steps, each to the begin of the next, and the launches of the graphs in them."""
    last = job.launch_ns[:, -1:] + 1_000_000
    lengths = np.diff(np.concatenate([job.begin_ns, last], axis=1), axis=1) - 1_000
    called = np.maximum(job.launch_ns - LAUNCH_NS, job.begin_ns + 1_000)
    spans = (
        ("step", job.begin_ns, lengths, None),
        ("graph_launch", called, np.full_like(called, LAUNCH_NS - 1_000), "cudaGraphLaunch"),
    )
    for kind, start, duration, name in spans:
        ranks, steps = start.shape
        rank, step = np.repeat(np.arange(ranks), steps), np.tile(np.arange(steps), ranks)
        rows = {
            "trace_id": first + rank,
            "process_id": first + rank,
            "rank": rank,
            "start_ns": clocks.shown(start.ravel(), rank),
            "duration_ns": duration.ravel(),
            "kind": [kind] * len(rank),
            "name": [name or f"ProfilerStep#{number}" for number in (step + FIRST_STEP).tolist()],
            "thread_id": 1000 + rank,
            "correlation_id": pa.array(1 + step, mask=np.full(len(step), kind == "step")),
            "step": step + FIRST_STEP,
        }
        _insert(connection, "host_span", pa.table(rows))


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: pa.Table) -> None:
    connection.register("incoming", rows)
    connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")
    connection.unregister("incoming")
