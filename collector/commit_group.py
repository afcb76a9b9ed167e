"""Which entries of the queue share a transaction."""

from __future__ import annotations

import time
from collections.abc import Iterator

from annotq.collector.batch_queue import BatchQueue, Call, Shipment
from annotq.collector.decode import BadBatchError
from annotq.v1.collector_pb2 import Batch

# One transaction ends at the first of these. A batch of 100,000 rows takes 90 ms, a commit 1 ms on a local disk and tens of
# milliseconds on a network volume.
GROUP_ROWS = 400_000
GROUP_BYTES = 64 << 20
GROUP_SECONDS = 0.2


class Group:
    """The entries of one transaction, taken off the queue as it goes on.

    alone: only one entry. culprit: why the one batch is refused. called and taken: the entries so far; refused: batches with
    the reason.
    """

    def __init__(self, queue: BatchQueue, alone: bool, culprit: BadBatchError | None = None) -> None:
        self.called: list[Call] = []
        self.taken: list[Shipment] = []
        self.refused: list[tuple[Batch, str]] = []
        self.rows = 0
        self.bytes = 0
        self.culprit = culprit
        self._queue = queue
        self._alone = alone
        self._ends = time.monotonic() + GROUP_SECONDS

    def calls(self) -> list[Call]:
        """Take the calls that wait; they go before the batches."""
        calls = self._queue.take_calls()
        if self._alone:
            self._queue.put_back(calls[1:], [])
            calls = calls[:1]
        self.called = calls
        return calls

    def shipments(self) -> Iterator[Shipment]:
        """Take batches one by one until there are enough or none waits."""
        while not self._full():
            shipment = self._queue.take()
            if shipment is None:
                return
            self.taken.append(shipment)
            self.bytes += shipment.size_bytes
            yield shipment

    def _full(self) -> bool:
        if self._alone and (self.called or self.taken):
            return True
        return self.rows >= GROUP_ROWS or self.bytes >= GROUP_BYTES or time.monotonic() >= self._ends
