"""The command that `annotq run` wraps: its own process group, its signals, its exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """While open, signals go to the command while it runs, and afterwards set `hurry`. A context manager."""

    def __init__(self) -> None:
        self.hurry = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._received) for number in PASSED_ON}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run the command to its end and return its exit code, 128 + n when signal n ended it. Raises OSError.

        It has the stdin, stdout and stderr of this process. A terminal is not handed over: a process group in the
        background that reads from it would be stopped, so it reads an empty file instead.
        """
        if self.hurry.is_set():
            raise KeyboardInterrupt
        stdin = subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None
        self._child = subprocess.Popen(command, env=dict(environment), stdin=stdin, process_group=0)
        try:
            if self.hurry.is_set():  # came while it was being started
                self._pass_on(signal.SIGINT)
            code = self._child.wait()
        finally:
            self._child = None
        return code if code >= 0 else 128 - code

    def _received(self, number: int, _frame: FrameType | None) -> None:
        if self._child is None:
            self.hurry.set()
        else:
            self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        assert self._child is not None
        with suppress(ProcessLookupError):  # it has just ended
            os.killpg(self._child.pid, number)
