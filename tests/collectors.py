"""A real collector in a process of its own, and what a shipper would send to it, one batch at a time."""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import pyarrow as pa
from traces import kernel, write_trace

from annotq.agent.batches import ANNOTATION, GPU_EVENT, GRAPH_NODE, HOST_SPAN
from annotq.agent.kineto import TraceInfo, read_trace
from annotq.agent.process_info import ProcessInfo
from annotq.agent.wire import SCHEMA_VERSION, encode, sequence_of
from annotq.v1 import collector_pb2 as pb
from annotq.v1 import collector_pb2_grpc

START_SECONDS = 30
CALL_SECONDS = 30


class Collector:
    """`annotq serve` on a free loopback port. A context manager: leaving it kills the process if it still runs."""

    def __init__(
        self,
        db: Path,
        *options: str,
        credentials: grpc.ChannelCredentials | None = None,
        environment: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> None:
        self.db = db
        port_file = db.with_name(f"{db.name}.port")
        port_file.unlink(missing_ok=True)
        command = [*before, sys.executable, "-m", "annotq.cli", "serve", "--db", str(db)]
        command += ["--listen", "127.0.0.1:0", "--port-file", str(port_file), *options]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ANNOTQ_")}
        self.log = db.with_name(f"{db.name}.log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, env={**clean, **(environment or {})})
        deadline = time.monotonic() + START_SECONDS
        while not port_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise RuntimeError(f"the collector did not start: {self.log.read_text()}")
            time.sleep(0.02)
        port, *more = port_file.read_text().split()
        self.address = f"127.0.0.1:{port}"
        self.http = f"127.0.0.1:{more[0]}" if more else ""  # with --http
        self.channel = connect(self.address, credentials)
        self.stub = collector_pb2_grpc.CollectorStub(self.channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.close()
        self.kill()

    def kill(self) -> None:
        """SIGKILL, as a machine that loses its power."""
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)

    def ask(self, sql: str, **fields: Any) -> list[tuple[Any, ...]]:
        """The rows of a question over gRPC. Raises grpc.RpcError."""
        return [tuple(row.values()) for row in self.table(sql, **fields).to_pylist()]

    def table(self, sql: str, **fields: Any) -> pa.Table:
        replies = list(self.stub.Query(pb.QueryRequest(sql=sql, **fields), timeout=CALL_SECONDS))
        return pa.ipc.open_stream(b"".join(reply.arrow for reply in replies)).read_all()

    def status(self) -> pb.StatusReply:
        return self.stub.Status(pb.StatusRequest(), timeout=CALL_SECONDS)

    def register(self, process: ProcessInfo, layout: str = "test") -> pb.RegisterReply:
        return self.stub.Register(register_request(process, layout), timeout=CALL_SECONDS)

    def ship(self, batches: Iterable[pb.Batch], timeout: float = CALL_SECONDS) -> list[pb.Ack]:
        """Send the batches on a stream of their own; all acknowledgements. Raises grpc.RpcError."""
        return list(self.stub.Ship(iter(batches), timeout=timeout))


class Feed:
    """An open stream: `send` a batch at a time, read `acks` when it suits."""

    def __init__(self, collector: Collector, timeout: float = CALL_SECONDS) -> None:
        self._batches: queue.SimpleQueue[pb.Batch | None] = queue.SimpleQueue()
        self.acks = collector.stub.Ship(iter(self._batches.get, None), timeout=timeout)

    def send(self, *batches: pb.Batch) -> None:
        for item in batches:
            self._batches.put(item)

    def close(self) -> None:
        """Say that nothing more comes; the acknowledgements go on."""
        self._batches.put(None)


def connect(address: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.Channel:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    if credentials is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, credentials, options)


def process(rank: int = 0, **fields: Any) -> ProcessInfo:
    """A process of job "live"."""
    given: dict[str, Any] = {"job": "live", "attempt": 0, "host": "node-a", "pid": 100 + rank, "start_ns": 1, **fields}
    return ProcessInfo(rank=rank, **given)


def register_request(info: ProcessInfo, layout: str = "test") -> pb.RegisterRequest:
    message = pb.Process(
        key=info.key,
        job=info.job,
        attempt=info.attempt,
        rank=info.rank,
        world_size=info.world_size,
        local_rank=info.local_rank,
        host=info.host,
        pid=info.pid,
        start_ns=info.start_ns,
        gpu=info.gpu,
        versions_json=json.dumps(dict(info.versions)),
        coordinates_json=json.dumps(dict(info.coordinates)),
        annotation_ids=info.annotation_ids,
    )
    return pb.RegisterRequest(process=message, schema_version=SCHEMA_VERSION, layout=layout)


def batch(process_id: int, sequence: int, kind: int, header: Any = None, payload: bytes = b"") -> pb.Batch:
    return pb.Batch(
        process_id=process_id,
        sequence=sequence,
        kind=kind,
        schema_version=SCHEMA_VERSION,
        header=b"" if header is None else json.dumps(header).encode(),
        payload=payload,
    )


def note(process_id: int, sequence: int, text: str) -> pb.Batch:
    """The smallest useful batch."""
    return batch(process_id, sequence, pb.KIND_NOTE, {"text": text})


def trace_batches(process_id: int, path: Path, rank: int, number: int = 1, rows: int = 100_000) -> Iterator[pb.Batch]:
    """A trace file as a shipper sends it: begin, pieces of at most so many rows, end."""
    with read_trace(path, rank=rank) as trace:
        events = pa.Table.from_batches(list(trace.gpu_events()), GPU_EVENT)
        spans = pa.Table.from_batches(list(trace.host_spans()), HOST_SPAN)
        annotations, nodes, info = trace.annotations(), trace.observed_nodes(), trace.info
    yield from pieces(process_id, info, events, spans, annotations, nodes, number, rows)


def pieces(
    process_id: int,
    info: TraceInfo,
    events: pa.Table,
    spans: pa.Table | None = None,
    annotations: pa.RecordBatch | None = None,
    nodes: pa.RecordBatch | None = None,
    number: int = 1,
    rows: int = 100_000,
) -> Iterator[pb.Batch]:
    """The batches of one trace in spool file `number`."""
    content: list[tuple[int, Any, bytes]] = [(pb.KIND_TRACE_BEGIN, asdict(info), b"")]
    for first in range(0, events.num_rows, rows):
        content.append((pb.KIND_GPU_EVENTS, None, encode(events.slice(first, rows), GPU_EVENT)))
    if spans is not None and spans.num_rows:
        content.append((pb.KIND_HOST_SPANS, None, encode(spans, HOST_SPAN)))
    if annotations is not None and annotations.num_rows:
        content.append((pb.KIND_TRACE_ANNOTATIONS, None, encode([annotations], ANNOTATION)))
    if nodes is not None and nodes.num_rows:
        content.append((pb.KIND_TRACE_NODES, None, encode([nodes], GRAPH_NODE)))
    content.append((pb.KIND_TRACE_END, None, b""))
    for part, (kind, header, payload) in enumerate(content):
        yield batch(process_id, sequence_of(number, part), kind, header, payload)


def small_trace(folder: Path, rank: int = 0, kernels: int = 10, start_us: float = 1000) -> Path:
    """A trace of a few eager kernels."""
    events = [kernel(f"k{i % 3}", start_us + 10 * i) for i in range(kernels)]
    folder.mkdir(parents=True, exist_ok=True)
    return write_trace(folder / f"rank{rank}.{start_us:.0f}.json", events, rank=rank)


def events_table(rows: int, start_ns: int = 1_790_000_000_000_000_000) -> pa.Table:
    """So many kernels, one after the other."""
    columns: dict[str, Any] = {
        "start_ns": pa.array(range(start_ns, start_ns + 1000 * rows, 1000)),
        "duration_ns": pa.array([500] * rows),
        "kind": pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["kernel"])),
        "name": pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["gemm"])),
        "in_graph": pa.array([False] * rows),
        "overrun": pa.array([False] * rows),
    }
    arrays = [columns.get(field.name, pa.nulls(rows, field.type)) for field in GPU_EVENT]
    return pa.Table.from_arrays(arrays, schema=GPU_EVENT)


def noisy_table(rows: int, start_ns: int, seed: int) -> pa.Table:
    """Kernels with random numbers in every column that takes some: nothing of it compresses."""
    draw = random.Random(seed)
    table = events_table(rows, start_ns)
    for position, field in enumerate(GPU_EVENT):
        if field.type == pa.int64() and field.nullable and field.name != "step":
            table = table.set_column(position, field, pa.array([draw.getrandbits(62) for _ in range(rows)]))
    return table


def trace_info(rows: int, sha256: str = "a" * 64, **fields: Any) -> TraceInfo:
    """The facts of a trace of events_table(rows)."""
    start_ns = fields.pop("window_start_ns", 1_790_000_000_000_000_000)
    info = TraceInfo(
        path=f"{sha256[:8]}.json",
        sha256=sha256,
        rank=0,
        world_size=None,
        host=None,
        pid=None,
        gpu=None,
        versions={},
        process_groups=None,
        base_ns=0,
        window_start_ns=start_ns,
        window_end_ns=start_ns + 1000 * rows,
        encoding="none",
        inline=False,
        step_source="none",
        status="complete",
        gpu_events=rows,
        graph_events=0,
        dropped_events=0,
        overrun_events=0,
        problems=(),
    )
    return replace(info, **fields)
