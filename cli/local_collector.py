"""A collector of our own: `annotq serve` as a process beside `annotq run`, on loopback, for as long as the run lasts."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from annotq.agent.errors import EXIT_FAILED, AnnotqError

_START_SECONDS = 60.0
# serve gives itself 30 s to finish its queue.
_STOP_SECONDS = 45.0
_LOG_LINES = 5
_PR_SET_PDEATHSIG = 1


class LocalCollector:
    """A running `annotq serve`. endpoint: where it listens. log: what it says."""

    def __init__(self, process: subprocess.Popen[bytes], endpoint: str, log: Path) -> None:
        self._process = process
        self.endpoint = endpoint
        self.log = log

    @classmethod
    def start(cls, store: Path, folder: Path, environment: Mapping[str, str]) -> LocalCollector:
        """Start one on a free port and wait until it listens. folder: for its log and its port.

        Raises AnnotqError with its own words when it does not come up.
        """
        log, port_file = folder / "collector.log", folder / "collector.port"
        command = [sys.executable, "-P", "-m", "annotq.cli", "serve", "--db", str(store), "--listen", "127.0.0.1:0"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--port-file", str(port_file)],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the training, the collector is told to end when all is in
                preexec_fn=_end_with_parent,
            )
        try:
            port = _port(process, port_file)
            if port is None:
                code = process.poll()
                what = f"ended with {code}" if code is not None else f"did not listen within {_START_SECONDS:.0f} s"
                raise AnnotqError(
                    f"The collector for {store} {what}: {_said(log)}",
                    "Choose another store with --db FILE, or a running collector with --endpoint HOST:PORT.",
                    EXIT_FAILED,
                )
        except BaseException:
            process.kill()
            process.wait()
            raise
        return cls(process, f"127.0.0.1:{port}", log)

    def problem(self) -> str | None:
        """Why it is not running any more; None while it is."""
        code = self._process.poll()
        return None if code is None else f"the collector ended early with {code}: {_said(self.log)}"

    def stop(self) -> str | None:
        """Let it finish its queue and end; what went wrong, or None."""
        if (problem := self.problem()) is not None:
            return problem
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return f"the collector did not end within {_STOP_SECONDS:.0f} s of being told to"
        return None if code == 0 else f"the collector ended with {code}: {_said(self.log)}"


def _port(process: subprocess.Popen[bytes], port_file: Path) -> int | None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        text = port_file.read_text().strip() if port_file.is_file() else ""
        if text:
            return int(text.rpartition(":")[2])
        time.sleep(0.05)
    return None


def _said(log: Path) -> str:
    """Its error, else its last lines."""
    lines = log.read_text(errors="replace").splitlines()
    errors = [index for index, line in enumerate(lines) if line.startswith("error: ")]
    told = lines[errors[-1] :] if errors else lines[-_LOG_LINES:]
    return " ".join(line.strip().removeprefix("error: ") for line in told) or "it said nothing"


def _end_with_parent() -> None:
    """In the new process: a run that is killed must not leave a collector that holds the store for ever."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:
        os._exit(EXIT_FAILED)
