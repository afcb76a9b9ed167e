"""The DuckDB file: opening, schema version, tables and views.

One process owns the file while it writes; readers go through query.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Self

import duckdb

from annotq.agent.errors import AnnotqError
from annotq.collector.views import create_statements, load_views, views_hash

SCHEMA_VERSION = 4

# With the optimizer the join of events with annotations is 7x slower and takes 8x the memory (DuckDB 2.0.1).
DISABLED_OPTIMIZERS = "partial_aggregate_pushdown"

# A loader holds one batch and the row groups being written; more memory does not make it faster.
WRITER_MEMORY = "100MB"


# A quarter of DuckDB's: the rows of one trace are then compressed while they come in, not all
# at the commit (0.12 s for 100,000 kernels; 0.07 s with this).
ROW_GROUP_ROWS = 30_720


def id_of(*parts: object) -> int:
    """A 52-bit id of what the parts identify: equal in every store, exact in a JSON double."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 12


class Store:
    """The writing end of a store file. A context manager; closing checkpoints the write-ahead log.

    Raises AnnotqError when the file is not a store, is newer than this program, or is open in another process.
    """

    def __init__(self, path: Path, memory: str = WRITER_MEMORY) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AnnotqError(f"{path.parent}: {error.strerror}.", "Choose another file with --db.") from None
        self.connection = open_to_write(path, memory)
        try:
            self._prepare()
        except BaseException:
            self.connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.connection.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """All or nothing: commits at the end, rolls back on any exception, KeyboardInterrupt included."""
        self.connection.execute("BEGIN")
        try:
            yield self.connection
            self.connection.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(duckdb.Error):  # nothing to roll back when the commit itself failed
                self.connection.execute("ROLLBACK")
            if "Query interrupted" in str(error):  # DuckDB's words for Ctrl-C while it was busy
                raise KeyboardInterrupt from None
            if isinstance(error, duckdb.IOException | duckdb.TransactionException | duckdb.OutOfMemoryException):
                what = str(error).splitlines()[0]
                raise AnnotqError(
                    f"{self.path}: {what}", "Check the space on that disk; nothing was changed."
                ) from None
            raise

    def _prepare(self) -> None:
        found = stored_version(self.connection, self.path)
        views = load_views()
        wanted = views_hash(views)
        if found == (SCHEMA_VERSION, wanted):
            return
        with self.transaction() as connection:
            for script in _scripts(after=found[0] if found else 0):
                connection.execute(script)
            if found is None:
                connection.execute("INSERT INTO store_version VALUES (?, ?, '')", [SCHEMA_VERSION, version("annotq")])
            connection.execute("UPDATE store_version SET schema_version = ?", [SCHEMA_VERSION])
            for view in views:
                for statement in create_statements(view):
                    connection.execute(statement)
            connection.execute("UPDATE store_version SET views = ?", [wanted])


def _scripts(after: int) -> list[str]:
    """The schema scripts (001_x.sql makes version 1, 002_y.sql takes it to 2, ...) past a version, in order."""
    scripts = [entry for entry in files("annotq.collector.sql.schema").iterdir() if entry.name.endswith(".sql")]
    return [
        script.read_text(encoding="utf-8")
        for script in sorted(scripts, key=lambda entry: entry.name)
        if int(script.name.partition("_")[0]) > after
    ]


def open_to_read(path: Path) -> duckdb.DuckDBPyConnection:
    """Open an existing file read-only.

    Raises AnnotqError: open in another process, not a DuckDB file, written by a newer DuckDB, or not accessible.
    """
    try:
        return duckdb.connect(str(path), read_only=True, config={"disabled_optimizers": DISABLED_OPTIMIZERS})
    except duckdb.Error as error:
        raise _opening_error(path, str(error)) from None


def open_to_write(path: Path, memory: str) -> duckdb.DuckDBPyConnection:
    """Open or create a file for writing. Raises AnnotqError as open_to_read."""
    # One thread inserts a trace in half the time that two need, and leaves the other cores to the readers.
    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": memory,
        "threads": 1,
        "disabled_optimizers": DISABLED_OPTIMIZERS,
    }
    connection = duckdb.connect(config=settings)
    try:
        # Attached rather than opened: only so can the row group size be chosen.
        where = str(path).replace("'", "''")
        connection.execute(f"ATTACH '{where}' AS store (ROW_GROUP_SIZE {ROW_GROUP_ROWS})")
        connection.execute("USE store")
    except duckdb.Error as error:
        connection.close()
        raise _opening_error(path, str(error)) from None
    return connection


def stored_version(connection: duckdb.DuckDBPyConnection, path: Path) -> tuple[int, str] | None:
    """(schema version, hash of the views) of an open store; None for a file without any table.

    Raises AnnotqError when the file holds something else or comes from a newer annotq.
    """
    tables = {str(row[0]) for row in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    if not tables:
        return None
    if "store_version" not in tables:
        raise AnnotqError(f"{path} is a DuckDB file, but not an annotq store.", "Choose another file with --db.")
    row = connection.execute("SELECT schema_version, created_by, views FROM store_version").fetchone()
    assert row is not None
    if row[0] > SCHEMA_VERSION:
        raise AnnotqError(
            f"{path} has store schema {row[0]}, written by annotq {row[1]}; this annotq knows schema {SCHEMA_VERSION}.",
            "Upgrade: pip install --upgrade annotq",
        )
    return int(row[0]), str(row[2])


def _opening_error(path: Path, text: str) -> AnnotqError:
    if "lock" in text.lower():
        owner = re.search(r"PID (\d+)", text)
        who = f" (PID {owner.group(1)})" if owner else ""
        return AnnotqError(f"{path} is open in another process{who}.", "Wait until it is done, or choose another --db.")
    if "not a valid DuckDB" in text or "newer" in text or "magic" in text:
        return AnnotqError(
            f"{path} cannot be read as a store: {text.splitlines()[0]}", "Choose another file with --db."
        )
    return AnnotqError(f"{path} cannot be opened: {text.splitlines()[0]}", "Check the path and its permissions.")
