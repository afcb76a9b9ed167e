"""Starts the shipper of this machine as a process of its own: a fresh interpreter, never a bare fork of the trainer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LOG_NAME = "shipper.log"

# Kept so that nothing warns of a child that outlives its parent object. The shipper outlives the trainer on purpose.
_started: list[subprocess.Popen[bytes]] = []


def start_shipper(root: Path, endpoint: str) -> None:
    """Start `python -m annotq.agent.ship` on a spool; it ends by itself, at once when the spool has a shipper already.

    The secret travels in the environment. Raises OSError when the process cannot be started.
    """
    # -P: a module of the current folder that is called as one of ours must not be loaded instead.
    command = [sys.executable, "-P", "-m", "annotq.agent.ship", "--spool", str(root), "--endpoint", endpoint]
    with (root / LOG_NAME).open("ab") as log:
        # Its own session: Ctrl-C and the signals of a launcher are for the trainers.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, close_fds=True
        )
    _started.append(process)
