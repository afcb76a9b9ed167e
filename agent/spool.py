"""The writing side of the spool: one folder per recorded process, the write-ahead log between trainer and collector.

    {job}.{attempt}.rank{rank}.{key}/
        alive.lock               held by the trainer (POSIX record lock: the children of a fork do not keep it)
        beat                     see beat.py
        process.json             who it is; the folder counts from here on
        00000001.snapshot.json   numbered from 1 in the order in which they appear, numbers are never used twice
        00000002.trace.json      ...
        00000003.end.json        the last one of a process that stopped by itself

A file is written under a temporary name, fsynced and renamed, so a reader sees whole files and a crash leaves whole files.
It gets its number at the rename: whoever saw number N will never see a new file with a lower one. Only the standard library.
"""

from __future__ import annotations

import errno
import json
import os
import re
import threading
from collections import deque
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from annotq.agent.beat import Beat
from annotq.agent.file_locks import hold
from annotq.agent.process_info import ProcessInfo

LOCK_NAME = "alive.lock"
PROCESS_NAME = "process.json"
TEMPORARY_PREFIX = ".tmp-"

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# A signal handler may interrupt a write and then stop the recorder: it must not wait for itself.
_CLOSE_SECONDS = 10.0


def folder_name(info: ProcessInfo) -> str:
    """The name of a process's folder below the root."""
    return f"{_UNSAFE.sub('-', info.job)[:100]}.{info.attempt}.rank{info.rank}.{info.key}"


class SpoolWriter:
    """The folder of this process. Methods raise OSError when the disk does not take a file.

    limit_bytes bounds the whole root: at the limit the oldest traces of this process go, never anything else.
    """

    def __init__(self, root: Path, info: ProcessInfo, limit_bytes: int) -> None:
        self.root = root
        self.folder = root / folder_name(info)
        self.dropped_traces = 0
        self._limit_bytes = limit_bytes
        self._number = 0
        self._names = count(1)
        self._traces: deque[Path] = deque()
        self._drop_note: Path | None = None
        self._noted_drops = 0
        self._order = threading.Lock()
        self._closed = False
        self.folder.mkdir(parents=True)
        # Before process.json: a shipper that knows the process must not find its lock free.
        lock = hold(self.folder / LOCK_NAME)
        assert lock is not None, "the folder is new"
        self._lock = lock
        try:
            self.beat = Beat(self.folder)
            self.write_process(info)
            _sync_folder(root)
        except OSError:
            os.close(self._lock)
            raise

    def write_process(self, info: ProcessInfo) -> None:
        """Write who the process is, again when more is known (the key must stay the same)."""
        temporary = self.temporary(PROCESS_NAME)
        _write(temporary, info.to_json().encode())
        temporary.rename(self.folder / PROCESS_NAME)
        _sync_folder(self.folder)

    def put(self, kind: str, content: dict[str, Any]) -> Path:
        """Write a numbered file `{number}.{kind}.json`; on a full disk, traces make room for it."""
        data = json.dumps(content, separators=(",", ":")).encode()
        while True:
            temporary = self.temporary(f"{kind}.json")
            try:
                _write(temporary, data)
                return self._publish(temporary, f"{kind}.json")
            except OSError as error:
                temporary.unlink(missing_ok=True)
                if error.errno not in _NO_SPACE or not self._drop_oldest_trace():
                    raise

    def put_trace(self, temporary: Path) -> bool:
        """Make a trace that was exported to `temporary` part of the spool; False when there was no room for it."""
        try:
            _sync(temporary)
            excess = _size(self.root) - self._limit_bytes
            while excess > 0 and self._traces:
                excess -= self._drop_oldest_trace()
            kept = excess <= 0
            if kept:
                self._traces.append(self._publish(temporary, "trace.json"))
            else:
                self.dropped_traces += 1
        finally:
            temporary.unlink(missing_ok=True)  # it is elsewhere now, or given up
        self._note_drops()
        return kept

    def note(self, text: str) -> Path:
        """Leave a sentence about what was lost or could not be done."""
        return self.put("note", {"text": text, "dropped_traces": self.dropped_traces})

    def temporary(self, name: str) -> Path:
        """A path in the folder that readers ignore, never given before."""
        return self.folder / f"{TEMPORARY_PREFIX}{next(self._names)}-{name}"

    def close(self, time_ns: int, how: str) -> None:
        """Write the last file and give the lock back. Files that come later are refused with OSError."""
        if self._closed:
            return
        try:
            with suppress(OSError):
                self._note_drops()
            self.put("end", {"time_ns": time_ns, "how": how})
        finally:
            self._closed = True
            self.beat.close()
            os.close(self._lock)

    def _publish(self, temporary: Path, suffix: str) -> Path:
        if not self._order.acquire(timeout=_CLOSE_SECONDS):
            raise TimeoutError(errno.ETIMEDOUT, "another file is being written", str(self.folder))
        try:
            if self._closed:
                raise OSError(errno.EBADF, "the recording has ended", str(self.folder))
            self._number += 1
            path = self.folder / f"{self._number:08d}.{suffix}"
            temporary.rename(path)
            _sync_folder(self.folder)
            return path
        finally:
            self._order.release()

    def _drop_oldest_trace(self) -> int:
        """Give up the oldest trace that is still here; its size in bytes, 0 when there was none."""
        while self._traces:
            path = self._traces.popleft()
            with suppress(FileNotFoundError):  # shipped
                size = path.stat().st_size
                path.unlink()
                self.dropped_traces += 1
                return size
        return 0

    def _note_drops(self) -> None:
        """Keep one note that counts the traces given up: a spool that nobody empties must not fill with notes."""
        if self.dropped_traces == self._noted_drops:
            return
        self._noted_drops = self.dropped_traces
        earlier, limit = self._drop_note, self._limit_bytes
        traces = "trace was" if self.dropped_traces == 1 else "traces were"
        self._drop_note = self.note(
            f"{self.dropped_traces} {traces} given up: the spool was full (limit {limit:,} bytes)."
        )
        if earlier is not None:
            earlier.unlink(missing_ok=True)


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# POSIX allows to fsync a folder: without it a machine that loses power may forget a rename.
_sync_folder = _sync


def _size(root: Path) -> int:
    """Bytes of all files below a folder; files may vanish meanwhile."""
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with suppress(OSError):
                total += os.stat(os.path.join(folder, name), follow_symlinks=False).st_size  # noqa: PTH116, PTH118
    return total
