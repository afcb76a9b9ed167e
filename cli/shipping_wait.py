"""Waits, after the ranks have ended, until what they recorded is with the collector."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from annotq.agent.file_locks import holder
from annotq.agent.spool_reader import BAD, REFUSED, SHIPPER_LOCK, ProcessFolder, Unreadable, process_folders

_LOOK_SECONDS = 0.1
_SAY_SECONDS = 5.0
_SHIPPER_LOG = "shipper.log"


def wait_for_shipping(
    spool: Path,
    endpoint: str,
    environment: Mapping[str, str],
    seconds: float,
    hurry: threading.Event,
    say: Callable[[str], None],
) -> list[str]:
    """Wait until the spool is empty and its shipper gone, at most so many seconds; what is left undone, as sentences.

    Where no shipper is at work on what is left (rank 0 died, or never started one), one is started. hurry: set to stop
    waiting. say: called every few seconds with what is being waited for.
    """
    deadline = time.monotonic() + seconds
    next_word = time.monotonic() + _SAY_SECONDS
    own: subprocess.Popen[bytes] | None = None
    try:
        while (waiting := _pending(spool)) or holder(spool / SHIPPER_LOCK) is not None:
            if time.monotonic() > deadline or hurry.is_set():
                break
            if waiting and holder(spool / SHIPPER_LOCK) is None:
                if own is None:
                    own = _start_shipper(spool, endpoint, environment, deadline - time.monotonic())
                elif own.poll() is not None:
                    break  # it has given up
            if time.monotonic() > next_word:
                next_word = time.monotonic() + _SAY_SECONDS
                say(_what(waiting))
            time.sleep(_LOOK_SECONDS)
    finally:
        if own is not None and own.poll() is None:
            own.terminate()
            own.wait()
    return _left(spool)


def left_by_earlier_runs(root: Path) -> list[Path]:
    """The folders of earlier runs below the usual spool in which something waits and nobody is at work."""
    return [
        folder
        for folder in sorted(root.glob("run-*"))
        if (waiting := _pending(folder))
        and holder(folder / SHIPPER_LOCK) is None
        and not any(found.alive() for found in waiting)
    ]


def refused_in(spool: Path) -> int:
    """How many processes the collector refused as a whole, or none could be told of."""
    return sum(isinstance(found, Unreadable) or found.refused() is not None for found in process_folders(spool))


def _pending(spool: Path) -> list[ProcessFolder]:
    """The processes of which something is still to be sent."""
    return [
        found
        for found in process_folders(spool)
        if isinstance(found, ProcessFolder) and not found.shipped() and found.refused() is None
    ]


def _what(waiting: list[ProcessFolder]) -> str:
    if not waiting:
        return "waiting for the shipper to end"
    files = sum(len(folder.files()) for folder in waiting)
    mega = sum(folder.waiting_bytes() for folder in waiting) / 1e6
    return (
        f"waiting for {files} files of {len(waiting)} ranks, {mega:,.0f} MB, to reach the collector (Ctrl-C: no longer)"
    )


def _left(spool: Path) -> list[str]:
    """A sentence for each process that is not wholly with the collector."""
    found = []
    for folder in process_folders(spool):
        if isinstance(folder, Unreadable):
            found.append(f"{folder.path}: {folder.reason}")
        elif (reason := folder.refused()) is not None:
            found.append(f"rank {folder.info.rank} was refused: {reason}")
        elif folder.shipped():
            aside = [path for name in (REFUSED, BAD) for path in sorted((folder.path / name).glob("*.reason.txt"))]
            for path in aside:
                found.append(
                    f"rank {folder.info.rank}: {path.name.removesuffix('.reason.txt')}: {path.read_text().strip()}"
                )
        else:
            found.append(f"rank {folder.info.rank}: {len(folder.files())} files are not with the collector yet")
    return found


def _start_shipper(
    spool: Path, endpoint: str, environment: Mapping[str, str], seconds: float
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "annotq.agent.ship", "--spool", str(spool), "--endpoint", endpoint]
    with (spool / _SHIPPER_LOG).open("ab") as log:
        return subprocess.Popen(
            [*command, "--give-up", f"{seconds:.0f}"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
