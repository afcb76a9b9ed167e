"""Columns of an answer as numbers and as Python objects."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa


def int64s(rows: pa.Table, name: str, null: int = 0) -> npt.NDArray[np.int64]:
    """A column of integers; `null` stands for NULL."""
    column: Any = rows[name]  # pyarrow's stubs take no int here
    return np.asarray(column.fill_null(null).to_numpy(), np.int64)


def known(rows: pa.Table, name: str) -> npt.NDArray[np.bool_]:
    """Where a column is not NULL."""
    return np.asarray(rows[name].is_valid().to_numpy(), np.bool_)


def coded(rows: pa.Table) -> pa.Table:
    """The same rows, each text held once: a tenth of the memory where few texts stand in many rows."""
    columns = [column.dictionary_encode() if _is_text(column.type) else column for column in rows.columns]
    return rows.from_arrays(columns, names=rows.column_names)


def objects(rows: pa.Table, name: str) -> list[Any]:
    """A column as Python objects; equal texts are one object, which is quick to make and to compare."""
    column: Any = rows[name]
    if _is_text(column.type):
        column = column.dictionary_encode()
    if not _is_coded(column.type):
        return list(column.to_pylist())
    codes = column.combine_chunks()
    texts = codes.dictionary.to_pylist()
    return [None if code is None else texts[code] for code in codes.indices.to_pylist()]


def parts(rows: pa.Table, name: str) -> dict[int, pa.Table]:
    """The rows of each value of a column of integers; in the table they stand together."""
    values = int64s(rows, name)
    bounds = [0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)]
    return {int(values[low]): rows.slice(low, high - low) for low, high in pairwise(bounds) if high > low}


def _is_text(kind: pa.DataType) -> bool:
    return bool(kind.equals("string") or kind.equals("large_string"))


def _is_coded(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_dictionary(kind)
