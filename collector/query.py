"""The read-only SQL door: one SELECT or EXPLAIN at a time, bounded in rows, time, memory and disk.

Nothing that passes can write, read another file, load code or change a setting. Four walls, each enough for most of
it: the file is opened read only, external access is off, the configuration is locked, and the parser's statement type
is checked before anything runs.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import duckdb
import pyarrow as pa

from annotq.agent.errors import AnnotqError
from annotq.collector.admission import admitted
from annotq.collector.bounds import BATCH_ROWS, SPILL, at_most
from annotq.collector.query_errors import asked_error
from annotq.collector.store import SCHEMA_VERSION, Store, open_to_read, stored_version
from annotq.collector.views import create_statements, load_views, views_hash


@dataclass(frozen=True)
class Limits:
    """What one question may take. `memory` and `threads` belong to the door; the other two to each question.

    rows: rows handed back. seconds: wall time. memory: as DuckDB writes it ("2GB"). threads: None means all cores.
    """

    rows: int = 10_000
    seconds: float = 60
    memory: str = "2GB"
    threads: int | None = None


@dataclass(frozen=True)
class Answer:
    """The rows, whether there were more than the limit, and the wall time in seconds."""

    table: pa.Table
    truncated: bool
    seconds: float


class Door:
    """One store file, open for reading. A context manager; threads may ask at the same time.

    A second door onto the same file in the same process has the memory and threads of the first.
    Raises AnnotqError when the file is missing, is no store, is newer than this program, or is open in another process.
    """

    def __init__(self, path: Path, limits: Limits = Limits()) -> None:
        if not path.is_file():
            raise AnnotqError(f"There is no store at {path}.", "Make one: annotq ingest DIR, or choose one with --db.")
        self.path = path
        self.limits = limits
        self._newer_views: list[str] = []
        self._asked: set[duckdb.DuckDBPyConnection] = set()
        self._stopped = False
        # A folder of its own: two processes that spill beside the store file would use the same file names.
        self._spill = tempfile.TemporaryDirectory(prefix="annotq-", ignore_cleanup_errors=True)
        try:
            self._connection = _current(path)
        except BaseException:
            self._spill.cleanup()
            raise
        try:
            self._lock()
            self._check_version()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()
        self._spill.cleanup()

    @property
    def name(self) -> str:
        """What messages call it."""
        return str(self.path)

    def ask(self, sql: str, parameters: Sequence[object] = (), *, limits: Limits | None = None) -> Answer:
        """Run one SELECT or EXPLAIN; `?` in the text are filled from `parameters`.

        Raises AnnotqError: statement refused, error in the SQL (with what it may have meant), out of time or memory.
        """
        limits = limits or self.limits
        cursor = self._connection.cursor()
        self._asked.add(cursor)
        started = time.monotonic()
        try:
            if self._stopped:
                raise AnnotqError("No more questions are asked.", "The program is about to end.")
            for statement in self._newer_views:
                cursor.execute(statement)
            text = admitted(cursor, sql)
            table = _within(limits.seconds, cursor, lambda: _rows(cursor, text, parameters, limits.rows + 1))
        except (duckdb.Error, OSError, RuntimeError) as error:
            if "Query interrupted" in str(error):  # DuckDB's words for Ctrl-C
                raise KeyboardInterrupt from None
            # Errors met while batches are pulled come out of Arrow as OSError or RuntimeError with DuckDB's text.
            raise asked_error(str(error), self.views, self.limits.memory) from None
        finally:
            self._asked.discard(cursor)
            cursor.close()
        truncated = table.num_rows > limits.rows
        return Answer(table.slice(0, limits.rows), truncated, time.monotonic() - started)

    def stop(self) -> None:
        """End the questions of other threads, which get an AnnotqError; from now on every question does."""
        self._stopped = True
        # Again and again: an interrupt that comes before the query has begun is forgotten.
        while asked := list(self._asked):
            for cursor in asked:
                with suppress(duckdb.Error):  # closed by now
                    cursor.interrupt()
            time.sleep(0.02)

    def views(self) -> list[str]:
        """Names of the public views in this store, sorted."""
        sql = "SELECT view_name FROM duckdb_views() WHERE NOT internal AND NOT starts_with(view_name, '_') ORDER BY 1"
        with self._connection.cursor() as cursor:
            return [str(row[0]) for row in cursor.execute(sql).fetchall()]

    def _lock(self) -> None:
        # Doors of one process onto one file share DuckDB's instance: the first has set and locked everything for all.
        shut = "SELECT current_setting('lock_configuration') AND NOT current_setting('enable_external_access')"
        if self._connection.execute(shut).fetchone() == (True,):
            return
        # One by one: connect(config=...) applies them in any order, and some are refused once external access is off.
        for name, value in _settings(self.limits, self._spill.name).items():
            try:
                self._connection.execute(f"SET {name} = '{value}'")
            except duckdb.Error as error:
                raise AnnotqError(f"{name} cannot be {value}: {error}", "Sizes look like 2GB or 500MB.") from None

    def _check_version(self) -> None:
        found = stored_version(self._connection, self.path)
        if found is None:
            raise AnnotqError(f"{self.path} holds no tables.", "Fill it: annotq ingest DIR")
        views = load_views()
        if found[1] != views_hash(views):
            # Written by another version of annotq: this version's views, as temporary ones, hide those in the file.
            self._newer_views = [create_statements(view, "TEMP VIEW")[0] for view in views]


def _current(path: Path) -> duckdb.DuckDBPyConnection:
    """The file opened read-only; a store of an older schema is brought up to date first. Raises AnnotqError."""
    connection = open_to_read(path)
    try:
        found = stored_version(connection, path)
        if found is None or found[0] == SCHEMA_VERSION:
            return connection
    except BaseException:
        connection.close()
        raise
    connection.close()
    Store(path).close()
    return open_to_read(path)


def _settings(limits: Limits, spill: str) -> dict[str, str]:
    """In the order in which they have to be set. The values are ours or, quoted, the user's --memory."""
    settings = {
        "threads": "" if limits.threads is None else str(limits.threads),
        "memory_limit": limits.memory.replace("'", "''"),
        "temp_directory": spill.replace("'", "''"),
        "max_temp_directory_size": SPILL,
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
        "allow_persistent_secrets": "false",
        "python_enable_replacements": "false",
        "preserve_insertion_order": "false",
        "enable_external_access": "false",
        "lock_configuration": "true",
    }
    return {name: value for name, value in settings.items() if value}


def _rows(cursor: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[object], limit: int) -> pa.Table:
    with at_most(cursor, sql, parameters, limit).to_arrow_reader(BATCH_ROWS) as reader:
        table: pa.Table = reader.read_all()
    return table


def _within(seconds: float, cursor: duckdb.DuckDBPyConnection, work: Callable[[], pa.Table]) -> pa.Table:
    """Runs `work` in a thread, so that both the time limit and Ctrl-C reach a query that is busy inside DuckDB."""
    found: list[pa.Table] = []
    failed: list[BaseException] = []
    # Not the thread's join and is_alive: to Python 3.11 a thread whose join Ctrl-C interrupts has ended, whatever it does.
    ended = threading.Event()

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            failed.append(error)
        finally:
            ended.set()

    # A daemon: should Ctrl-C come while the thread starts, the process can still end.
    thread = threading.Thread(target=run, name="annotq-query", daemon=True)
    try:
        thread.start()
        if not ended.wait(seconds):
            raise AnnotqError(
                f"The query was stopped after {seconds:g} s.",
                "Ask for less (one job, rank, region or step), or give it more time with --timeout.",
            )
    finally:
        # Again and again: an interrupt that comes before the query has begun is forgotten.
        while thread.ident is not None and not ended.is_set():
            with suppress(KeyboardInterrupt):  # the first one is being obeyed
                cursor.interrupt()
                ended.wait(0.05)
    if failed:
        raise failed[0]
    return found[0]
