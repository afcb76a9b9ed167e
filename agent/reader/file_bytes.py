"""A file's content, plain or gzip, read, hashed and inflated in a thread of its own, ahead of the parser."""

from __future__ import annotations

import hashlib
import queue
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from annotq.agent.errors import AnnotqError
from annotq.agent.reader.gzip_content import GZIP_MAGIC, DamagedGzipError, inflate

# The parser holds the interpreter lock for milliseconds at a time and this thread needs it once per call:
# few, large calls.
CHUNK_BYTES = 2 << 20
_CHUNKS_AHEAD = 4
_SALVAGE_BYTES = 64
_SWITCH_SECONDS = 0.0005


def file_sha256(path: Path | str) -> str:
    """Return the SHA-256 (hex) of the file's bytes as they are on disk; OSError when it cannot be read."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class FileBytes:
    """Iterate over a file's content in chunks of at most 2 MB; gzip is recognised by its first two bytes.

    After the last chunk: `sha256` of the bytes on disk, and `problem`, a clause that says how the gzip stream is
    broken (None: it is not). Damage ends the content early; nothing before it is withheld. Raises AnnotqError.
    """

    def __init__(self, path: Path) -> None:
        """Open the file; AnnotqError when it is missing, a folder, unreadable or empty."""
        self.path = path
        self.problem: str | None = None
        self.sha256 = ""
        self.bytes_read = 0  # of the file on disk
        self._file = _open(path)
        self._hash = hashlib.sha256()
        self._queue: queue.Queue[bytes | BaseException | None] = queue.Queue(_CHUNKS_AHEAD)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="annotq-read", daemon=True)
        # Between two calls this thread waits for the parser to give up the interpreter lock: a tenth of the usual 5 ms.
        self._switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._thread.start()

    def __iter__(self) -> Iterator[bytes]:
        while (chunk := self._queue.get()) is not None:
            if isinstance(chunk, BaseException):
                raise AnnotqError(f"{self.path}: reading failed: {chunk}.", "Copy the file again.") from chunk
            yield chunk

    def close(self) -> None:
        """Stop the thread and close the file, at any moment."""
        self._stopped.set()
        self._thread.join()
        sys.setswitchinterval(self._switch_interval)
        self._file.close()

    def _run(self) -> None:
        try:
            for chunk in self._content():
                self._put(chunk)
                if self._stopped.is_set():
                    return
            self.sha256 = self._hash.hexdigest()
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, chunk: bytes | BaseException | None) -> None:
        while not self._stopped.is_set():
            try:
                self._queue.put(chunk, timeout=0.05)
            except queue.Full:
                continue
            return

    def _read(self) -> bytes:
        data = self._file.read(CHUNK_BYTES)
        self._hash.update(data)
        self.bytes_read += len(data)
        return data

    def _content(self) -> Iterator[bytes]:
        with self.path.open("rb") as start:
            is_gzip = start.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        if not is_gzip:
            yield from iter(self._read, b"")
            return
        delivered = 0
        try:
            for part in inflate(self._read, CHUNK_BYTES):
                delivered += len(part)
                yield part
        except DamagedGzipError as error:
            self.problem = str(error)
            yield from self._salvage(delivered)
            while self._read():
                pass  # the hash covers the whole file

    def _salvage(self, delivered: int) -> Iterator[bytes]:
        """Inflate again in the smallest steps: a call that meets damage gives nothing of what it inflated before."""
        with self.path.open("rb") as file:
            parts = inflate(partial(file.read, _SALVAGE_BYTES), CHUNK_BYTES)
            try:
                for part in parts:
                    delivered -= len(part)
                    if delivered < 0:
                        yield part[delivered:]
                        delivered = 0
            except DamagedGzipError:
                return


def _open(path: Path) -> BinaryIO:
    try:
        file = path.open("rb")
    except IsADirectoryError:
        raise AnnotqError(f"{path} is a folder, not a file.", "Name a file in it.") from None
    except OSError as error:
        raise AnnotqError(f"{path}: {error.strerror}.", "Check the path and its permissions.") from None
    if path.is_file() and path.stat().st_size == 0:
        file.close()
        raise AnnotqError(f"{path} is empty.", "The export was cut off or is still running; export the trace again.")
    return file
