"""Nanosecond columns: durations in another unit or as readable text, moments as UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from annotq.cli.options import TimeUnit

NS_PER = {TimeUnit.NS: 1, TimeUnit.US: 1_000, TimeUnit.MS: 1_000_000, TimeUnit.S: 1_000_000_000}

# Marks a text column that stands for numbers: it is aligned like them.
NUMBER = {b"annotq": b"number"}

DECIMALS = {TimeUnit.US: 3, TimeUnit.MS: 3, TimeUnit.S: 6}

# Since the epoch; every other column that ends in _ns is a duration.
_MOMENT = re.compile(r"(?:^|_)(?:start|end|seen|arrive|launch|base|from|to|sent|received|answered|returned)_ns$")


def is_moment(name: str) -> bool:
    return _MOMENT.search(name) is not None


def is_duration(name: str) -> bool:
    return name.endswith("_ns") and not is_moment(name)


def narrowed(table: pa.Table) -> pa.Table:
    """Whole-number decimals as int64 where every value fits: DuckDB's sum of BIGINT is wider than any reader needs."""
    for index, field in enumerate(table.schema):
        if pa.types.is_decimal(field.type) and field.type.scale == 0:
            try:
                table = table.set_column(index, field.name, table.column(index).cast(pa.int64()))
            except pa.ArrowInvalid:
                continue
    return table


def scaled(table: pa.Table, unit: TimeUnit) -> pa.Table:
    """Durations as float64 in `unit`, the column's suffix changed with it. Nanoseconds stay the integers they are."""
    if unit == TimeUnit.NS:
        return table
    for index, field in enumerate(table.schema):
        if is_duration(field.name) and is_number(field.type):
            values = pc.divide(table.column(index).cast(pa.float64()), float(NS_PER[unit]))
            table = table.set_column(index, f"{field.name.removesuffix('ns')}{unit}", values)
    return table


def readable(table: pa.Table, unit: TimeUnit) -> pa.Table:
    """The same rows for a person: moments as UTC text, durations as text such as "16.3 ms" or as numbers in `unit`.

    A column whose values carry their unit loses the `_ns` of its name.
    """
    for index, field in enumerate(table.schema):
        if not is_number(field.type):
            continue
        values = table.column(index).to_pylist()
        stem = field.name.removesuffix("_ns")
        if stem in table.column_names:
            stem = field.name  # agents has a step and a step_ns
        if is_moment(field.name):
            table = _with_texts(table, index, f"{stem}_utc", [utc_text(value) for value in values])
        elif is_duration(field.name) and unit == TimeUnit.AUTO:
            table = _with_texts(table, index, stem, [duration_text(value) for value in values])
        elif is_duration(field.name) and unit != TimeUnit.NS:
            texts = [None if value is None else f"{value / NS_PER[unit]:.{DECIMALS[unit]}f}" for value in values]
            table = _with_texts(table, index, f"{stem}_{unit}", texts)
    return table


def duration_text(ns: float | None) -> str | None:
    """Three significant digits and the unit that fits: "820 ns", "16.3 ms", "1.20 s"."""
    if ns is None or ns != ns:
        return None
    for unit in (TimeUnit.US, TimeUnit.MS, TimeUnit.S):
        # 999.95 us would round to "1000 us": the next unit starts a little early.
        if abs(ns) < NS_PER[unit] * 0.9995:
            break
    else:
        return f"{ns / NS_PER[TimeUnit.S]:.{_decimals(ns / NS_PER[TimeUnit.S])}f} s"
    smaller = {TimeUnit.US: TimeUnit.NS, TimeUnit.MS: TimeUnit.US, TimeUnit.S: TimeUnit.MS}[unit]
    value = ns / NS_PER[smaller]
    digits = 0 if smaller == TimeUnit.NS else _decimals(value)
    return f"{value:.{digits}f} {smaller}"


def utc_text(ns: float | None) -> str | None:
    """A moment since the epoch as "2026-01-31 12:00:00.123456", UTC, cut to the microsecond."""
    if ns is None:
        return None
    try:
        whole, rest = divmod(int(ns), NS_PER[TimeUnit.S])
        moment = datetime.fromtimestamp(whole, UTC)
    except (ValueError, OverflowError, OSError):
        return str(ns)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{rest // 1_000:06d}"


def _with_texts(table: pa.Table, index: int, name: str, texts: list[str | None]) -> pa.Table:
    field = pa.field(name, pa.string(), metadata=NUMBER)
    return table.set_column(index, field, pa.array(texts, pa.string()))


def _decimals(value: float) -> int:
    return 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0


def is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
