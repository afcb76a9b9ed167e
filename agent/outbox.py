"""The batches on their way: handed over, perhaps sent, not yet acknowledged. Bounded: whoever hands over waits for room."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator

from annotq.v1 import collector_pb2 as pb

# A collector commits in groups; so much keeps it busy while an answer travels, and is all that a shipper holds.
MOST_BATCHES = 16
MOST_BYTES = 64 << 20

_LOOK_SECONDS = 0.2  # how often a waiting put() asks whether it is to stop


class StoppedError(Exception):
    """The shipper is to end: nothing more is taken."""


class RewoundError(Exception):
    """The collector no longer has what it acknowledged of this process: begin again where it says it is."""


class Outbox:
    """Thread-safe. One thread hands batches over, one stream at a time takes them, a third acknowledges."""

    def __init__(
        self, stopped: Callable[[], bool], most_batches: int = MOST_BATCHES, most_bytes: int = MOST_BYTES
    ) -> None:
        self._most_batches = most_batches
        self._most_bytes = most_bytes
        self._changed = threading.Condition()
        self._unacknowledged: dict[tuple[int, int], pb.Batch] = {}  # in the order in which they were handed over
        self._bytes = 0
        self._unsent: deque[pb.Batch] = deque()
        self._rewound: set[int] = set()
        self._stopped = stopped
        self._stream = 0

    def put(self, batch: pb.Batch) -> None:
        """Take a batch, as soon as there is room. Raises StoppedError and RewoundError."""
        size = batch.ByteSize()
        with self._changed:
            while True:
                if self._stopped():
                    raise StoppedError
                if batch.process_id in self._rewound:
                    raise RewoundError
                if self._has_room(size):
                    break
                self._changed.wait(_LOOK_SECONDS)
            self._unacknowledged[batch.process_id, batch.sequence] = batch
            self._bytes += size
            self._unsent.append(batch)
            self._changed.notify_all()

    def stream(self) -> Iterator[pb.Batch]:
        """Everything unacknowledged in order, then what is handed over, until close_stream() or the next stream()."""
        with self._changed:
            self._stream += 1
            mine = self._stream
            self._unsent = deque(self._unacknowledged.values())
            self._changed.notify_all()
        return self._batches(mine)

    def close_stream(self) -> None:
        """End the stream that is open; its batches stay here."""
        with self._changed:
            self._stream += 1
            self._changed.notify_all()

    def acknowledge(self, process_id: int, sequence: int) -> bool:
        """Let go of a batch; False when it was not here."""
        with self._changed:
            batch = self._unacknowledged.pop((process_id, sequence), None)
            if batch is not None:
                self._bytes -= batch.ByteSize()
                self._changed.notify_all()
            return batch is not None

    def waiting(self, process_id: int) -> list[int]:
        """The unacknowledged sequences of a process, ascending."""
        with self._changed:
            return [sequence for process, sequence in self._unacknowledged if process == process_id]

    def processes(self) -> set[int]:
        """Which processes have unacknowledged batches."""
        with self._changed:
            return {process for process, _ in self._unacknowledged}

    def rewind(self, process_id: int) -> None:
        """Drop the batches of a process and refuse more of it until restart()."""
        with self._changed:
            for process, sequence in list(self._unacknowledged):
                if process == process_id:
                    self._bytes -= self._unacknowledged.pop((process, sequence)).ByteSize()
            self._unsent = deque(batch for batch in self._unsent if batch.process_id != process_id)
            self._rewound.add(process_id)
            self._changed.notify_all()

    def restart(self, process_id: int) -> None:
        """Take batches of a rewound process again."""
        with self._changed:
            self._rewound.discard(process_id)

    def rewound(self) -> set[int]:
        with self._changed:
            return set(self._rewound)

    def wait_for_batches(self, seconds: float) -> bool:
        """Wait until something is unacknowledged; False when there was nothing for so long."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._unacknowledged), seconds)

    def wait_until_empty(self, seconds: float) -> bool:
        """Wait until everything is acknowledged; False when it was not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._unacknowledged, seconds)

    def _has_room(self, size: int) -> bool:
        if not self._unacknowledged:
            return True
        return len(self._unacknowledged) < self._most_batches and self._bytes + size <= self._most_bytes

    def _batches(self, mine: int) -> Iterator[pb.Batch]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._unsent) or self._stream != mine)
                if self._stream != mine:
                    return
                batch = self._unsent.popleft()
            yield batch
