"""How large the rows of a compressed Arrow stream say they are, before anything is decompressed.

A few kilobytes of zstd can stand for gigabytes, and Arrow allocates what a buffer's prefix announces. The sizes are read
from the flatbuffers of the messages (Message.fbs of the Arrow format): only the fields that are needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3  # of the union MessageHeader
_HEADER_TYPE, _HEADER, _DATA, _BUFFERS, _COMPRESSION = 1, 2, 1, 2, 3  # positions of fields in their tables


def announced_bytes(payload: bytes) -> int:
    """The bytes of all buffers after decompression. Raises ValueError or pyarrow.ArrowException for no Arrow stream."""
    total = 0
    try:
        for message in pa.ipc.MessageReader.open_stream(payload):
            body = memoryview(message.body) if message.body is not None else memoryview(b"")
            total += sum(_sizes(memoryview(message.metadata), body))
    except struct.error:
        raise ValueError("a message of the Arrow stream is damaged") from None
    return total


def _sizes(metadata: memoryview, body: memoryview) -> Iterator[int]:
    (root,) = struct.unpack_from("<I", metadata, 0)
    kind_at = _field(metadata, root, _HEADER_TYPE)
    kind = metadata[kind_at] if kind_at else 0
    if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return
    batch = _table(metadata, root, _HEADER)
    if kind == _DICTIONARY_BATCH:
        batch = _table(metadata, batch, _DATA)
    compressed = _field(metadata, batch, _COMPRESSION) != 0
    buffers = _table(metadata, batch, _BUFFERS)
    (count,) = struct.unpack_from("<I", metadata, buffers)
    for number in range(count):
        offset, length = struct.unpack_from("<qq", metadata, buffers + 4 + 16 * number)
        if not compressed or length == 0:
            yield length
        else:
            (size,) = struct.unpack_from("<q", body, offset)
            yield length if size < 0 else size  # -1: this buffer is not compressed


def _field(data: memoryview, table: int, number: int) -> int:
    """Where the field of a table lies; 0 when it is absent."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    (size,) = struct.unpack_from("<H", data, vtable)
    slot = 4 + 2 * number
    if slot >= size:
        return 0
    (offset,) = struct.unpack_from("<H", data, vtable + slot)
    return table + int(offset) if offset else 0


def _table(data: memoryview, table: int, number: int) -> int:
    """Where the table or vector that a field refers to begins. Raises struct.error when the field is absent."""
    at = _field(data, table, number)
    if not at:
        raise struct.error("a field is absent")
    (offset,) = struct.unpack_from("<I", data, at)
    return at + int(offset)
