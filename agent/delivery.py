"""Keeps one stream to the collector: sends what is in the outbox, takes the acknowledgements, starts again when it breaks.

After a break every process with unacknowledged batches is registered again; the collector says what it has committed, the
rest is sent again in order.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

import grpc

from annotq.agent.backoff import Backoff
from annotq.agent.event_batches import LAYOUT
from annotq.agent.outbox import Outbox
from annotq.agent.process_info import ProcessInfo
from annotq.agent.wire import SCHEMA_VERSION
from annotq.v1 import collector_pb2 as pb

CALL_SECONDS = 10  # for a call that is answered at once by a collector that lives

_LOOK_SECONDS = 0.5
_log = logging.getLogger(__name__)


class UnsendableError(Exception):
    """No request can carry what this process says of itself."""


class Delivery:
    """One per shipper. `acknowledged` is called from the delivery's own thread, once per batch, in order."""

    def __init__(self, stub: Any, outbox: Outbox, acknowledged: Callable[[pb.Ack], None], random: Random) -> None:
        self.last_contact = 0.0  # time.monotonic() of the last answer of any kind; 0: none yet
        self.last_progress = time.monotonic()  # of the last acknowledgement or registration
        self.last_error: grpc.RpcError | None = None  # None again after an answer
        self._stub = stub
        self._outbox = outbox
        self._acknowledged = acknowledged
        self._backoff = Backoff(random)
        self._ended = threading.Event()
        self._processes: dict[int, ProcessInfo] = {}
        self._committed: dict[int, int] = {}
        self._call: Any = None
        self._broken = False  # said once, until something is acknowledged again
        self._thread = threading.Thread(target=self._run, name="annotq-delivery", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the stream; what is unacknowledged stays in the outbox."""
        self._ended.set()
        call = self._call
        if call is not None:
            call.cancel()
        self._outbox.close_stream()
        if self._thread.is_alive():
            self._thread.join(_LOOK_SECONDS + CALL_SECONDS)

    def register(self, info: ProcessInfo) -> pb.RegisterReply:
        """Announce a process, once. Raises grpc.RpcError when it is refused or the collector cannot be reached, and
        UnsendableError for one that cannot be announced to any."""
        try:
            request = request_of(info)
        except (ValueError, TypeError) as error:
            raise UnsendableError(f"it cannot be told to a collector: {error}") from None
        try:
            reply: pb.RegisterReply = self._stub.Register(request, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            self._failed(error)
            raise
        self._answered()
        self.last_progress = self.last_contact
        self._processes[reply.process_id] = info
        self._committed[reply.process_id] = reply.committed_sequence
        return reply

    def _run(self) -> None:
        resuming = False
        while not self._ended.is_set():
            if not self._outbox.wait_for_batches(_LOOK_SECONDS):
                continue
            try:
                if resuming:
                    self._resume()
                self._ship()
                what = "the collector closed the stream"
            except grpc.RpcError as error:
                self._failed(error)
                what = f"{error.code().name}: {error.details()}"
            except Exception as error:
                # Nothing would ever be acknowledged again if this thread ended.
                _log.exception("delivery failed")
                what = str(error)
            finally:
                self._outbox.close_stream()
            if self._ended.is_set():
                return
            if not self._broken:
                _log.warning("stream broken, batches are sent again from where the collector is (%s)", what)
            self._broken = resuming = True
            self._ended.wait(self._backoff.next())

    def _ship(self) -> None:
        self._call = self._stub.Ship(self._outbox.stream())
        if self._ended.is_set():
            self._call.cancel()
        for ack in self._call:
            self._answered()
            self.last_progress = self.last_contact
            self._backoff.reset()
            self._broken = False
            if not ack.error:
                self._committed[ack.process_id] = max(ack.sequence, self._committed.get(ack.process_id, 0))
            self._take(ack)

    def _resume(self) -> None:
        for process_id in sorted(self._outbox.processes()):
            try:
                reply = self._stub.Register(request_of(self._processes[process_id]), timeout=CALL_SECONDS)
            except grpc.RpcError as error:
                if error.code() not in REFUSALS:
                    raise
                _log.warning("process %d is refused now: %s", process_id, error.details())
                self._outbox.rewind(process_id)
                continue
            self._answered()
            if reply.process_id != process_id or reply.committed_sequence < self._committed[process_id]:
                _log.warning("the collector lost batches of process %d, its files are sent again", process_id)
                self._outbox.rewind(process_id)
                continue
            self._committed[process_id] = reply.committed_sequence
            for sequence in self._outbox.waiting(process_id):
                if sequence <= reply.committed_sequence:
                    self._take(pb.Ack(process_id=process_id, sequence=sequence))

    def _take(self, ack: pb.Ack) -> None:
        # First what follows from it, then the room: an empty outbox means that everything was dealt with.
        self._acknowledged(ack)
        self._outbox.acknowledge(ack.process_id, ack.sequence)

    def _answered(self) -> None:
        self.last_contact = time.monotonic()
        if self.last_error is not None:
            _log.info("the collector answers again")
        self.last_error = None

    def _failed(self, error: grpc.RpcError) -> None:
        if error.code() in REFUSALS:
            self._answered()
            return
        if self.last_error is None and not self._ended.is_set():
            _log.warning("the collector cannot be used now, %s: %s", error.code().name, error.details())
        self.last_error = error


# Answers to Register that are about the process, not about the way to the collector.
REFUSALS = frozenset(
    {
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.PERMISSION_DENIED,
    }
)


def request_of(info: ProcessInfo) -> pb.RegisterRequest:
    """The announcement of a process."""
    process = pb.Process(
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
        versions_json=json.dumps(dict(info.versions), sort_keys=True),
        coordinates_json=json.dumps(dict(info.coordinates), sort_keys=True),
        annotation_ids=info.annotation_ids,
    )
    return pb.RegisterRequest(process=process, schema_version=SCHEMA_VERSION, layout=LAYOUT)
