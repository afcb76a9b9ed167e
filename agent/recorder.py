"""The recorder of a training process: start, step, stop, and what the hooks and the profiler hand to the spool.

Everything that writes asks first whether it still is the process that was started: the children of a fork are not.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.util import Finalize
from pathlib import Path
from typing import ParamSpec

from annotq.agent import config, process_facts
from annotq.agent.background import Background
from annotq.agent.errors import AnnotqError
from annotq.agent.graph_hooks import GraphHooks
from annotq.agent.graph_names import GraphNames
from annotq.agent.identity import Given, Identity, identify
from annotq.agent.process_info import ProcessInfo
from annotq.agent.shipper_lock import foreign_shipper, held_for
from annotq.agent.shipper_start import start_shipper
from annotq.agent.spool import SpoolWriter
from annotq.agent.valid_text import valid_text
from annotq.agent.warnings_once import error_text, warn_once

# What stop() waits for traces that are still being made durable: 10 GB on a slow disk.
_FINISH_SECONDS = 60.0

_P = ParamSpec("_P")


class Recorder:
    """One recording of this process: its spool folder, its graph hooks, its steps."""

    def __init__(self, root: Path, info: ProcessInfo, limit_bytes: int) -> None:
        self.info = info
        self.pid = os.getpid()
        self.spool = SpoolWriter(root, info, limit_bytes)
        self.background = Background()
        self.graphs = GraphHooks(self)
        self.names = GraphNames()
        self._next_step = 0
        self._step_began_ns = 0

    def is_mine(self) -> bool:
        """False in a child that was forked from the recording process."""
        return os.getpid() == self.pid

    def step(self, number: int | None) -> None:
        """Note that a step has ended: its number (default: one more than the last) and the time since the last."""
        now_ns = time.monotonic_ns()
        step = self._next_step if number is None else number
        duration_ns = now_ns - self._step_began_ns if self._step_began_ns else 0
        self._next_step, self._step_began_ns = step + 1, now_ns
        self.spool.beat.write(step, duration_ns, time.time_ns())

    def learn_gpu(self) -> None:
        """Add the GPU's name to the identity once CUDA is there to ask."""
        if self.info.gpu is None and (gpu := process_facts.gpu_name()) is not None:
            self.info = replace(self.info, gpu=gpu)
            self.spool.write_process(self.info)

    def name_graphs(self, modules: bool) -> None:
        """Let captured work get names, and tell where the node ids come from."""
        source = self.names.install(modules=modules)
        if source.name != self.info.annotation_ids:
            self.info = replace(self.info, annotation_ids=source.name)
            self.spool.write_process(self.info)

    def stop(self) -> None:
        """Take the hooks away, let pending files become durable, write the last one, give the lock back."""
        self.graphs.remove()
        self.names.remove()
        if not self.background.finish(_FINISH_SECONDS):
            warn_once("unfinished", f"traces were not on disk after {_FINISH_SECONDS:.0f} s and may be lost.")
        self.spool.close(time.time_ns(), "stopped")


_recorder: Recorder | None = None
_recorded: set[tuple[str, int, int]] = set()
_starting = threading.RLock()  # a signal handler may call stop() in the middle of start()


def _harmless(function: Callable[_P, None]) -> Callable[_P, None]:
    """Turn what goes wrong into one warning: a training run never fails for being recorded."""

    @functools.wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except Exception as error:
            name = function.__name__
            warn_once(f"{name} {type(error).__name__}", f"{name}() did not work: {error_text(error)}.")

    return guarded


@_harmless
def start(
    *,
    job: str | None = None,
    attempt: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    coordinates: Mapping[str, int] | None = None,
    spool: str | os.PathLike[str] | None = None,
    endpoint: str | None = None,
    ship: bool | None = None,
    modules: bool | None = None,
) -> None:
    """Record this process from here on: who it is, its CUDA graphs, its steps, its profiler windows.

    What is not given comes from ANNOTQ_* variables, torchrun's, SLURM's, else the process is a job of its own.
    coordinates: place in the parallel layout, such as {"dp": 0, "tp": 3}. spool: the folder to write to. endpoint: the
    collector, HOST:PORT; where it is set, local rank 0 starts the shipper of this machine (ship=False: it does not).
    modules: name regions after the model's modules and optimizers, without a change to its code.
    Does nothing the second time, and under ANNOTQ_DISABLED=1. Never raises: problems are warned of.
    """
    global _recorder
    if config.is_disabled() or _imported_by_a_child():
        return
    with _starting:
        if _recorder is not None:
            return
        identity = identify(
            Given(job, attempt, rank, world_size, local_rank, coordinates), os.environ, process_facts.facts()
        )
        for problem in identity.problems:
            warn_once(problem, problem)
        key = (identity.job, identity.attempt, identity.rank)
        if key in _recorded:
            warn_once(
                "again", f"rank {key[2]} of job {key[0]!r} was recorded by this process already: give another job."
            )
            return
        endpoint = _endpoint(endpoint)
        root = (Path(spool).expanduser() if spool is not None else config.spool_root(endpoint=endpoint)).absolute()
        recorder = Recorder(root, _info(identity), _limit_bytes())
        if (kind := process_facts.network_file_system(root)) is not None:
            warn_once(
                "network", f"the spool {root} is on {kind}: set {config.SPOOL} to a folder of this machine's own."
            )
        _recorder = recorder
        _recorded.add(key)
        recorder.graphs.register()
        recorder.name_graphs(config.names_modules() if modules is None else modules)
        atexit.register(stop)
        if multiprocessing.parent_process() is not None:
            # A forked child of multiprocessing ends without the exit handlers, but not without these.
            Finalize(None, stop, exitpriority=0)
    if endpoint and identity.local_rank == 0:
        if (theirs := held_for(root)) not in (None, endpoint):
            warn_once("shipper", foreign_shipper(root, theirs, endpoint))
        if ship is not False:
            start_shipper(root, endpoint)


@_harmless
def step(number: int | None = None) -> None:
    """Announce the end of a training step. number: its own; by default steps are counted from 0.

    A microsecond: the numbers go into a file that is mapped into memory. Without start() it does nothing.
    """
    if _recorder is not None:
        _recorder.step(number)


@_harmless
def stop() -> None:
    """End the recording: what is pending becomes durable and the collector learns that this process ended by itself.

    Called at exit, too. Does nothing without start(), and in the children of a fork.
    """
    global _recorder
    with _starting:
        recorder, _recorder = _recorder, None
        atexit.unregister(stop)
    if recorder is not None and recorder.is_mine():
        recorder.stop()


def current() -> Recorder | None:
    """The recorder of this process while it records."""
    return _recorder


def _info(identity: Identity) -> ProcessInfo:
    return ProcessInfo(
        job=identity.job,
        attempt=identity.attempt,
        rank=identity.rank,
        host=valid_text(socket.gethostname()),
        pid=os.getpid(),
        start_ns=time.time_ns(),
        world_size=identity.world_size,
        local_rank=identity.local_rank,
        gpu=process_facts.gpu_name(),
        versions=process_facts.versions(),
        coordinates=identity.coordinates,
        annotation_ids=process_facts.annotation_ids(),
    )


def _endpoint(given: str | None) -> str | None:
    """The collector; None when there is none, or when what is given is no HOST:PORT, which is warned of."""
    endpoint = given or config.endpoint()
    try:
        return config.checked_endpoint(str(endpoint)) if endpoint else None
    except AnnotqError as error:
        where = "endpoint" if given else config.ENDPOINT
        warn_once("endpoint", f"{where}: {error} Nothing is sent; what is recorded stays in the spool.")
        return None


def _limit_bytes() -> int:
    try:
        return config.spool_bytes()
    except AnnotqError as error:
        warn_once(config.SPOOL_BYTES, f"{error} The default is used.")
        return config.DEFAULT_SPOOL_BYTES


def _imported_by_a_child() -> bool:
    """True while a spawned child of multiprocessing, such as a data loader's worker, imports the training script: that child
    is no rank, even when the script calls start() outside of `if __name__ == "__main__"`."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def _forget() -> None:
    """In a forked child: its parent records, it does not. Nothing is closed, since all of it is shared with the parent."""
    global _recorder, _starting
    _recorder = None
    _recorded.clear()
    _starting = threading.RLock()
    atexit.unregister(stop)


os.register_at_fork(after_in_child=_forget)
