"""In which order the ranks stand, and which of them are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

from annotq.cli.rank_ranges import Ranges
from annotq.cli.top.rows import RankRow


class Order(StrEnum):
    """worst: dead and silent ranks, then by time lost in the newest window. step, rank: the lowest first; others: the highest."""

    WORST = "worst"
    RANK = "rank"
    STATE = "state"
    STEP = "step"
    TIME = "time"
    BEHIND = "behind"
    RATIO = "ratio"
    WAIT = "wait"
    AGE = "age"


_SEVERITY = {"gone": 0, "silent": 1, "ending": 2, "running": 3, None: 3, "stopped": 4}


Key = tuple[float, ...] | None


def _high(value: float | None) -> Key:
    return None if value is None else (-value,)


def _low(value: float | None) -> Key:
    return None if value is None else (value,)


_KEYS: dict[Order, Callable[[RankRow], Key]] = {
    Order.WORST: lambda row: (_SEVERITY[row.state], -(row.behind_ns or 0.0)),
    Order.RANK: lambda row: (),
    Order.STATE: lambda row: (_SEVERITY[row.state],),
    Order.STEP: lambda row: _low(row.step),
    Order.TIME: lambda row: _high(row.step_ns),
    Order.BEHIND: lambda row: _high(row.behind_ns),
    Order.RATIO: lambda row: _high(row.ratio),
    Order.WAIT: lambda row: _high(row.wait_share),
    Order.AGE: lambda row: _high(row.age_ns),
}


def ordered(rows: Iterable[RankRow], order: Order, backwards: bool = False) -> list[RankRow]:
    """Equal ones by rank, those where it is not known at the end. backwards: the known ones the other way round."""
    keys = [(_KEYS[order](row), row) for row in sorted(rows, key=lambda row: row.rank)]
    known = sorted(((key, row) for key, row in keys if key is not None), key=lambda pair: pair[0])
    if backwards:
        known.reverse()
    return [row for _, row in known] + [row for key, row in keys if key is None]


def chosen(rows: Sequence[RankRow], ranges: Ranges) -> list[RankRow]:
    """Those in one of the ranges; all without any."""
    return [row for row in rows if not ranges or any(first <= row.rank <= last for first, last in ranges)]
