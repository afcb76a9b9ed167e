"""POSIX record locks as signs of life: held by a process until it ends, whatever ends it, and not inherited by its children."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

# struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = "@hhqqi0q"


def hold(path: Path) -> int | None:
    """Take the lock for as long as this process lives; None when another process holds it.

    Returns the file descriptor: closing it, or any other descriptor of the file in this process, gives the lock back.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(descriptor)
        return None
    return descriptor


def holder(path: Path) -> int | None:
    """The process id that holds the lock (0 when it cannot be named, as from another container); None when it is free.

    Asks without taking the lock, so that a process that is about to take it never finds it taken by us.
    """
    try:
        # O_NONBLOCK: what is no lock file but a pipe must not make anybody wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
    finally:
        os.close(descriptor)
    return None if kind == fcntl.F_UNLCK else max(pid, 0)
