"""The loop of the shipper: registers the processes in the spool, hands over their files one after the other, ends them."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import grpc

from annotq.agent import ping
from annotq.agent.backoff import Backoff
from annotq.agent.beats import Beats, Watched
from annotq.agent.channel import open_channel, stub_on
from annotq.agent.delivery import REFUSALS, Delivery, UnsendableError
from annotq.agent.outbox import Outbox, RewoundError, StoppedError
from annotq.agent.read_one import Taken, take_in_file
from annotq.agent.ship_options import GIVE_UP_ONCE_SECONDS, ShipOptions, Summary
from annotq.agent.shipment import AbandonedError, Shipment
from annotq.agent.spool_reader import ProcessFolder, SpoolFile, Unreadable, process_folders, remove_leftovers
from annotq.v1 import collector_pb2 as pb

_LOOK_SECONDS = 0.5
_FILES_PER_TURN = 20  # of a process before it is the next one's turn
_TRY_DISK_SECONDS = 5.0
_TRY_REFUSED_VERSION_SECONDS = 60.0
_log = logging.getLogger(__name__)


class Shipper:
    """Ships one spool, whose lock its owner holds. Used once."""

    def __init__(self, options: ShipOptions, stop: threading.Event, clock: ping.Clock, summary: Summary) -> None:
        self._options = options
        self._stop = stop
        self._summary = summary
        self._stop_at: float | None = None  # time.monotonic(), once told to stop
        self._outbox = Outbox(self._is_over)
        self._main = open_channel(options.access)
        # A connection of its own: a ping that waits behind a large batch would measure the batch.
        self._side = open_channel(options.access, own_connection=True)
        random = Random(options.seed)
        self._backoff = Backoff(random)
        stub = stub_on(self._main)
        self._delivery = Delivery(stub, self._outbox, self._acknowledged, random)
        self._beats = Beats(stub_on(self._side), self._watched, options.host, clock)
        self._shipments: dict[Path, Shipment] = {}
        self._by_id: dict[int, Shipment] = {}
        self._identities: dict[Path, int] = {}  # when process.json was written that the collector knows
        self._not_before: dict[Path, float] = {}
        self._passed_over: set[Path] = set()
        # A process came and was sent or refused by this shipper. What lay here before does not count.
        self._settled = False
        self._kept: set[Path] = set()  # the collector speaks another version: perhaps not for ever
        self._began = time.monotonic()

    def run(self) -> None:
        """Ship until nothing is left to wait for, or until it is stopped."""
        remove_leftovers(self._options.spool)
        self._delivery.start()
        self._beats.start()
        if self._options.niceness:
            # Only this thread and the readers it starts step back; pings and acknowledgements stay punctual.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._options.niceness)
        try:
            while self._round():
                # Not a wait for `stop` once that is set: the acknowledgements need their time.
                time.sleep(_LOOK_SECONDS) if self._stop.is_set() else self._stop.wait(_LOOK_SECONDS)
        except StoppedError:
            pass
        finally:
            self._close()

    def _round(self) -> bool:
        """Ship what is there; False when nothing is left to wait for."""
        self._begin_again()
        worked = True
        while worked:
            worked = False
            for folder in self._folders():
                try:
                    shipment = self._registered(folder)
                    if shipment is not None:
                        worked |= self._ship_next(shipment)
                except OSError as error:
                    self._put_off(folder, error)
            self._finish_ended()
            if self._is_over():
                raise StoppedError
        return not self._done()

    def _is_over(self) -> bool:
        """Whether it was told to stop and has had its time to ship what is there."""
        if not self._stop.is_set():
            return False
        if self._stop_at is None:
            self._stop_at = time.monotonic() + self._options.flush_seconds
            _log.info("told to stop: ships what is there, for %g s at most", self._options.flush_seconds)
        return time.monotonic() >= self._stop_at

    def _put_off(self, folder: ProcessFolder, error: OSError) -> None:
        """The disk is full, or not there for a moment: begin again with this process a little later."""
        if folder.path.exists():  # otherwise somebody removed it
            _log.error("%s: %s; trying again in %.0f s", folder.path, error, _TRY_DISK_SECONDS)
        self._not_before[folder.path] = time.monotonic() + _TRY_DISK_SECONDS
        shipment = self._shipments.get(folder.path)
        if shipment is not None:
            self._outbox.rewind(shipment.process_id)
            self._begin_again()

    def _folders(self) -> Iterator[ProcessFolder]:
        for found in process_folders(self._options.spool):
            if found.path in self._passed_over:
                continue
            if isinstance(found, Unreadable):
                self._pass_over(found.path, f"{found.path}: {found.reason}")
            elif (reason := found.refused()) is not None and found.path not in self._shipments:
                self._pass_over(found.path, f"{found.path}: refused earlier: {reason}")
            elif found.shipped():
                self._passed_over.add(found.path)
            else:
                yield found

    def _pass_over(self, path: Path, reason: str) -> None:
        _log.error("left alone: %s", reason)
        self._passed_over.add(path)
        self._summary.refused += 1
        self._summary.reasons.append(reason)

    def _registered(self, folder: ProcessFolder) -> Shipment | None:
        """The shipment of a folder; None while the collector cannot be asked or does not want it."""
        known = self._shipments.get(folder.path)
        written = (folder.path / "process.json").stat().st_mtime_ns
        if known is not None and self._identities.get(folder.path) == written:
            return known
        if time.monotonic() < self._not_before.get(folder.path, 0.0):
            return known
        try:
            reply = self._delivery.register(folder.info)
        except grpc.RpcError as error:
            self._register_failed(folder, error)
            return known
        except UnsendableError as error:
            # For a reason of its own: the other processes of the spool must not wait for it.
            self._refuse(folder, str(error))
            return known
        self._backoff.reset()
        self._identities[folder.path] = written
        if known is None:
            if folder.alive():
                self._note_host(folder.info.host)
            known = Shipment(folder, reply, self._outbox)
            self._shipments[folder.path] = self._by_id[reply.process_id] = known
            self._summary.processes += 1
            _log.info("rank %d of %s: registered, %d files", folder.info.rank, folder.info.job, len(folder.files()))
        return known

    def _note_host(self, host: str) -> None:
        if host not in {self._options.host, *(s.folder.info.host for s in self._shipments.values())}:
            _log.warning(
                "trainers of host %s in the spool of %s: there will be no clock samples for them. Give every node a "
                "spool on a disk of its own (ANNOTQ_SPOOL), or say with --host what it is called.",
                host,
                self._options.host,
            )

    def _register_failed(self, folder: ProcessFolder, error: grpc.RpcError) -> None:
        wait = self._backoff.next()
        if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
            wait = _TRY_REFUSED_VERSION_SECONDS
            _log.error("kept for later: %s: %s", folder.path, error.details())
            if folder.path not in self._kept:
                self._kept.add(folder.path)
                self._summary.refused += 1
                self._summary.reasons.append(f"{folder.path}: {error.details()}")
        elif error.code() in REFUSALS:
            self._refuse(folder, f"{error.details()}\nTo load it: annotq ingest {folder.path} --job OTHER")
        self._not_before[folder.path] = time.monotonic() + wait

    def _refuse(self, folder: ProcessFolder, reason: str) -> None:
        folder.mark_refused(reason)
        self._pass_over(folder.path, f"{folder.path}: {reason}")
        self._settled = True

    def _ship_next(self, shipment: Shipment) -> bool:
        """Hand over the next files of a process, or its end; False when there is neither."""
        gone = not shipment.folder.alive()  # asked before the files: a trainer that is gone adds none
        files = shipment.waiting()
        try:
            for file in files[:_FILES_PER_TURN]:
                self._ship_file(shipment, file)
            if files:
                return True
            # In this order: once nothing is under way, `ended` is as it will stay.
            if gone and not shipment.under_way() and not shipment.ended:
                shipment.begin_end()
                shipment.end.end_process(shipment.folder.last_sign_ns(), "gone")
                shipment.handed_over()
                return True
        except RewoundError:
            self._begin_again()
        return False

    def _ship_file(self, shipment: Shipment, file: SpoolFile) -> None:
        shipment.begin(file)
        try:
            taken = take_in_file(file, shipment.folder.info, shipment.end, self._look_at_stop)
        except AbandonedError:
            shipment.handed_over()
            return
        except (StoppedError, RewoundError, OSError):
            raise
        except Exception as error:
            # A fault of ours. The file is kept, and must not keep back those after it.
            _log.exception("%s cannot be read", file.path)
            taken = Taken(None, f"{file.path} cannot be read: {error!r}", 0)
        if taken.loaded is not None:
            shipment.dropped = max(shipment.dropped, taken.dropped)
            shipment.handed_over()
        elif file.path.exists():
            _log.error("%s cannot be used: %s", file.path, taken.problem)
            if file.kind != "trace":
                shipment.end.note(taken.problem)
            shipment.handed_over(bad=taken.problem)
        else:
            _log.info("%s was dropped by its trainer before it could be read", file.path)
            shipment.vanished()

    def _look_at_stop(self, _read_bytes: int) -> None:
        if self._is_over():
            raise StoppedError

    def _begin_again(self) -> None:
        """Forget what was under way of the processes whose batches the collector lost: their files are all still here."""
        for process_id in self._outbox.rewound():
            shipment = self._by_id.pop(process_id, None)
            if shipment is not None:
                self._count(shipment)
                del self._shipments[shipment.folder.path]
                self._summary.processes -= 1
            self._outbox.restart(process_id)

    def _finish_ended(self) -> None:
        for path, shipment in list(self._shipments.items()):
            if shipment.ended and not shipment.under_way() and not shipment.folder.alive():
                self._beats.beat()
                del self._shipments[path]
                self._passed_over.add(path)
                self._settled = True
                self._count(shipment)
                shipment.folder.finish()
                _log.info(
                    "rank %d of %s: all is with the collector", shipment.folder.info.rank, shipment.folder.info.job
                )

    def _done(self) -> bool:
        options = self._options
        idle = time.monotonic() - max(self._delivery.last_progress, self._began)
        error = self._delivery.last_error
        if options.once and error is not None:
            cannot_be_cured = error.code() is grpc.StatusCode.UNAUTHENTICATED
            if cannot_be_cured or idle > min(GIVE_UP_ONCE_SECONDS, options.give_up_seconds):
                self._summary.unreachable = error
                return True
        folders = list(self._folders())
        if self._stop.is_set():
            return all(self._is_shipped(folder) for folder in folders)
        if not folders:
            waited = time.monotonic() - self._began > options.first_process_seconds
            return not options.forever and (options.once or self._settled or waited)
        if options.once:
            self._summary.gave_up = idle > options.give_up_seconds
            return self._summary.gave_up or all(self._is_shipped(folder) for folder in folders)
        if options.forever or any(folder.alive() for folder in folders):
            return False
        if idle > options.give_up_seconds:
            _log.warning("no progress for %.0f s and no trainer alive: the rest is left to the next shipper", idle)
            self._summary.unreachable, self._summary.gave_up = error, True
            return True
        return False

    def _is_shipped(self, folder: ProcessFolder) -> bool:
        shipment = self._shipments.get(folder.path)
        if shipment is None:
            return folder.path in self._kept
        return folder.alive() and not shipment.waiting() and not shipment.under_way()

    def _acknowledged(self, ack: pb.Ack) -> None:
        shipment = self._by_id.get(ack.process_id)
        if shipment is not None:
            shipment.acknowledge(ack)

    def _watched(self) -> list[Watched]:
        return [Watched(s.process_id, s.folder, s.dropped) for s in list(self._shipments.values())]

    def _count(self, shipment: Shipment) -> None:
        self._summary.files += shipment.files
        self._summary.refused += shipment.refused
        self._summary.batches += shipment.end.batches
        self._summary.rows += shipment.end.rows

    def _close(self) -> None:
        self._beats.close(say_goodbye=self._delivery.last_error is None)
        self._delivery.close()
        self._finish_ended()
        for shipment in self._shipments.values():
            self._count(shipment)
        folders = [f for f in process_folders(self._options.spool) if isinstance(f, ProcessFolder)]
        self._summary.left = sum(len(folder.files()) for folder in folders if folder.refused() is None)
        self._main.close()
        self._side.close()
