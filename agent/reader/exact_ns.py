"""Decimal microseconds, as JSON text, to integer nanoseconds without passing through a float.

An absolute `ts` of today has 16 digits before the point: a float64 (2^53) cannot hold its nanoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Raw

Int64s = npt.NDArray[np.int64]

MAX_START_NS = 1 << 62
# start + base + duration stays inside int64 when the base and the duration are each below this.
MAX_DURATION_NS = 1 << 61

_MICROSECOND = pa.scalar(1000, pa.decimal128(4, 0))
_DECIMAL_22_9 = pa.decimal128(31, 9)
_WIDE = Context(prec=80, rounding=ROUND_HALF_EVEN)


def exact_ns(texts: Sequence[Raw]) -> tuple[Int64s, dict[int, str]]:
    """Convert n JSON numbers in microseconds to int64 nanoseconds [n]; digits below 1 ns are rounded half to even.

    The second value maps the index of each text that is no number within +-2^62 ns to the reason; its ns are 0.
    """
    if not texts:
        return np.empty(0, np.int64), {}
    joined = b" ".join(texts)
    fast = _three_decimals(joined, len(texts))
    if fast is None:
        fast = _short_decimals(joined, len(texts))
    return (fast, {}) if fast is not None else _any_decimals(texts)


def _three_decimals(joined: bytes, count: int) -> Int64s | None:
    """Read what Kineto writes (always three decimals) by dropping the point; None when a text looks different."""
    if joined.translate(None, b"0123456789") != (b". " * count)[:-1]:
        return None
    data = np.frombuffer(joined, np.uint8)
    places = np.flatnonzero(data < ord("0"))
    points, ends = places[::2], np.append(places[1::2], len(joined))
    whole = points[1:] - ends[:-1] - 1  # digits before each point but the first
    # At most 15 digits before the point and 3 after it: no overflow.
    if (ends - points != 4).any() or not 0 < points[0] < 16 or (count > 1 and not 0 < whole.min() <= whole.max() < 16):
        return None
    values: Int64s = np.fromstring(joined.translate(None, b"."), np.int64, sep=" ")
    return values if values.max() < MAX_START_NS else None


def _short_decimals(joined: bytes, count: int) -> Int64s | None:
    """Read numbers of any form with up to nine decimals (a trace that Python wrote again); None when one is longer."""
    texts = joined.split(b" ")
    if len(texts) != count or b"" in texts or b'"' in joined:
        return None
    import pyarrow.compute as pc  # 30 ms, and Kineto's own traces do without

    try:
        micros = pa.array(texts, pa.binary()).cast(pa.string()).cast(_DECIMAL_22_9)
        values = pc.multiply(micros, _MICROSECOND)
        nanos: Int64s = pc.round(values, 0, "half_to_even").cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        return None
    return nanos if np.abs(nanos).max() < MAX_START_NS else None


def _any_decimals(texts: Sequence[Raw]) -> tuple[Int64s, dict[int, str]]:
    values = np.zeros(len(texts), np.int64)
    bad: dict[int, str] = {}
    for i, raw in enumerate(texts):
        ns = _one_ns(bytes(raw))
        if isinstance(ns, str):
            bad[i] = ns
        else:
            values[i] = ns
    return values, bad


def _one_ns(text: bytes) -> int | str:
    if not text:
        return "missing"
    try:
        value = Decimal(text.decode())
    except (InvalidOperation, UnicodeDecodeError):
        return "not a number"
    if not value.is_finite():
        return "not a number"
    # The exponent is looked at first: 1e999999999 would otherwise be written out in full.
    if value and value.adjusted() > 18:
        return "beyond 64-bit nanoseconds"
    ns = int(_WIDE.to_integral_value(_WIDE.scaleb(value, 3)))
    return ns if abs(ns) < MAX_START_NS else "beyond 64-bit nanoseconds"
