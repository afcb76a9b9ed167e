"""The DuckDB instance of a collector: one connection that writes, and a few cursors that can only read.

Both live in one process because DuckDB lets no second process open the file. After opening, external access is off and
the configuration locked, for the writer too: it needs neither.
"""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

import duckdb

from annotq.agent.errors import AnnotqError
from annotq.collector.bounds import SPILL
from annotq.collector.store import Store


def is_passing(error: Exception) -> bool:
    """Whether an error is about the machine and not about the data: no space, no memory, a file that cannot be written."""
    if isinstance(error, duckdb.OutOfMemoryException | duckdb.IOException | duckdb.FatalException):
        return True
    return isinstance(error, duckdb.TransactionException) and "constraint" not in str(error).lower()


def lacks_memory(error: Exception) -> bool:
    """Whether it is memory that was missing; a commit wraps the error and tells it by its words only."""
    return isinstance(error, duckdb.OutOfMemoryException) or bool(_NO_MEMORY.search(str(error)))


_NO_MEMORY = re.compile("(allocate|pin) (data|block) of size")


class Instance:
    """An open store file. Raises AnnotqError as Store does, and for a memory size that is none.

    writer: the store's writing end. readers: connections for questions, each for one at a time.
    """

    def __init__(self, path: Path, memory: str, questions: int) -> None:
        self.path = path
        self._file: tuple[int, int] | None = None  # device and inode of the open file
        self._memory = memory
        self._questions = questions
        # A folder of its own: another process that spills beside the store file would use the same file names.
        self._spill = tempfile.TemporaryDirectory(prefix="annotq-", ignore_cleanup_errors=True)
        try:
            self._open()
        except BaseException:
            self._spill.cleanup()
            raise

    def reopen(self) -> None:
        """Drop what is in memory and read the file and its log again. Raises as the constructor.

        After an error from which DuckDB does not recover; and after a commit that lacked memory: seen on 2.0.1, its undoing
        can leave keys in an index that are in no table. No question may be running. Raises AnnotqError too when another file,
        or none, is there now: opening would make an empty store.
        """
        if problem := self.file_problem():
            raise AnnotqError(problem)
        self._close_connections()
        self._open()

    def file_problem(self) -> str:
        """Why what is committed now would be lost with the process: the open file has no name any more. Empty: it has."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return f"The store file {self.path} was removed; put it back, or start the collector anew."
        except OSError as error:
            return f"The store file {self.path} cannot be reached: {error.strerror}."
        if (found.st_dev, found.st_ino) != self._file:
            return f"The store file {self.path} was replaced by another; put it back, or start the collector anew."
        return ""

    def checkpoint(self) -> None:
        """Move everything from the write-ahead log into the file."""
        self.writer.connection.execute("CHECKPOINT")

    @property
    def memory_bytes(self) -> int:
        """The memory limit of the database."""
        sql = "SELECT parse_formatted_bytes(current_setting('memory_limit'))"
        ((size,),) = self.readers[0].execute(sql).fetchall()
        return int(size)

    def close(self) -> None:
        self._close_connections()
        self._spill.cleanup()

    def _open(self) -> None:
        self.writer = Store(self.path)
        found = self.path.stat()
        self._file = found.st_dev, found.st_ino
        self.readers: list[duckdb.DuckDBPyConnection] = []
        try:
            self._set_up()
        except BaseException:
            self._close_connections()
            raise

    def _set_up(self) -> None:
        connection = self.writer.connection
        spill = self._spill.name.replace("'", "''")
        memory = self._memory.replace("'", "''")
        try:
            connection.execute(f"SET memory_limit = '{memory}'")
        except duckdb.Error as error:
            raise AnnotqError(f"--memory cannot be {self._memory}: {error}", "Sizes look like 2GB or 500MB.") from None
        # Half of the cores for questions; the writer uses one thread whatever this says.
        connection.execute(f"SET threads = {max(1, (os.cpu_count() or 1) // 2)}")
        connection.execute(f"SET temp_directory = '{spill}'")
        connection.execute(f"SET max_temp_directory_size = '{SPILL}'")
        for name in ("autoinstall_known_extensions", "autoload_known_extensions", "allow_community_extensions"):
            connection.execute(f"SET {name} = false")
        connection.execute("SET allow_persistent_secrets = false")
        # So that nothing doubtful gets from memory into the file; an orderly end checkpoints by itself.
        connection.execute("PRAGMA disable_checkpoint_on_shutdown")
        for _ in range(self._questions):
            reader = connection.cursor()
            reader.execute("USE store")
            reader.execute("SET SESSION python_enable_replacements = false")
            self.readers.append(reader)
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")

    def _close_connections(self) -> None:
        for connection in (*self.readers, self.writer.connection):
            with suppress(duckdb.Error):
                connection.close()
