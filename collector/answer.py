"""The outgoing half of the service: questions in SQL, and how the collector itself is."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import duckdb
import grpc
import grpc.aio
import msgspec
import pyarrow as pa
import structlog

from annotq.agent.errors import AnnotqError
from annotq.collector.batch_queue import BatchQueue
from annotq.collector.config import ServeConfig
from annotq.collector.instance import Instance
from annotq.collector.memory_guard import MARGIN_BYTES, TOO_LARGE, MemoryGuard
from annotq.collector.metrics import Metrics
from annotq.collector.query_errors import asked_error
from annotq.collector.question import Question
from annotq.collector.views import load_views
from annotq.collector.writer import Writer
from annotq.v1 import collector_pb2 as pb

DEFAULT_ROWS = 10_000
DEFAULT_SECONDS = 60.0
# So long a question waits for its turn before it is sent away.
TURN_SECONDS = 2.0
# In every refusal that asking again later may change.
AGAIN = "again in a moment"

Context = grpc.aio.ServicerContext[Any, Any]
log = structlog.get_logger()


class Answer:
    """Query and Status of annotq.v1.Collector."""

    def __init__(
        self, config: ServeConfig, instance: Instance, queue: BatchQueue, writer: Writer, metrics: Metrics
    ) -> None:
        self._config = config
        self._instance = instance
        self._queue = queue
        self._writer = writer
        self._metrics = metrics
        self._started_ns = time.time_ns()
        self._views = sorted(view.name for view in load_views() if view.public)
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for number in range(config.questions):
            self._free.put_nowait(number)
        self._threads = ThreadPoolExecutor(config.questions, "annotq-query")
        self._running: set[Question] = set()
        self._guard = MemoryGuard(instance.memory_bytes + config.queue_bytes + MARGIN_BYTES)
        self._hushed = False
        writer.hush = self._hush

    async def Query(self, request: pb.QueryRequest, context: Context) -> AsyncIterator[pb.QueryReply]:  # noqa: N802
        """Answer one SELECT in pieces; the last reply says whether rows are missing and how long it took."""
        started = time.monotonic()
        status = grpc.StatusCode.CANCELLED
        try:
            async for reply in self._answer(request, started):
                yield reply
            status = grpc.StatusCode.OK
        except _Refused as refused:
            status = refused.status
            await context.abort(status, refused.text)
        finally:
            self._metrics.answered(status.name.lower(), time.monotonic() - started)

    async def table(self, sql: str, parameters: Sequence[object] = (), rows: int = DEFAULT_ROWS) -> pa.Table:
        """The rows of a question that the collector's own page asks: with the limits of all others, and counted with them.

        Raises AnnotqError for one that is refused, or gets no turn.
        """
        started = time.monotonic()
        status = grpc.StatusCode.CANCELLED
        request = pb.QueryRequest(sql=sql, parameters_json=json.dumps(list(parameters)), rows=rows)
        try:
            pieces = [reply.arrow async for reply in self._answer(request, started)]
            status = grpc.StatusCode.OK
        except _Refused as refused:
            status = refused.status
            message, _, hint = refused.text.partition("\n")
            raise AnnotqError(message, hint) from None
        finally:
            self._metrics.answered(status.name.lower(), time.monotonic() - started)
        return pa.ipc.open_stream(b"".join(pieces)).read_all()

    async def _answer(self, request: pb.QueryRequest, started: float) -> AsyncIterator[pb.QueryReply]:
        parameters = _parameters(request.parameters_json)
        rows = min(request.rows if request.rows > 0 else DEFAULT_ROWS, self._config.rows)
        seconds = min(request.seconds if request.seconds > 0 else DEFAULT_SECONDS, self._config.seconds)
        number = await self._turn()
        question = Question(
            self._instance.readers[number],
            request.sql,
            parameters,
            rows,
            self._threads,
            lambda: self._free.put_nowait(number),
        )
        self._running.add(question)
        self._guard.watch(self._running)
        # A timer, not asyncio.timeout: a client that does not read must not keep the cursor either.
        timer = asyncio.get_running_loop().call_later(seconds, question.stop, "time")
        try:
            async for piece in question.pieces():
                yield pb.QueryReply(arrow=piece)
            yield pb.QueryReply(last=True, truncated=question.truncated, seconds=time.monotonic() - started)
        except (AnnotqError, duckdb.Error, OSError, RuntimeError) as error:
            if question.stopped_for == "time":
                raise _out_of_time(seconds) from None
            if question.stopped_for == "memory":
                raise _NO_MEMORY from None
            if question.stopped_for == TOO_LARGE:
                raise _TOO_LARGE from None
            raise self._refused(error) from None
        finally:
            timer.cancel()
            self._running.discard(question)
            question.stop("its client went")

    async def _turn(self) -> int:
        """The number of a free cursor."""
        try:
            async with asyncio.timeout(TURN_SECONDS):
                while self._hushed or self._writer.starving:
                    await asyncio.sleep(0.05)
                return await self._free.get()
        except TimeoutError:
            if self._hushed or self._writer.starving:
                raise _NO_MEMORY from None
            text = f"{self._config.questions} questions are being answered already; ask {AGAIN}."
            raise _Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, text) from None

    async def _hush(self, quiet: bool) -> None:
        """Stop the questions and wait until none runs any more; or let them come again."""
        self._hushed = quiet
        while quiet and self._free.qsize() < self._config.questions:
            for question in self._running:
                question.stop("memory")
            await asyncio.sleep(0.02)

    def _refused(self, error: Exception) -> _Refused:
        """The gRPC status of what went wrong; message and hint are two parts of its text, split by a newline."""
        if isinstance(error, AnnotqError):
            return _Refused(grpc.StatusCode.INVALID_ARGUMENT, f"{error.message}\n{error.hint}")
        found = asked_error(str(error), lambda: self._views, self._config.memory)
        out_of_memory = "Out of Memory Error" in str(error)
        status = grpc.StatusCode.RESOURCE_EXHAUSTED if out_of_memory else grpc.StatusCode.INVALID_ARGUMENT
        return _Refused(status, f"{found.message}\n{found.hint}")

    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.StatusReply:  # noqa: N802
        """The collector itself: queue, commits, rejects, storage."""
        seconds = list(self._writer.commit_seconds)
        size = 0
        for file in (self._config.db, self._config.db.with_name(f"{self._config.db.name}.wal")):
            with suppress(OSError):
                size += file.stat().st_size
        return pb.StatusReply(
            version=version("annotq"),
            store=str(self._config.db),
            store_bytes=size,
            started_ns=self._started_ns,
            now_ns=time.time_ns(),
            queued_batches=self._queue.batches,
            queued_bytes=self._queue.bytes,
            committed_batches=self._writer.committed_batches,
            committed_rows=self._writer.committed_rows,
            rejected=self._writer.rejected,
            commit_seconds_p50=statistics.median(seconds) if seconds else 0.0,
            commit_seconds_max=max(seconds, default=0.0),
            problem=self._writer.problem,
            views=self._views,
        )


class _Refused(Exception):  # noqa: N818 - an answer, not a failure of the collector
    def __init__(self, status: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text.rstrip()


def _out_of_time(seconds: float) -> _Refused:
    return _Refused(
        grpc.StatusCode.DEADLINE_EXCEEDED,
        f"The query was stopped after {seconds:g} s.\n"
        "Ask for less (one job, rank, region or step), or give it more time with --timeout.",
    )


_NO_MEMORY = _Refused(
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    f"The memory was needed to take in batches.\nAsk for less (one job, rank, region or step), or {AGAIN}.",
)


_TOO_LARGE = _Refused(
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    "The question, or one beside it, took more memory than the collector may use.\n"
    "Avoid values that grow with the number of rows: long texts that are joined to longer ones, lists of lists.",
)


def _parameters(text: str) -> Sequence[object]:
    try:
        values: list[str | float | int | bool | None] = msgspec.json.decode(
            text or "[]", type=list[str | float | int | bool | None]
        )
    except msgspec.MsgspecError as error:
        raise _Refused(
            grpc.StatusCode.INVALID_ARGUMENT, f"The parameters are no JSON array of values: {error}"
        ) from None
    return values
