"""Progress on stderr for anything that takes longer than half a second, on a terminal only."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from annotq.agent.sources import Source

APPEARS_AFTER_SECONDS = 0.5


class FileProgress:
    """Counts finished files and the bytes read of the current one."""

    def __init__(self, files: int, enabled: bool) -> None:
        self._files = files
        self._done = 0
        self._enabled = enabled
        self._started = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def advance_bytes(self, read: int) -> None:
        """Bytes of the current file, as on disk, read so far."""
        self._show(f"{self._done + 1} of {self._files} files, {read / 1e6:,.0f} MB of this one")

    def finish(self, source: Source) -> None:
        self._done += 1
        self._show(f"{self._done} of {self._files} files, {source.path.name} done")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _show(self, text: str) -> None:
        if not self._enabled or time.monotonic() - self._started < APPEARS_AFTER_SECONDS:
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (BarColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("", total=self._files)
            self._bar.start()
        assert self._task is not None
        self._bar.update(self._task, completed=self._done, description=text)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Shows a spinner with the seconds on stderr while the body runs, once it has taken half a second."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    spinner = threading.Thread(target=_spin, args=(what, done), name="annotq-spinner", daemon=True)
    spinner.start()
    try:
        yield
    finally:
        done.set()
        spinner.join()


def _spin(what: str, done: threading.Event) -> None:
    started = time.monotonic()
    if done.wait(APPEARS_AFTER_SECONDS):
        return
    while not done.wait(0.1):
        sys.stderr.write(f"\r{what} ... {time.monotonic() - started:.0f} s ")
        sys.stderr.flush()
    sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()


@contextmanager
def file_progress(sources: Sequence[Source], quiet: bool) -> Iterator[FileProgress]:
    progress = FileProgress(len(sources), enabled=sys.stderr.isatty() and not quiet)
    try:
        yield progress
    finally:
        progress.close()
