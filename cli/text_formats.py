"""Rows as JSON, JSON lines, CSV and plain tab-separated text."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import IO, Any

import msgspec
import pyarrow as pa

# to_pylist() of a whole answer would hold every row as Python objects at once.
CHUNK_ROWS = 4096

# NaN and infinities become null, integers stay exact, decimals are numbers, bytes base64.
_ENCODER = msgspec.json.Encoder(decimal_format="number", enc_hook=str)

_ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


def write_json(table: pa.Table, stream: IO[str]) -> None:
    """A list of objects, one per line. NULL and NaN are null, 64-bit integers stay exact."""
    stream.write("[")
    for index, row in enumerate(_objects(table)):
        stream.write(",\n" if index else "\n")
        stream.write(row)
    stream.write("\n]\n" if table.num_rows else "]\n")


def write_jsonl(table: pa.Table, stream: IO[str]) -> None:
    """One object per line."""
    for row in _objects(table):
        stream.write(row + "\n")


def write_csv(table: pa.Table, stream: IO[str]) -> None:
    """A header, then one line per row; NULL is an empty cell."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(table.column_names)
    for row in _rows(table):
        writer.writerow([cell_text(value) for value in row])


def write_plain(table: pa.Table, stream: IO[str]) -> None:
    r"""A header, then one line per row, cells between tabs. Tabs and line ends inside a cell become \t, \n and \r."""
    stream.write("\t".join(name.translate(_ESCAPES) for name in table.column_names) + "\n")
    for row in _rows(table):
        stream.write("\t".join(cell_text(value).translate(_ESCAPES) for value in row) + "\n")


def cell_text(value: Any) -> str:
    """One value as text: NULL is empty, true and false as in SQL, lists and structs as JSON."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | dict | tuple):
        return _json(value)
    return str(value)


def _objects(table: pa.Table) -> Iterator[str]:
    names = table.column_names
    for row in _rows(table):
        yield _json(dict(zip(names, row, strict=True)))


def _rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    for batch in table.to_batches(max_chunksize=CHUNK_ROWS):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _json(value: Any) -> str:
    return _ENCODER.encode(value).decode()
