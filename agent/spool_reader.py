"""The spool as its reader sees it: one folder per process, numbered files in it, and whether the trainer still lives.

The trainer may add files and drop its oldest traces at any moment: a file that vanishes is no error. What cannot be used is
set aside with the reason beside it, never deleted. What is neither a regular file nor a folder, such as a pipe, whose reader
would wait for ever, or a link, which leads elsewhere, is passed over.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from annotq.agent import beat
from annotq.agent.file_locks import holder
from annotq.agent.process_info import ProcessInfo
from annotq.agent.shipper_lock import SHIPPER_LOCK as SHIPPER_LOCK
from annotq.agent.valid_text import valid_text

IDENTITY = "process.json"
REFUSED = "refused"  # a folder: files that the collector refused; a file: it refused the process
BAD = "bad"  # a folder: files that are not what their name says
SHIPPED = "shipped"  # a file: everything was acknowledged, what is left was set aside

_GONE = ".tmp-gone-"
_NUMBERED = re.compile(r"(\d{8,12})\.(snapshot|trace|destroyed|annotations|graphs|note|end)\.json(?:\.gz)?")


@dataclass(frozen=True, order=True)
class SpoolFile:
    """A numbered file of a process. kind: snapshot, trace, destroyed, annotations, graphs, note or end."""

    number: int
    kind: str
    path: Path


@dataclass(frozen=True)
class Beat:
    """The trainer's last sign of life: step and its duration (None: not known), time_ns by the host's CLOCK_REALTIME."""

    step: int | None
    step_ns: int | None
    time_ns: int


@dataclass(frozen=True)
class ProcessFolder:
    """The folder of one recorded process."""

    path: Path
    info: ProcessInfo

    def files(self) -> list[SpoolFile]:
        """The finished files, by number. Anything else in the folder is passed over.

        None is missing before the last one: a listing taken while the trainer adds files may show a file without the one
        before it, but whatever one listing shows, the next shows all that came before.
        """
        seen = self._listed()
        return [file for file in self._listed() if file.number <= seen[-1].number] if seen else []

    def _listed(self) -> list[SpoolFile]:
        try:
            names = [entry.name for entry in os.scandir(self.path) if entry.is_file(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        found = ((_NUMBERED.fullmatch(name), name) for name in names)
        return sorted(SpoolFile(int(m.group(1)), m.group(2), self.path / name) for m, name in found if m)

    def reread(self) -> ProcessFolder:
        """The folder with what process.json says now; its writer adds what it learns, such as the GPU."""
        found = process_folder(self.path)
        return found if isinstance(found, ProcessFolder) and found.info.key == self.info.key else self

    def alive(self) -> bool:
        """Whether the trainer still records: it holds its lock."""
        return holder(self.path / "alive.lock") is not None

    def last_beat(self) -> Beat | None:
        """The last sign of life; None when there is none, or it was caught half written."""
        try:
            data = _read(self.path / beat.NAME)
        except OSError:
            return None
        if len(data) < beat.LAYOUT.size:
            return None
        version, step, step_ns, time_ns = beat.LAYOUT.unpack_from(data)
        if version != beat.VERSION or step < beat.NO_STEP or step_ns < 0 or time_ns <= 0:
            return None
        return Beat(None if step == beat.NO_STEP else step, step_ns or None, time_ns)

    def last_sign_ns(self) -> int:
        """When the trainer last did anything that left a trace on disk, in CLOCK_REALTIME nanoseconds."""
        sign = self.last_beat()
        times = [self.info.start_ns] if sign is None else [sign.time_ns]
        for file in [self.path / IDENTITY, *(file.path for file in self.files())]:
            with suppress(OSError):
                times.append(file.stat().st_mtime_ns)
        return max(times)

    def waiting_bytes(self) -> int:
        """The size of all numbered files."""
        return sum(_size(file.path) for file in self.files())

    def refused(self) -> str | None:
        """Why the collector refused this process earlier; None when it did not."""
        try:
            return _read(self.path / REFUSED).decode("utf-8", "replace").strip()
        except (FileNotFoundError, NotRegularError):
            return None

    def shipped(self) -> bool:
        return (self.path / SHIPPED).exists()

    def remove(self, file: SpoolFile) -> None:
        """Delete an acknowledged file."""
        file.path.unlink(missing_ok=True)

    def set_aside(self, file: SpoolFile, where: str, reason: str) -> None:
        """Move a file into the folder `where` (BAD or REFUSED) and write the reason into a text file beside it."""
        folder = self.path / where
        folder.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):  # dropped by the trainer meanwhile
            file.path.rename(folder / file.path.name)
            with suppress(OSError):  # a full disk: the file matters, the reason is also in the log
                (folder / f"{file.path.name}.reason.txt").write_bytes(valid_text(f"{reason}\n").encode())

    def mark_refused(self, reason: str) -> None:
        """Note that the collector will not take this process; later shippers pass the folder over."""
        _write(self.path / REFUSED, f"{reason}\n")

    def finish(self) -> None:
        """All is acknowledged and the trainer gone: remove the folder, or mark it when files were set aside in it."""
        if any((self.path / name).is_dir() for name in (BAD, REFUSED)):
            _write(self.path / SHIPPED, "Everything but the files set aside here was acknowledged.\n")
            for file in self.files():
                self.remove(file)
            return
        # Renamed first: a folder that is half removed must not look like a process that was killed.
        gone = self.path.with_name(f"{_GONE}{self.path.name}")
        with suppress(FileNotFoundError):
            self.path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


@dataclass(frozen=True)
class Unreadable:
    """A folder of the spool whose identity cannot be read, and why."""

    path: Path
    reason: str


def process_folders(root: Path) -> Iterator[ProcessFolder | Unreadable]:
    """The folders in a spool, by name. One without process.json is not (yet) a process unless it holds numbered files."""
    try:
        entries = sorted(
            entry.path for entry in os.scandir(root) if _is_folder(entry) and not entry.name.startswith(".")
        )
    except FileNotFoundError:
        return
    for path in map(Path, entries):
        found = process_folder(path)
        if found is not None:
            yield found


def remove_leftovers(root: Path) -> None:
    """Remove what is left of folders whose removal was interrupted."""
    for path in root.glob(f"{_GONE}*"):
        shutil.rmtree(path, ignore_errors=True)


def process_folder(path: Path) -> ProcessFolder | Unreadable | None:
    """The process whose folder this is; None when it is none."""
    try:
        return ProcessFolder(path, ProcessInfo.from_json(_read(path / IDENTITY)))
    except FileNotFoundError:
        holds_files = path.is_dir() and any(_NUMBERED.fullmatch(file.name) for file in path.iterdir())
        return Unreadable(path, f"{IDENTITY} is missing") if holds_files else None
    except OSError as error:
        return Unreadable(path, f"{IDENTITY}: {error.strerror or error}")
    except ValueError as error:
        return Unreadable(path, f"{IDENTITY} cannot be read: {error}")


class NotRegularError(OSError):
    """A pipe, a link, a folder: nothing to read here."""


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _read(path: Path) -> bytes:
    """The content of a regular file. Never waits. Raises OSError."""
    # Without O_NONBLOCK, to open a pipe waits until somebody writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotRegularError(errno.EINVAL, "it is no regular file", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _write(path: Path, text: str) -> None:
    waiting = path.with_name(f".tmp-{path.name}-{time.monotonic_ns()}")
    waiting.write_bytes(valid_text(text).encode())
    waiting.rename(path)
