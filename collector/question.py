"""One question to the collector, run in a thread of its own and handed over as pieces of an Arrow IPC stream."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from io import RawIOBase
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from annotq.collector.admission import admitted
from annotq.collector.bounds import BATCH_ROWS, at_most

if TYPE_CHECKING:
    from typing_extensions import Buffer

PIECE_BYTES = 1 << 20
# Pieces that wait for a client that reads slowly; the query waits too, within its time limit.
PIECES_AHEAD = 4
INTERRUPT_SECONDS = 0.05


class _StoppedError(RuntimeError):
    """The question was stopped from outside."""


class Question:
    """A statement on one read-only cursor, running from the start on.

    Its thread ends by itself or soon after `stop`, whether anybody reads the pieces or not; on_end is called then, on the
    event loop. stopped_for: what `stop` was told, None when it was not called.
    """

    def __init__(
        self,
        cursor: duckdb.DuckDBPyConnection,
        sql: str,
        parameters: Sequence[object],
        rows: int,
        executor: Executor,
        on_end: Callable[[], None],
    ) -> None:
        self.truncated = False
        self.stopped_for: str | None = None
        self._cursor = cursor
        self._sql = sql
        self._parameters = parameters
        self._rows = rows
        self._room = threading.Semaphore(PIECES_AHEAD)
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._thread = self._loop.run_in_executor(executor, self._run)
        self._thread.add_done_callback(lambda thread: self._ended(thread, on_end))

    async def pieces(self) -> AsyncIterator[bytes]:
        """The pieces, at most PIECE_BYTES each. Raises what the thread met: AnnotqError, duckdb.Error, OSError, RuntimeError."""
        while (piece := await self._pieces.get()) is not None:
            yield piece
            self._room.release()
        await self._thread

    def stop(self, why: str) -> None:
        """Let the thread end, and `pieces` with an error, unless it is done already."""
        if not self._thread.done() and self.stopped_for is None:
            self.stopped_for = why
            self._interrupt()

    def _interrupt(self) -> None:
        # Again and again: an interrupt that comes before the query has begun is forgotten.
        if not self._thread.done():
            self._cursor.interrupt()
            self._loop.call_later(INTERRUPT_SECONDS, self._interrupt)

    def _ended(self, thread: asyncio.Future[None], on_end: Callable[[], None]) -> None:
        self._pieces.put_nowait(None)
        if not thread.cancelled():
            thread.exception()  # looked at, so that asyncio does not complain when nobody reads the pieces to their end
        on_end()

    def _run(self) -> None:
        _end_transaction(self._cursor)
        # A transaction that can only read: whatever the statement is, it changes nothing.
        self._cursor.execute("BEGIN TRANSACTION READ ONLY")
        try:
            text = admitted(self._cursor, self._sql)
            relation = at_most(self._cursor, text, self._parameters, self._rows + 1)
            with relation.to_arrow_reader(BATCH_ROWS) as reader:
                self._send(reader)
            del relation
        finally:
            _end_transaction(self._cursor)

    def _send(self, reader: pa.RecordBatchReader) -> None:
        sink = _Pieces(self._hand_over)
        left = self._rows
        with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), reader.schema) as writer:
            for batch in reader:
                self.truncated = batch.num_rows > left
                writer.write_batch(batch.slice(0, left))
                left -= min(left, batch.num_rows)
                if self.truncated:
                    break
        sink.flush_rest()

    def _hand_over(self, piece: bytes) -> None:
        while not self._room.acquire(timeout=INTERRUPT_SECONDS):
            if self.stopped_for is not None:
                raise _StoppedError
        self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)


def _end_transaction(cursor: duckdb.DuckDBPyConnection) -> None:
    """Roll back what the cursor is in, if anything; an interrupt that comes late may hit the first try."""
    for _ in range(3):
        with suppress(duckdb.Error):
            cursor.execute("ROLLBACK")
            return


class _Pieces(RawIOBase):
    """A file for Arrow to write to, cut into pieces."""

    def __init__(self, hand_over: Callable[[bytes], None]) -> None:
        self._hand_over = hand_over
        self._buffer = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        self._buffer += data
        while len(self._buffer) >= PIECE_BYTES:
            self._cut(PIECE_BYTES)
        return memoryview(data).nbytes

    def flush_rest(self) -> None:
        if self._buffer:
            self._cut(len(self._buffer))

    def _cut(self, size: int) -> None:
        self._hand_over(bytes(self._buffer[:size]))
        del self._buffer[:size]
