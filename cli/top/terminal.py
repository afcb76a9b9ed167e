"""The picture on a terminal: drawn with rich, steered by keys, taken away at every end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from annotq.cli.top.frame import rows_on_screen, screen, shown_rows
from annotq.cli.top.keys import Keys
from annotq.cli.top.refresher import Refresher
from annotq.cli.top.view import View, pressed

# So often ages are drawn anew when nothing else happens.
TICK_SECONDS = 1.0
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Terminal:
    """Shows what the refresher finds until q is pressed or a signal ends it."""

    def __init__(self, refresher: Refresher, view: View) -> None:
        self._refresher = refresher
        self._view = view
        self._keys = Keys()
        for name in ("COLUMNS", "LINES"):  # would hold the picture to one size, whatever the terminal's is
            os.environ.pop(name, None)
        self._console = Console(highlight=False)
        self._ended_by: int | None = None
        self._suspended = False
        self._wake, self._awake = os.pipe()
        os.set_blocking(self._awake, False)

    def run(self) -> int | None:
        """The signal that ended it, None for q. Raises AnnotqError when the first question fails."""
        self._refresher.start(self._nudge)
        with self._signals():
            while True:
                with (
                    self._keys.listening(),
                    Live(console=self._console, screen=True, auto_refresh=False, redirect_stderr=False) as live,
                ):
                    self._show(live)
                if not self._suspended:
                    return self._ended_by
                self._suspended = False
                os.kill(os.getpid(), signal.SIGSTOP)  # what Ctrl-Z means; fg goes on here

    def _show(self, live: Live) -> None:
        while not (self._view.ended or self._suspended or self._ended_by or self._keys.over):
            if self._refresher.bug is not None:
                raise self._refresher.bug
            live.update(self._picture(), refresh=True)
            for key in self._keys.wait(TICK_SECONDS, self._wake):
                self._press(key)

    def _press(self, key: str) -> None:
        snapshot, (width, height) = self._refresher.snapshot, self._console.size
        page = rows = 1
        if snapshot is not None:
            page = rows_on_screen(snapshot, self._refresher.trouble(), width, height)
            rows = len(shown_rows(snapshot, self._view))
        before = self._view
        self._view = pressed(before, key, page, rows)
        if self._view.paused != before.paused:
            self._refresher.pause(self._view.paused)

    def _picture(self) -> Group:
        snapshot, trouble, (width, height) = self._refresher.snapshot, self._refresher.trouble(), self._console.size
        if snapshot is None:
            text = f"{self._refresher.waiting_for or 'Asking ...'} Waiting for it; q quits."
            return Group(Text(text))
        return Group(*screen(snapshot, self._view, trouble, width, height))

    def _nudge(self) -> None:
        with suppress(BlockingIOError):  # there is enough in the pipe to wake anybody
            os.write(self._awake, b".")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Signals are only noted and wake the loop, so that nothing is cut off half drawn."""

        def note(number: int, _: FrameType | None) -> None:
            if number == signal.SIGTSTP:
                self._suspended = True
            elif number in _ENDS:
                self._ended_by = number
            self._nudge()

        before = {number: signal.signal(number, note) for number in (*_ENDS, signal.SIGTSTP, signal.SIGWINCH)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
