"""The sign of life of a training process: 64 bytes in its spool folder, mapped into memory, so that a step costs no call
into the kernel and the last values survive a SIGKILL.

Only the standard library: written inside the training process, read by the shipper.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

NAME = "beat"
SIZE = 64
VERSION = 1
NO_STEP = -1

# version, number of the last step (NO_STEP: none yet), its duration_ns (0: unknown), time_ns of the last sign of life.
# Each on its own eight aligned bytes: a reader never sees half a number, though it may see two steps mixed.
LAYOUT = struct.Struct("<qqqq")


class Beat:
    """The writing side. Creates the file; raises OSError when it cannot."""

    def __init__(self, folder: Path) -> None:
        with (folder / NAME).open("w+b") as file:
            # Written, not truncated to size: a hole in a full disk would kill the process with SIGBUS at the first step.
            file.write(LAYOUT.pack(VERSION, NO_STEP, 0, time.time_ns()).ljust(SIZE, b"\0"))
            file.flush()
            self._map = mmap.mmap(file.fileno(), SIZE)

    def write(self, step: int, duration_ns: int, time_ns: int) -> None:
        LAYOUT.pack_into(self._map, 0, VERSION, step, duration_ns, time_ns)

    def close(self) -> None:
        self._map.close()
