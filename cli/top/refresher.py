"""Looks at the job again and again in a thread of its own, so that keys are answered while a question is under way."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread

from annotq.agent.errors import AnnotqError
from annotq.cli.top.frame import Trouble
from annotq.cli.top.rows import Snapshot
from annotq.cli.top.watch import NoJobError, Watch

# An answer that takes longer than this and three intervals is said to be missing.
_PATIENCE_SECONDS = 5.0


class Refresher:
    """The newest snapshot, and what went wrong since. waiting_for: what is not there yet. bug: what ended the thread.

    The first look is made in `start`, so that a wrong place is an error and no picture.
    """

    def __init__(self, watch: Watch, interval: float) -> None:
        self._watch = watch
        self._interval = interval
        self._awaited = 0.0
        self._failed = ""
        self._failed_since = 0.0
        self._resumed = Event()
        self.snapshot: Snapshot | None = None
        self.waiting_for = ""
        self.bug: BaseException | None = None

    def start(self, news: Callable[[], None]) -> None:
        """Look once, and from then on; news is called after each look. Raises AnnotqError when nobody answers."""
        self._resumed.set()
        self._look()
        Thread(target=self._run, args=(news,), name="annotq-refresher", daemon=True).start()

    def pause(self, paused: bool) -> None:
        (self._resumed.clear if paused else self._resumed.set)()

    def trouble(self) -> Trouble:
        """What to say about the age of the numbers."""
        now, awaited = time.monotonic(), self._awaited
        asking = self.waiting_for
        if self._failed:
            asking = f"No answer for {now - self._failed_since:.0f} s: {self._failed} Trying again."
        elif awaited and now - awaited > _PATIENCE_SECONDS + 3 * self._interval:
            asking = f"No answer for {now - awaited:.0f} s."
        if asking and self.snapshot is not None:
            asking += f" The numbers are {now - self.snapshot.made:.0f} s old."
        return Trouble(asking, self._watch.analysis.problem)

    def _look(self) -> None:
        self._awaited = time.monotonic()
        try:
            self.snapshot = self._watch.look(wait=False)
            self.waiting_for = ""
        except NoJobError as error:
            self.waiting_for = str(error)
        finally:
            self._awaited = 0.0
        self._failed = ""

    def _run(self, news: Callable[[], None]) -> None:
        while self.bug is None:
            time.sleep(self._interval)
            self._resumed.wait()
            try:
                self._try_to_look()
            except Exception as error:
                self.bug = error
            news()

    def _try_to_look(self) -> None:
        began = time.monotonic()
        try:
            self._look()
        except AnnotqError as error:
            if not self._failed:
                self._failed_since = began
            self._failed = error.message
