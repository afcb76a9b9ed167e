"""The step time of both sides: how it is spread over the steps, and rank by rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from annotq.cli.html.comparison_axis import Axis, linear_axis
from annotq.cli.html.comparison_sides import Compared
from annotq.cli.html.comparison_sql import changes_statement
from annotq.cli.html.comparison_times import RankTimes, ranks_statement, steps_statement
from annotq.cli.html.figure import Figure, without_data
from annotq.cli.html.rendering import duration, render
from annotq.collector.diff import SMALLEST_EFFECT

# Dots that a strip can show; of more steps the box and the whiskers say it.
MOST_DOTS = 300
# Ranks that are shown one by one: those whose compute or step changed unlike that of the others.
MOST_RANKS = 32


@dataclass(frozen=True)
class Strip:
    """A side's steps on the axis: per cent of the width. dots: (place, what it says), empty for many steps."""

    word: str
    title: str
    steps: int
    texts: tuple[str, ...]
    dots: tuple[tuple[float, str], ...]
    whiskers: tuple[float, float]
    box: tuple[float, float]
    middle: float


@dataclass(frozen=True)
class Dumbbell:
    """A time before and after on an axis; None where the rank is on one side only. direction: slower, faster or neither."""

    before: float | None
    after: float | None
    before_text: str
    after_text: str
    direction: str


@dataclass(frozen=True)
class RankRow:
    rank: int
    host: str
    step: Dumbbell
    compute: Dumbbell


def step_figure(before: Compared, after: Compared, inflation: float) -> Figure:
    """The distribution over the steps, then the ranks."""
    statements = [
        steps_statement(before.side),
        steps_statement(after.side),
        changes_statement(before.side, after.side, ("step",), inflation, max(before.most_steps, after.most_steps)),
        ranks_statement(before.side),
        ranks_statement(after.side),
    ]
    title = "Step time"
    sides = [(word, side) for word, side in (("before", before), ("after", after)) if side.steps]
    if not sides:
        return without_data(
            "step", title, "Neither side has GPU work in a step, so there is no step to time.", statements
        )
    axis = linear_axis([row.median_ns for _, side in sides for row in side.steps], with_zero=False)
    ranks, left = _rank_rows(before, after)
    body = render(
        "comparison_steps.html",
        axis=axis,
        strips=[_strip(word, side, axis) for word, side in sides],
        lacking=[side.title for side in (before, after) if not side.steps],
        ranks=ranks,
        left=left,
        compute_axis=_ranks_axis(before, after, "compute_ns"),
        step_axis=_ranks_axis(before, after, "step_ns"),
    )
    lead = (
        "From the end of one step's work to the end of the next; a window's first step is left out. Each dot is a step: the "
        "median of the ranks. The box holds the middle half of the steps, the line is their median."
    )
    return Figure("step", title, lead, body, statements)


def _strip(word: str, side: Compared, axis: Axis) -> Strip:
    medians = np.array([row.median_ns for row in side.steps])
    levels = np.quantile(medians, [0, 0.25, 0.5, 0.75, 1])
    slowest = float(np.median([row.slowest_ns for row in side.steps]))
    dots = [(axis.at(row.median_ns), f"step {row.step}: {duration(row.median_ns)}") for row in side.steps]
    return Strip(
        word=word,
        title=side.title,
        steps=len(medians),
        texts=(*(duration(float(level)) for level in levels[[0, 2, 4]]), duration(slowest)),
        dots=tuple(dots) if len(dots) <= MOST_DOTS else (),
        whiskers=(axis.at(float(levels[0])), axis.at(float(levels[4]))),
        box=(axis.at(float(levels[1])), axis.at(float(levels[3]))),
        middle=axis.at(float(levels[2])),
    )


def _rank_rows(before: Compared, after: Compared) -> tuple[list[RankRow], int]:
    """By rank; of many, those that changed unlike the others, and how many are left out."""
    sides = [{row.rank: row for row in side.ranks} for side in (before, after)]
    ranks = sorted(sides[0] | sides[1])
    if len(ranks) > MOST_RANKS:
        apart = _apart(sides, ranks)
        ranks = sorted(sorted(ranks, key=lambda rank: (-apart[rank], rank))[:MOST_RANKS])
    step, compute = (_ranks_axis(before, after, column) for column in ("step_ns", "compute_ns"))
    rows = [
        RankRow(
            rank,
            _host(before, after, rank),
            _dumbbell(sides, rank, "step_ns", step),
            _dumbbell(sides, rank, "compute_ns", compute),
        )
        for rank in ranks
    ]
    return rows, len(sides[0] | sides[1]) - len(ranks)


def _host(before: Compared, after: Compared, rank: int) -> str:
    hosts = dict.fromkeys(side.receipt.hosts.get(rank) for side in (before, after))
    return " / ".join(host for host in hosts if host)


def _apart(sides: Sequence[dict[int, RankTimes]], ranks: Sequence[int]) -> dict[int, float]:
    """By rank, how far the change of its compute or step is from the ranks' median change, in ns; infinite on one side only."""
    changes = np.full((len(ranks), 2), np.nan)
    for place, rank in enumerate(ranks):
        first, second = (side.get(rank) for side in sides)
        if first is not None and second is not None:
            changes[place] = second.step_ns - first.step_ns, (second.compute_ns or 0) - (first.compute_ns or 0)
    if np.isnan(changes).all():
        return dict.fromkeys(ranks, 0.0)
    far = np.abs(changes - np.nanmedian(changes, axis=0)).max(axis=1)
    return dict(zip(ranks, np.nan_to_num(far, nan=np.inf).tolist(), strict=True))


def _ranks_axis(before: Compared, after: Compared, column: str) -> Axis:
    values = [getattr(row, column) for side in (before, after) for row in side.ranks]
    return linear_axis([value for value in values if value is not None], with_zero=True)


def _dumbbell(sides: Sequence[dict[int, RankTimes]], rank: int, column: str, axis: Axis) -> Dumbbell:
    first, second = (getattr(side[rank], column) if rank in side else None for side in sides)
    return Dumbbell(
        before=None if first is None else axis.at(first),
        after=None if second is None else axis.at(second),
        before_text=duration(first),
        after_text=duration(second),
        direction=_direction(first, second),
    )


def _direction(first: float | None, second: float | None) -> str:
    """As diff has it: less than 1 % is no change."""
    if first is None or second is None or abs(second - first) < SMALLEST_EFFECT * first:
        return "neither"
    return "slower" if second > first else "faster"
