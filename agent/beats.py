"""Tells the collector every two seconds how the processes of this node are, and samples the clock for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc

from annotq.agent import ping
from annotq.agent.spool_reader import ProcessFolder
from annotq.v1 import collector_pb2 as pb

BEAT_SECONDS = 2.0

_CALL_SECONDS = 5.0
_MOST_SAMPLES = 500  # kept while the collector is away: the newest
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Watched:
    """A registered process. dropped: traces that its trainer gave up for space."""

    process_id: int
    folder: ProcessFolder
    dropped: int


class Beats:
    """A thread of its own: the beats go on while a large trace is read. `watched` is asked before each.

    host: whose clock `clock` is, as its processes call it.
    """

    def __init__(self, stub: Any, watched: Callable[[], Iterable[Watched]], host: str, clock: ping.Clock) -> None:
        self._stub = stub
        self._host = host
        self._watched = watched
        self._clock = clock
        self._samples: list[pb.ClockSample] = []
        self._burst = ping.FIRST_BURST
        self._next_burst = 0.0
        self._one_at_a_time = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="annotq-beats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, say_goodbye: bool) -> None:
        """End the thread; say_goodbye: with a last burst and a last beat."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(2 * _CALL_SECONDS)
        if say_goodbye:
            self._next_burst = 0.0
            self.beat()

    def beat(self) -> None:
        """Sample the clock when it is time and send a beat. A collector that is away is no error: the next beat tells all."""
        with self._one_at_a_time:
            self._beat(list(self._watched()))

    def _beat(self, watched: list[Watched]) -> None:
        if not watched:
            return
        try:
            if time.monotonic() >= self._next_burst:
                self._samples += ping.burst(self._stub, self._burst, self._clock)
                self._burst = ping.LATER_BURST
                self._next_burst = time.monotonic() + ping.BETWEEN_BURSTS_SECONDS
            for request in self._requests(watched):
                self._stub.Beat(request, timeout=_CALL_SECONDS)
            self._samples.clear()
        except grpc.RpcError as error:
            _log.debug("beat not delivered: %s", error.details())
            del self._samples[:-_MOST_SAMPLES]
        except OSError as error:  # a folder that somebody removed meanwhile
            _log.warning("no beat: %s", error)

    def _run(self) -> None:
        while not self._ended.is_set():
            self.beat()
            self._ended.wait(BEAT_SECONDS)

    def _requests(self, watched: list[Watched]) -> list[pb.BeatRequest]:
        """One per host: a spool holds other hosts' processes when it was moved or lies on a shared disk."""
        by_host: dict[str, list[pb.ProcessBeat]] = {}
        for process in watched:
            by_host.setdefault(process.folder.info.host, []).append(self._beat_of(process))
        requests = []
        for host, beats in by_host.items():
            # The samples are of this machine's clock. In a spool on a shared disk other hosts' trainers look alive too.
            samples = self._samples if host == self._host else []
            requests.append(pb.BeatRequest(host=host, processes=beats, samples=samples))
        return requests

    def _beat_of(self, watched: Watched) -> pb.ProcessBeat:
        folder = watched.folder
        sign = folder.last_beat()
        return pb.ProcessBeat(
            process_id=watched.process_id,
            alive=folder.alive(),
            step=sign.step if sign else None,
            step_ns=sign.step_ns if sign else None,
            seen_age_ns=max(0, time.time_ns() - sign.time_ns) if sign else None,
            spooled_bytes=folder.waiting_bytes(),
            dropped_traces=watched.dropped,
        )
