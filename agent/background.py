"""A thread that does what the training loop must not wait for: making traces durable, noting destroyed graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from annotq.agent.warnings_once import error_text, warn_once

Task = Callable[[], object]


class Background:
    """Runs tasks one after the other in a daemon thread. A task that raises leads to a warning."""

    def __init__(self) -> None:
        # put() of a SimpleQueue takes no lock, so finalizers may call submit() at any moment.
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, task: Task) -> None:
        """Queue a task. It runs once begin() was called, at the latest in finish()."""
        self._tasks.put(task)

    def begin(self) -> None:
        """Start the thread unless it runs. Not from a finalizer."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="annotq-spool", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is shutting down: finish() does the work
                return
            self._thread = thread

    def finish(self, seconds: float) -> bool:
        """Let the queued tasks end, at most so long; False when some did not."""
        if self._thread is None:
            while True:
                try:
                    task = self._tasks.get_nowait()
                except Empty:
                    return True
                if task is not None:
                    _attempt(task)
        self._tasks.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            _attempt(task)


def _attempt(task: Task) -> None:
    try:
        task()
    except Exception as error:
        warn_once(f"background {type(error).__name__}", f"something recorded was lost: {error_text(error)}.")
