"""`annotq serve` as a process of its own, for tests that need the real thing: to be killed, stopped and started again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from spools import wait_for

ANNOTQ = [sys.executable, "-m", "annotq.cli"]


class LiveCollector:
    """A context manager around one store; leaving it ends the collector with SIGTERM and asserts that it exits with 0."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.port = 0
        self._port_file = store.with_suffix(".port")
        self._log = store.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        assert self._process is not None
        try:
            if kind is None:
                self._process.send_signal(signal.SIGTERM)
                assert self._process.wait(40) == 0, self._log.read_text()
        finally:
            self._process.kill()
            self._process.wait()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, on the same port as before."""
        self._port_file.unlink(missing_ok=True)
        where = ["--listen", self.endpoint, "--port-file", str(self._port_file)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([*ANNOTQ, "serve", "--db", str(self.store), *where], stderr=log)
        wait_for(lambda: self._port_file.exists() and self._port_file.read_text().strip(), 60)
        self.port = int(self._port_file.read_text())

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
