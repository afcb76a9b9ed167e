"""What waits for the writer: batches in the order of their arrival, bounded in bytes, and calls, which go first."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import duckdb

from annotq.collector.decode import Decoded, decode
from annotq.collector.process_state import Processes
from annotq.v1.collector_pb2 import Batch

# Decoded batches take 20 times the room of those on the wire, so only the next few are decoded ahead of the writer.
DECODED_AHEAD = 4
DECODERS = 2
# Per batch, beside its bytes: so that a flood of tiny ones is bounded too.
OVERHEAD_BYTES = 4_096


class StaleBatchError(Exception):
    """A batch of a delivery that another one has replaced; nobody waits for its acknowledgement."""


@dataclass
class Shipment:
    """A batch that waits. done: completed on the event loop with the error text, empty when it was committed."""

    batch: Batch
    epoch: int
    done: asyncio.Future[str]
    decoded: Future[Decoded] | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.batch.payload) + len(self.batch.header) + OVERHEAD_BYTES


@dataclass
class Call:
    """Something to do in the writer's transaction; may run more than once when the disk is full. done: with its result."""

    work: Callable[[duckdb.DuckDBPyConnection, Processes], Any]
    done: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class BatchQueue:
    """Filled on the event loop, emptied by the writer's thread. A batch counts until it is committed."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self.batches = 0
        self._waiting: deque[Shipment] = deque()
        self._ahead: deque[Shipment] = deque()
        self._calls: deque[Call] = deque()
        self._closed = False
        self._changed = threading.Condition()
        self._loop = asyncio.get_running_loop()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._decoders = ThreadPoolExecutor(DECODERS, "annotq-decode")

    async def room(self) -> None:
        """Wait until another batch may be read off the wire."""
        await self._has_room.wait()

    @property
    def overloaded(self) -> bool:
        """Whether so many streams had a batch under way when the queue filled up that one more is too many."""
        return self.bytes > 2 * self.limit_bytes

    def put(self, shipment: Shipment) -> None:
        with self._changed:
            self._waiting.append(shipment)
            self.batches += 1
            self.bytes += shipment.size_bytes
            self._changed.notify()
        if self.bytes >= self.limit_bytes:
            self._has_room.clear()

    def call(self, call: Call) -> None:
        with self._changed:
            self._calls.append(call)
            self._changed.notify()

    def wait(self) -> bool:
        """Block until there is something to do; False once the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._calls or self._waiting or self._ahead)
            return bool(self._calls or self._waiting or self._ahead)

    @property
    def is_last(self) -> bool:
        """Whether nothing comes after what the writer has taken."""
        return self._closed and not (self._calls or self._waiting or self._ahead)

    def take_calls(self) -> list[Call]:
        with self._changed:
            calls = list(self._calls)
            self._calls.clear()
        return calls

    def take(self) -> Shipment | None:
        """The next batch, being decoded or decoded; None when nothing waits."""
        with self._changed:
            while self._waiting and len(self._ahead) <= DECODED_AHEAD:
                shipment = self._waiting.popleft()
                shipment.decoded = self._decoders.submit(decode, shipment.batch)
                self._ahead.append(shipment)
            return self._ahead.popleft() if self._ahead else None

    def put_back(self, calls: list[Call], shipments: list[Shipment]) -> None:
        """What could not be committed just now goes first the next time."""
        with self._changed:
            self._calls.extendleft(reversed(calls))
            self._ahead.extendleft(reversed(shipments))

    def finished(self, shipments: list[Shipment]) -> None:
        """These are committed or refused."""
        with self._changed:
            self.batches -= len(shipments)
            self.bytes -= sum(shipment.size_bytes for shipment in shipments)
            room = self.bytes < self.limit_bytes
        if room:
            self._loop.call_soon_threadsafe(self._open)

    def _open(self) -> None:
        if self.bytes < self.limit_bytes:
            self._has_room.set()

    def close(self) -> None:
        """Nothing more comes; the writer ends once it has done what is there."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def shut_down(self) -> None:
        self._decoders.shutdown(wait=False, cancel_futures=True)
