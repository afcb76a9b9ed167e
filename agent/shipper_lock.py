"""To which collector the shipper of a spool sends: the holder of the lock writes it into the lock file.

Only the standard library: recorders ask. Never for the process that holds the lock itself, which would lose it by asking.
"""

from __future__ import annotations

import os
from pathlib import Path

from annotq.agent.file_locks import holder

SHIPPER_LOCK = "shipper.lock"

_MOST_BYTES = 1_000


def note_endpoint(lock: int, endpoint: str) -> None:
    """Write the endpoint (HOST:PORT) into the lock file that is held by this descriptor. Raises OSError."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, endpoint.encode("utf-8", "replace"), 0)


def held_for(spool: Path) -> str | None:
    """The endpoint that the shipper of this spool sends to; None when there is no shipper or it has not said yet."""
    path = spool / SHIPPER_LOCK
    try:
        if holder(path) is None:
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return os.pread(descriptor, _MOST_BYTES, 0).decode("utf-8", "replace") or None
    except OSError:
        return None
    finally:
        os.close(descriptor)


def foreign_shipper(spool: Path, theirs: str | None, ours: str) -> str:
    """What to say when the shipper of a spool sends to another collector."""
    return (
        f"The shipper at work on the spool {spool} sends to {theirs}, not to {ours}: what is recorded here goes there. "
        "Give each collector a spool of its own: leave ANNOTQ_SPOOL out, or set it to another folder."
    )
