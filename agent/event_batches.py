"""Cuts rows into the batches that travel: always the same ones for the same file, whatever the reader's pieces were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa

from annotq.agent.errors import AnnotqError
from annotq.agent.wire import BATCH_ROWS, LARGEST_MESSAGE_BYTES, encode

# A batch that does not fit into one message is halved, at most until there are so many pieces.
MOST_PIECES = 16

# What decides how a trace becomes batches, reader included. A collector that holds half a trace of another layout begins it
# again, because the same numbers would then mean other rows.
LAYOUT = f"annotq {version('annotq')}, {BATCH_ROWS} rows, {MOST_PIECES} pieces"

# Below this a dictionary may hold names that its batch does not use.
_SMALL_DICTIONARY_BYTES = 32 << 10


def recut(batches: Iterable[pa.RecordBatch], schema: pa.Schema, rows: int = BATCH_ROWS) -> Iterator[pa.Table]:
    """The same rows in the same order as tables of exactly `rows` rows, the last one of the rest; none when there are none."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        first = 0
        while batch.num_rows - first >= rows - count:
            held.append(batch.slice(first, rows - count))
            first += rows - count
            yield pa.Table.from_batches(held, schema)
            held, count = [], 0
        if first < batch.num_rows:
            held.append(batch.slice(first))
            count += batch.num_rows - first
    if held:
        yield pa.Table.from_batches(held, schema)


def payloads(table: pa.Table, most: int = MOST_PIECES, largest: int = LARGEST_MESSAGE_BYTES) -> list[bytes]:
    """The table as Arrow streams (wire.encode): one, or up to `most` where one would be larger than a message may be.

    Raises AnnotqError when that is not enough.
    """
    return _halved(_with_used_names(table), largest, most)


def _halved(table: pa.Table, largest: int, pieces: int) -> list[bytes]:
    payload = encode(table, table.schema)
    if len(payload) <= largest:
        return [payload]
    if pieces == 1 or table.num_rows < 2:
        raise AnnotqError(f"{table.num_rows:,} rows take {len(payload):,} bytes, more than a message may hold.")
    half = table.num_rows // 2
    first, second = (_with_used_names(part) for part in (table.slice(0, half), table.slice(half)))
    return [*_halved(first, largest, pieces // 2), *_halved(second, largest, pieces // 2)]


def _with_used_names(table: pa.Table) -> pa.Table:
    """Leave out of the dictionaries what these rows do not use: a reader gives all names of a trace to every batch."""
    table = table.unify_dictionaries().combine_chunks()
    for position, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type) and table.num_rows:
            column = table.column(position).chunk(0)
            assert isinstance(column, pa.DictionaryArray)
            if column.dictionary.nbytes > _SMALL_DICTIONARY_BYTES:
                table = table.set_column(position, field, _compact(column))
    return table


def _compact(column: pa.DictionaryArray[Any, Any]) -> pa.DictionaryArray[Any, Any]:
    missing = np.asarray(column.indices.is_null())
    indices = np.asarray(column.indices.fill_null(0))
    used, codes = np.unique(indices[~missing], return_inverse=True)
    compact = np.zeros(len(indices), np.int32)
    compact[~missing] = codes
    remaining: pa.Array[Any] = pa.array(compact, pa.int32(), mask=missing)
    return pa.DictionaryArray.from_arrays(remaining, column.dictionary.take(pa.array(used)))
