"""What bounds an answer, for both doors: rows that are pulled one batch at a time, and room on disk."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

# Sorts and joins past the memory limit go to disk, up to here.
SPILL = "10GB"
BATCH_ROWS = 8192


def at_most(
    cursor: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[object], rows: int
) -> duckdb.DuckDBPyRelation:
    """The first rows of an admitted statement. A relation streams, where execute() would first build the whole result."""
    return cursor.sql(sql, params=list(parameters)).limit(rows)
