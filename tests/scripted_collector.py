"""A real gRPC server that follows a script: it records what arrives and does what a healthy collector cannot show.

Knows nothing of DuckDB: a batch is "committed" when it is in the list.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from types import TracebackType
from typing import Any, Self

import grpc

from annotq.v1 import collector_pb2 as pb
from annotq.v1 import collector_pb2_grpc

Refusal = tuple[grpc.StatusCode, str]


class ScriptedCollector(collector_pb2_grpc.CollectorServicer):  # type: ignore[misc]
    """A context manager. batches: what was committed, in order; received: every delivery, repeated ones too.

    The script: refuse_process and refuse_batch are asked about each; answer is a gate that acknowledgements wait for;
    break_after ends every stream after so many acknowledgements (None: never), the batch after them is committed unheard.
    """

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self.clock = clock
        self.port = 0
        self.registered: list[pb.RegisterRequest] = []
        self.batches: list[pb.Batch] = []
        self.received: list[pb.Batch] = []
        self.beats: list[pb.BeatRequest] = []
        self.streams = 0
        self.refuse_process: Callable[[pb.RegisterRequest], Refusal | None] = lambda _: None
        self.refuse_batch: Callable[[pb.Batch], str] = lambda _: ""
        self.answer = threading.Event()
        self.answer.set()
        self.break_after: int | None = None
        self._committed: dict[int, int] = {}
        self._server: grpc.Server | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.answer.set()
        self.close()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def open(self) -> None:
        """Listen, on the same port as before."""
        options = [("grpc.so_reuseport", 0), ("grpc.http2.min_ping_interval_without_data_ms", 5_000)]
        self._server = grpc.server(futures.ThreadPoolExecutor(16), options=options)
        collector_pb2_grpc.add_CollectorServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.start()

    def close(self) -> None:
        """Cut all connections and stop listening."""
        if self._server is not None:
            self._server.stop(grace=0).wait()
            self._server = None

    def forget_everything(self) -> None:
        """Become a collector with a new, empty store."""
        with self._lock:
            self.batches.clear()
            self._committed.clear()

    def of(self, process_id: int) -> list[pb.Batch]:
        """The committed batches of a process."""
        return [batch for batch in self.batches if batch.process_id == process_id]

    def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterReply:  # noqa: N802
        refusal = self.refuse_process(request)
        if refusal is not None:
            context.abort(*refusal)
        with self._lock:
            self.registered.append(request)
            process_id = 1000 + request.process.rank
            return pb.RegisterReply(process_id=process_id, committed_sequence=self._committed.get(process_id, 0))

    def Ship(self, requests: Iterator[pb.Batch], context: Any) -> Iterator[pb.Ack]:  # noqa: N802
        self.streams += 1
        for count, batch in enumerate(requests):
            error = self._take(batch)
            while not self.answer.wait(0.1):
                if not context.is_active():
                    return
            if self.break_after is not None and count >= self.break_after:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the script says so")
            yield pb.Ack(process_id=batch.process_id, sequence=batch.sequence, error=error)

    def SyncClock(self, request: pb.Ping, context: Any) -> pb.Pong:  # noqa: N802
        return pb.Pong(received_ns=self.clock(), answered_ns=self.clock())

    def Beat(self, request: pb.BeatRequest, context: Any) -> pb.BeatReply:  # noqa: N802
        self.beats.append(request)
        return pb.BeatReply()

    def _take(self, batch: pb.Batch) -> str:
        with self._lock:
            self.received.append(batch)
            if batch.sequence <= self._committed.get(batch.process_id, 0):
                return ""
            self._committed[batch.process_id] = batch.sequence
            error = self.refuse_batch(batch)
            if not error:
                self.batches.append(batch)
            return error
