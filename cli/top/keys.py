"""Keys of a terminal, one at a time, without echo and without waiting for Enter. The terminal is as before afterwards."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_SEQUENCES = {
    "[A": "up",
    "[B": "down",
    "OA": "up",
    "OB": "down",
    "[5~": "page up",
    "[6~": "page down",
    "[H": "home",
    "OH": "home",
    "[1~": "home",
    "[F": "end",
    "OF": "end",
    "[4~": "end",
}
_NAMES = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace"}
# The rest of an escape sequence comes at once; the Escape key alone has none.
_REST_SECONDS = 0.03
_MOST_BYTES = 1024


class Keys:
    """Reads keys from stdin; without a terminal there it only waits. `over`: the terminal is gone."""

    def __init__(self) -> None:
        self._file: int | None = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self.over = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Keys come one by one inside. Ctrl-C and Ctrl-Z remain signals."""
        if self._file is None:
            yield
            return
        before = termios.tcgetattr(self._file)
        try:
            tty.setcbreak(self._file)
            yield
        finally:
            # A terminal that is gone needs no restoring.
            with suppress(termios.error):
                termios.tcsetattr(self._file, termios.TCSAFLUSH, before)

    def wait(self, seconds: float, wake: int) -> list[str]:
        """The keys pressed, at the latest after so many seconds, or when the file `wake` can be read; often none."""
        files = [wake] if self._file is None else [wake, self._file]
        ready, _, _ = select.select(files, [], [], seconds)
        if wake in ready:
            os.read(wake, _MOST_BYTES)
        if self._file is None or self._file not in ready:
            return []
        read = self._read(self._file)
        if read == b"\x1b" and select.select([self._file], [], [], _REST_SECONDS)[0]:
            read += self._read(self._file)
        return keys_of(read.decode(errors="replace"))

    def _read(self, file: int) -> bytes:
        try:
            read = os.read(file, _MOST_BYTES)
        except OSError:
            read = b""
        self.over = self.over or not read
        return read


def keys_of(text: str) -> list[str]:
    """What a terminal sent, as names of keys: letters as they are, "up", "page down", "escape", ...; unknown ones left out."""
    found = []
    while text:
        if text[0] == "\x1b" and text[1:2] in ("[", "O"):
            end = next((i for i in range(2, len(text)) if text[i].isalpha() or text[i] == "~"), len(text) - 1)
            name = _SEQUENCES.get(text[1 : end + 1])
            found += [name] if name else []
            text = text[end + 1 :]
            continue
        if text[0] == "\x1b":
            found.append("escape")
        elif text[0] in _NAMES or text[0].isprintable():
            found.append(_NAMES.get(text[0], text[0]))
        text = text[1:]
    return found
