"""Rows as an Arrow IPC stream or a Parquet file."""

from __future__ import annotations

from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq


def write_arrow(table: pa.Table, stream: BytesIO) -> None:
    """The IPC stream format, as pyarrow.ipc.open_stream reads it."""
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)


def write_parquet(table: pa.Table, stream: BytesIO) -> None:
    """One Parquet file, zstd."""
    pq.write_table(table, stream, compression="zstd")
