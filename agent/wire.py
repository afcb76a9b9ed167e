"""What a shipper and a collector agree on: version of the batches, sequence numbers, Arrow encoding.

The messages themselves are in protos/annotq/v1/collector.proto; the row schemas in batches.py.
"""

from __future__ import annotations

import pyarrow as pa

# Of the batches: headers, row schemas and their meaning. The collector refuses another one at Register.
SCHEMA_VERSION = 1

# Rows of one batch of events. Both sides hold a few batches in memory; DuckDB inserts this many at full speed.
BATCH_ROWS = 100_000

# No batch is larger: a message beyond this is refused by gRPC itself (RESOURCE_EXHAUSTED).
LARGEST_MESSAGE_BYTES = 32 << 20

# A process's spool files are numbered from 1, the batches of a file from 0: the sequence of a batch tells both, so a
# shipper that starts again counts the same way without a memory of its own.
_PARTS = 1 << 20


def sequence_of(file_number: int, part: int) -> int:
    """The sequence of the part-th batch of a spool file. Raises ValueError past the last part (10^11 rows)."""
    if not 0 <= part < _PARTS or file_number < 1:
        raise ValueError(f"file {file_number}, part {part}")
    return file_number * _PARTS + part


def file_of(sequence: int) -> tuple[int, int]:
    """(file_number, part) of a sequence."""
    return divmod(sequence, _PARTS)


def encode(batches: list[pa.RecordBatch] | pa.Table, schema: pa.Schema) -> bytes:
    """Rows as an Arrow IPC stream with zstd; dictionaries are unified, so a stream holds each name once."""
    table = pa.Table.from_batches(batches, schema) if isinstance(batches, list) else batches
    table = table.unify_dictionaries().combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()
