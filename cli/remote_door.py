"""The SQL door of a collector: the same questions as collector.query.Door answers from a file, asked over gRPC."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
import pyarrow as pa

from annotq.agent.channel import Access, access, as_error, open_channel, stub_on
from annotq.agent.errors import EXIT_UNREACHABLE, AnnotqError
from annotq.collector.query import Answer, Limits
from annotq.v1 import collector_pb2

# The collector itself ends a query that is out of time; this much later the client gives up on the collector.
ANSWER_SECONDS = 10.0

STATUS_SECONDS = 10.0


class RemoteDoor:
    """One collector, asked for its store. A context manager; threads may ask at the same time.

    Token and TLS come from the environment (see agent.channel.access) unless `way` has them, and the way to go; `endpoint`
    is only its name then. Raises AnnotqError for an endpoint that is none.
    """

    def __init__(self, endpoint: str, limits: Limits | None = None, way: Access | None = None) -> None:
        self.endpoint = endpoint
        self.limits = limits or Limits()
        self._channel = open_channel(way or access(endpoint))
        self._stub = stub_on(self._channel)
        self._stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def stop(self) -> None:
        """End the questions of other threads, which get an AnnotqError; from now on every question does."""
        self._stopped = True
        self._channel.close()

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"the collector at {self.endpoint}"

    def ask(self, sql: str, parameters: Sequence[object] = (), *, limits: Limits | None = None) -> Answer:
        """Run one SELECT or EXPLAIN; `?` in the text are filled from `parameters`.

        limits: rows and seconds are asked for, memory is the collector's own.
        Raises AnnotqError: collector away or unwilling, statement refused, error in the SQL, out of time or memory.
        """
        limits = limits or self.limits
        request = collector_pb2.QueryRequest(
            sql=sql, parameters_json=json.dumps(list(parameters)), rows=limits.rows, seconds=limits.seconds
        )
        try:
            call = self._stub.Query(request, timeout=limits.seconds + ANSWER_SECONDS)
        except ValueError:  # the channel is closed
            if not self._stopped:
                raise
            raise AnnotqError("No more questions are asked.", "The program is about to end.") from None
        try:
            pieces = _Pieces(call)
            file: Any = pieces  # pyarrow's stubs ask for an IOBase, pyarrow for read()
            with pa.ipc.open_stream(pa.PythonFile(file, mode="r")) as reader:
                table = reader.read_all()
            last = pieces.last()
        except grpc.RpcError as error:
            raise rpc_error(error, self.endpoint) from None
        except pa.ArrowInvalid as error:
            raise AnnotqError(f"The answer of the collector at {self.endpoint} is damaged: {error}") from None
        finally:
            call.cancel()  # after Ctrl-C the collector need not go on
        return Answer(table, last.truncated, last.seconds)

    def views(self) -> list[str]:
        """Names of the public views in the collector's store, sorted."""
        return sorted(self.status().views)

    def status(self) -> collector_pb2.StatusReply:
        """How the collector itself is. Raises AnnotqError as ask does."""
        try:
            reply: collector_pb2.StatusReply = self._stub.Status(collector_pb2.StatusRequest(), timeout=STATUS_SECONDS)
        except grpc.RpcError as error:
            raise rpc_error(error, self.endpoint) from None
        return reply


def rpc_error(error: grpc.RpcError, endpoint: str) -> AnnotqError:
    """What a failed call means to somebody who asks, with the next thing to try."""
    code, details = error.code(), (error.details() or "").strip()
    message, _, hint = details.partition("\n")
    if code == grpc.StatusCode.UNAVAILABLE:
        return AnnotqError(
            f"The collector at {endpoint} cannot be reached ({message.rpartition(': ')[2].rstrip('.')}).",
            "Start one with annotq serve, or read a store file with --db FILE. annotq doctor looks for the cause.",
            EXIT_UNREACHABLE,
        )
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return AnnotqError(
            f"What answers at {endpoint} is no annotq collector.", "Check --endpoint and ANNOTQ_ENDPOINT."
        )
    if code == grpc.StatusCode.DEADLINE_EXCEEDED and hint:
        return AnnotqError(message, hint)  # the collector's own words: the query, not the collector, was too slow
    return as_error(error, endpoint)


class _Pieces:
    """The Arrow bytes of an answer as a file for pa.PythonFile: they are read as they come, not gathered first."""

    closed = False

    def __init__(self, replies: Iterator[Any]) -> None:
        self._replies = replies
        self._rest = memoryview(b"")
        self._last: collector_pb2.QueryReply | None = None

    def read(self, size: int) -> bytes:
        """As many bytes as were asked for, fewer only at the end."""
        found = bytearray()
        while len(found) < size and self._more():
            count = size - len(found)
            found += self._rest[:count]
            self._rest = self._rest[count:]
        return bytes(found)

    def close(self) -> None:
        self.closed = True

    def last(self) -> collector_pb2.QueryReply:
        """The closing reply. Raises AnnotqError when the answer ends without one: rows may be missing."""
        while self._last is None and self._more():
            self._rest = memoryview(b"")
        if self._last is None:
            raise AnnotqError("The collector's answer ended too early.", "Ask again.")
        return self._last

    def _more(self) -> bool:
        """Whether there are bytes in the rest, fetched when there are none."""
        while not self._rest and self._last is None:
            reply = next(self._replies, None)
            if reply is None:
                return False
            self._rest = memoryview(reply.arrow)
            if reply.last:
                self._last = reply
        return bool(self._rest)
