"""The collective fields of an event or an annotation, under Kineto's names, as the columns of `batches.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from annotq.agent.batches import COLLECTIVE_COLUMNS, COLLECTIVE_FIELDS, coded

CollectiveValues = tuple[str | int | None, ...]

_TYPES = tuple(COLLECTIVE_FIELDS.items())
SEQUENCE = list(COLLECTIVE_FIELDS).index("Seq")
NONE: CollectiveValues = (None,) * len(_TYPES)


def collective_values(fields: Mapping[str, Any]) -> CollectiveValues:
    """Pick the collective fields in the order of COLLECTIVE_COLUMNS; None for what is missing or of no use.

    Lists (ranks, split sizes) become the text that Kineto writes for them: "[0, 1, 2, 3]".
    """
    return tuple(
        _integer(fields.get(key)) if type_ == pa.int64() else _text(fields.get(key)) for key, (_, type_) in _TYPES
    )


def collective_arrays(rows: Sequence[CollectiveValues]) -> list[pa.Array[Any]]:
    """Turn n rows into the arrays [n] of COLLECTIVE_COLUMNS."""
    columns = zip(*rows, strict=True) if rows else [()] * len(COLLECTIVE_COLUMNS)
    return [
        coded(column) if pa.types.is_dictionary(field.type) else pa.array(column, field.type)
        for column, field in zip(columns, COLLECTIVE_COLUMNS, strict=True)
    ]


def _integer(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -(1 << 63) <= number < 1 << 63 else None


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, default=str)
