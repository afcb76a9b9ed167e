"""One process on its way to the collector: which of its files are under way, and what becomes of each when it is acknowledged."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from annotq.agent.collector_end import CollectorEnd
from annotq.agent.outbox import Outbox
from annotq.agent.spool_reader import BAD, REFUSED, ProcessFolder, SpoolFile
from annotq.agent.wire import file_of
from annotq.v1 import collector_pb2 as pb

_log = logging.getLogger(__name__)


class AbandonedError(Exception):
    """The collector refused the file that is being sent: the rest of it need not follow."""


@dataclass
class _UnderWay:
    """file None: the end of a process that could not write its own. last: of its batches; None while they are made."""

    file: SpoolFile | None
    last: int | None = None
    bad: str | None = None
    refused: str | None = None
    hopeless: bool = False  # its first batch was refused


class Shipment:
    """A registered process. Made and filled by the shipper's main thread, acknowledged by its delivery."""

    def __init__(self, folder: ProcessFolder, reply: pb.RegisterReply, outbox: Outbox) -> None:
        self.folder = folder
        self.process_id = reply.process_id
        self.end = CollectorEnd(reply.process_id, reply.committed_sequence, self._deliver)
        self.files = 0  # acknowledged
        self.refused = 0  # of them refused, or unreadable
        self.dropped = 0
        self.ended = False  # the end of the process is acknowledged
        self._outbox = outbox
        self._lock = threading.Lock()
        self._acknowledged = reply.committed_sequence
        self._under_way: dict[int, _UnderWay] = {}
        self._last_number = 0

    def waiting(self) -> list[SpoolFile]:
        """The files of the folder that were not handed over yet, by number."""
        return [file for file in self.folder.files() if file.number > self._last_number]

    def under_way(self) -> bool:
        """Whether anything that was handed over is unacknowledged."""
        with self._lock:
            return bool(self._under_way)

    def begin(self, file: SpoolFile) -> None:
        """What the end is given from now on comes from this file."""
        with self._lock:
            self._under_way[file.number] = _UnderWay(file)
        self._last_number = file.number
        self.end.begin_file(file.number)

    def begin_end(self) -> None:
        """The same for the end of a process that could not write it: numbered after everything of it."""
        number = 1 + max(self._last_number, file_of(self.end.committed)[0])
        with self._lock:
            self._under_way[number] = _UnderWay(None)
        self._last_number = number
        self.end.begin_file(number)

    def vanished(self) -> None:
        """The file begun last is not there any more and nothing of it was sent."""
        with self._lock:
            self._under_way.pop(self._last_number, None)

    def handed_over(self, bad: str | None = None) -> None:
        """All batches of the file begun last were made. bad: it is not what its name says, and why."""
        with self._lock:
            entry = self._under_way[self._last_number]
            entry.last, entry.bad = self.end.sent_sequence, bad
            self._settle(self._last_number, entry)

    def acknowledge(self, ack: pb.Ack) -> None:
        """Take note of an answer; deletes the file whose last batch it was, or sets it aside when it was refused."""
        number, part = file_of(ack.sequence)
        with self._lock:
            self._acknowledged = max(self._acknowledged, ack.sequence)
            entry = self._under_way.get(number)
            if entry is None:
                return
            if ack.error and entry.refused is None:
                name = entry.file.path.name if entry.file else "the end"
                _log.error("refused: %s of %s: %s", name, self.folder.path.name, ack.error)
                entry.refused = ack.error
                entry.hopeless = part == 0
            self._settle(number, entry)

    def _deliver(self, batch: pb.Batch) -> None:
        with self._lock:
            if self._under_way[file_of(batch.sequence)[0]].hopeless:
                raise AbandonedError
        self._outbox.put(batch)

    def _settle(self, number: int, entry: _UnderWay) -> None:
        if entry.last is None or self._acknowledged < entry.last:
            return
        del self._under_way[number]
        try:
            self._put_away(entry)
        except OSError as error:
            # Not sent again by this shipper, and skipped by the next: the collector has it.
            _log.error("%s is acknowledged but cannot be put away: %s", self.folder.path, error)

    def _put_away(self, entry: _UnderWay) -> None:
        if entry.file is None or entry.file.kind == "end":
            # The file stays until the whole folder goes: without it, the process would look as if it had been killed.
            self.ended = True
            self.files += entry.file is not None
            return
        self.files += 1
        reason = entry.refused or entry.bad
        if reason is None:
            self.folder.remove(entry.file)
        else:
            self.refused += 1
            self.folder.set_aside(entry.file, REFUSED if entry.refused else BAD, reason)
