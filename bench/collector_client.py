"""The other side of collector_load.py: ranks that ship and somebody who asks, or DuckDB with the same batches.

python bench/collector_client.py ship PORT RANKS PID    # PID: of the collector, to hold it up for a while; else 0
python bench/collector_client.py insert
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import duckdb
import grpc
import numpy as np
import pyarrow as pa

from annotq.agent.batches import GPU_EVENT
from annotq.agent.kineto import TraceInfo
from annotq.agent.process_info import ProcessInfo
from annotq.agent.wire import SCHEMA_VERSION, encode, sequence_of
from annotq.v1 import collector_pb2 as pb
from annotq.v1 import collector_pb2_grpc

HERE = Path(__file__).parent
ROWS = 100_000
BATCHES = 1  # of events, per rank
DISTINCT = 8
UNACKNOWLEDGED = 16
HELD_UP_SECONDS = 10.0
QUESTION = """SELECT name, count(*) AS kernels, median(duration_ns) AS median_ns FROM kernels
WHERE job = 'load' AND rank = 0 GROUP BY name"""
ASK_SECONDS = 0.25


def make_batch(seed: int) -> pa.RecordBatch:
    """Replays of a graph of 2,000 nodes: a hundred kernel names, durations that do not repeat."""
    draw = np.random.default_rng(seed)
    numbers = np.arange(ROWS)
    names = [f"void at::native::gemm_kernel<{i}, float>(float const*, int)" for i in range(100)]
    columns: dict[str, Any] = {
        "start_ns": 1_790_000_000_000_000_000 + np.cumsum(draw.integers(2_000, 9_000, ROWS)),
        "duration_ns": draw.integers(1_000, 200_000, ROWS),
        "device": np.zeros(ROWS, np.int64),
        "stream": np.full(ROWS, 7),
        "correlation_id": numbers // 2000 + 1,
        "graph_id": np.full(ROWS, 2),
        "node_index": numbers % 2000,
        "step": numbers // 2000,
        "in_graph": np.ones(ROWS, np.bool_),
        "overrun": np.zeros(ROWS, np.bool_),
    }
    arrays = {name: pa.array(values) for name, values in columns.items()}
    arrays["kind"] = coded(np.zeros(ROWS, np.int32), ["kernel"])
    arrays["name"] = coded((numbers % 2000 % 100).astype(np.int32), names)
    return pa.RecordBatch.from_arrays(
        [arrays.get(field.name, pa.nulls(ROWS, field.type)) for field in GPU_EVENT], schema=GPU_EVENT
    )


def coded(indices: Any, names: list[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(names))


async def ship(port: str, ranks: int, held_up_pid: int) -> dict[str, Any]:
    """All ranks at once; returns rows, rows per second, latencies of the questions, the fullest queue."""
    payloads = [encode([make_batch(seed)], GPU_EVENT) for seed in range(DISTINCT)]
    options = [("grpc.use_local_subchannel_pool", 1)]  # a connection each, as from different nodes
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as asking:
        watching = asyncio.create_task(ask(collector_pb2_grpc.CollectorStub(asking)))
        channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) for _ in range(ranks)]
        stubs = [collector_pb2_grpc.CollectorStub(channel) for channel in channels]
        ids = [(await stub.Register(register_request(rank))).process_id for rank, stub in enumerate(stubs)]
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            if held_up_pid:
                group.create_task(hold_up(held_up_pid))
            for rank, (stub, process_id) in enumerate(zip(stubs, ids, strict=True)):
                group.create_task(ship_rank(stub, rank, process_id, payloads))
        seconds = time.perf_counter() - started
        watching.cancel()
        latencies, most_queued = await watching
        for channel in channels:
            await channel.close()
    rows = ranks * BATCHES * ROWS
    return {
        "rows": rows,
        "rows_per_second": rows / seconds,
        "query_seconds": latencies,
        "most_queued_bytes": most_queued,
    }


async def hold_up(pid: int) -> None:
    """Let no file of the collector grow for a while: a writer that cannot commit."""
    hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))
    await asyncio.sleep(HELD_UP_SECONDS)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


async def ship_rank(stub: Any, rank: int, process_id: int, payloads: list[bytes]) -> None:
    """One rank: a trace of BATCHES batches, at most UNACKNOWLEDGED of them on the way; back again when told so."""
    batches = list(trace_batches(rank, process_id, payloads))
    while batches:
        window = asyncio.Semaphore(UNACKNOWLEDGED)

        async def send(left: list[pb.Batch] = batches, window: asyncio.Semaphore = window) -> AsyncIterator[pb.Batch]:
            for batch in list(left):
                await window.acquire()
                yield batch

        try:
            async for ack in stub.Ship(send()):
                assert not ack.error, ack.error
                batches = [batch for batch in batches if batch.sequence > ack.sequence]
                window.release()
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            await asyncio.sleep(1)


async def ask(stub: Any) -> tuple[list[float], int]:
    """Ask again and again until cancelled; seconds of each answer and the most bytes that were queued."""
    latencies: list[float] = []
    most_queued = 0
    try:
        while True:
            started = time.perf_counter()
            async for _ in stub.Query(pb.QueryRequest(sql=QUESTION)):
                pass
            latencies.append(time.perf_counter() - started)
            most_queued = max(most_queued, (await stub.Status(pb.StatusRequest())).queued_bytes)
            await asyncio.sleep(ASK_SECONDS)
    except asyncio.CancelledError:
        return latencies, most_queued


def process_info(rank: int) -> ProcessInfo:
    return ProcessInfo("load", 0, rank, f"node{rank // 8}", 1000 + rank, 1, world_size=256, local_rank=rank % 8)


def register_request(rank: int) -> pb.RegisterRequest:
    info = process_info(rank)
    process = pb.Process(
        key=info.key,
        job=info.job,
        rank=rank,
        host=info.host,
        pid=info.pid,
        start_ns=info.start_ns,
        world_size=info.world_size,
        local_rank=info.local_rank,
    )
    return pb.RegisterRequest(process=process, schema_version=SCHEMA_VERSION, layout="bench")


def trace_batches(rank: int, process_id: int, payloads: list[bytes]) -> list[pb.Batch]:
    info = TraceInfo(
        path=f"rank{rank}.json",
        sha256=f"{rank:064}",
        rank=rank,
        world_size=256,
        host=None,
        pid=None,
        gpu="H200",
        versions={},
        process_groups=None,
        base_ns=0,
        window_start_ns=1_790_000_000_000_000_000,
        window_end_ns=1_790_000_001_000_000_000,
        encoding="packed",
        inline=False,
        step_source="profiler",
        status="complete",
        gpu_events=BATCHES * ROWS,
        graph_events=BATCHES * ROWS,
        dropped_events=0,
        overrun_events=0,
        problems=(),
    )
    parts = [(pb.KIND_TRACE_BEGIN, json.dumps(asdict(info)).encode(), b"")]
    parts += [(pb.KIND_GPU_EVENTS, b"", payloads[(rank + part) % DISTINCT]) for part in range(BATCHES)]
    parts += [(pb.KIND_TRACE_END, b"", b"")]
    return [
        pb.Batch(
            process_id=process_id,
            sequence=sequence_of(1, part),
            kind=kind,
            schema_version=SCHEMA_VERSION,
            header=header,
            payload=payload,
        )
        for part, (kind, header, payload) in enumerate(parts)
    ]


def insert() -> dict[str, Any]:
    """The same rows from memory into a table of the same columns, a transaction per batch, with DuckDB's own settings."""
    batches = [make_batch(seed) for seed in range(DISTINCT)]
    count = 256 * BATCHES
    with (
        tempfile.TemporaryDirectory(dir=HERE / "data") as folder,
        duckdb.connect(f"{folder}/peer.duckdb") as connection,
    ):
        connection.register("incoming", batches[0])
        connection.execute(
            "CREATE TABLE event AS SELECT * REPLACE (CAST(kind AS VARCHAR) AS kind, CAST(name AS VARCHAR) AS name)"
            " FROM incoming LIMIT 0"
        )
        started = time.perf_counter()
        for number in range(count):
            connection.register("incoming", batches[number % DISTINCT])
            connection.execute("INSERT INTO event SELECT * FROM incoming")
        seconds = time.perf_counter() - started
    return {"rows": count * ROWS, "rows_per_second": count * ROWS / seconds}


def main() -> None:
    if sys.argv[1] == "insert":
        found = insert()
    else:
        port, ranks, pid = sys.argv[2:]
        found = asyncio.run(ship(port, int(ranks), int(pid)))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
