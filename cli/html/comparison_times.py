"""How long the steps of a side lasted: by step, by rank, and in parts. Asked once per attempt, cut to the side's steps here.

The statements give the same numbers as SQL alone; asking them for every window of a large job would take minutes each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from annotq.agent.errors import AnnotqError
from annotq.cli.html.comparison_sql import PERIODS, step_condition
from annotq.cli.html.step_time import MEANS, RANKS_CHOSEN, RANKS_SHOWN, step_parts_of
from annotq.cli.statement import Statement
from annotq.collector import diff_sides
from annotq.collector.diff_sides import FIRST_STEPS, Side
from annotq.collector.work import Ask, read_work

# Ranks named in findings are cut up besides those at even distances.
RANKS_NAMED = 8

_RANK_PERIODS = """SELECT rank, step, CAST(sum(end_ns - begin_ns) AS BIGINT) AS period_ns
FROM _step_bounds
WHERE job = ? AND attempt = ?
GROUP BY rank, step
ORDER BY rank, step"""

_RANKS = f"""SELECT p.rank, count(*) AS steps, median(p.period_ns) AS step_ns, median(w.compute_ns) AS compute_ns
FROM ({PERIODS}) AS p
LEFT JOIN (
    SELECT rank, step, sum(compute_ns) AS compute_ns
    FROM _region_work
    WHERE job = ? AND attempt = ?{{steps}}
    GROUP BY rank, step
) AS w ON w.rank = p.rank AND w.step = p.step
GROUP BY p.rank
ORDER BY p.rank"""

_PART_COLUMNS = ("period_ns", "compute_ns", "exposed_transfer_ns", "wait_ns", "launch_gap_ns", "other_ns")

# Materialized: with a filter on steps carried into the parts, DuckDB cuts up all ranks and runs out of memory.
_PARTS = f"""WITH parts AS MATERIALIZED (
{{rows}}
)
{MEANS}
FROM parts
WHERE step IN (SELECT step FROM ({PERIODS}) AS kept)
GROUP BY rank
ORDER BY rank"""


@dataclass(frozen=True)
class StepTime:
    """How long a step lasted, in ns: the median of the ranks, and the slowest."""

    step: int
    median_ns: float
    slowest_ns: float


@dataclass(frozen=True)
class RankTimes:
    """A rank's median step (end of one step's work to the end of the next) and its median compute in a step, in ns."""

    rank: int
    steps: int
    step_ns: float
    compute_ns: float | None


@dataclass(frozen=True)
class RankParts:
    """The parts of a rank's step, in ns: means over the steps, so that they add up to the mean period."""

    rank: int
    steps: int
    period_ns: float
    compute_ns: float
    exposed_transfer_ns: float
    wait_ns: float
    launch_gap_ns: float
    other_ns: float


@dataclass(frozen=True)
class SideParts:
    """The parts of a side's steps by rank. asked: the ranks, None for all. sample: those that stand for all of the side.
    failure: why there are none, where the store could not tell within its memory or time; else empty."""

    asked: tuple[int, ...] | None
    rows: tuple[RankParts, ...]
    sample: tuple[RankParts, ...]
    failure: str = ""


def step_times(ask: Ask, side: Side) -> tuple[StepTime, ...]:
    """The steps that diff times (collector.diff_sides.region_series), from the same answers."""
    about = [side.job, side.attempt]
    first = {int(row["step"]) for row in ask(FIRST_STEPS, about).to_pylist()}
    rows = [row for row in ask(diff_sides.PERIODS, about).to_pylist() if side.holds(int(row["step"]))]
    kept = [row for row in rows if int(row["step"]) not in first] or rows
    return tuple(StepTime(int(row["step"]), float(row["median_ns"]), float(row["slowest_ns"])) for row in kept)


def rank_times(ask: Ask, side: Side, steps: Iterable[int]) -> tuple[RankTimes, ...]:
    """By rank, over these steps."""
    kept = set(steps)
    table = ask(_RANK_PERIODS, [side.job, side.attempt])
    periods: dict[int, list[int]] = {}
    for rank, step, period in zip(*(table.column(place).to_pylist() for place in range(3)), strict=True):
        if step in kept:
            periods.setdefault(rank, []).append(period)
    work = read_work(ask, side.job, side.attempt)
    total = work.total_ns[:, np.isin(work.steps, list(kept))]
    computes = {int(rank): own[~np.isnan(own)] for rank, own in zip(work.ranks, total, strict=True)}
    found = []
    for rank, own in periods.items():
        compute = computes.get(rank)
        usual = float(np.median(compute)) if compute is not None and len(compute) else None
        found.append(RankTimes(rank, len(own), float(np.median(own)), usual))
    return tuple(found)


def side_parts(
    ask: Ask, side: Side, ranks: Sequence[RankTimes], steps: Iterable[int], named: Sequence[int]
) -> SideParts:
    """Of all ranks up to RANKS_SHOWN, of more RANKS_CHOSEN at even distances. named: ranks to look at besides."""
    seen = [row.rank for row in ranks]
    asked, spread = None, set(seen)
    if len(seen) > RANKS_SHOWN:
        spread = {seen[place * len(seen) // RANKS_CHOSEN] for place in range(RANKS_CHOSEN)}
        asked = tuple(sorted(spread | (set(named[:RANKS_NAMED]) & set(seen))))
    kept = set(steps)
    by_rank: dict[int, list[list[float]]] = {}
    try:
        answer = ask(*_part_rows(side, asked))
    except AnnotqError as error:  # the costliest question; the rest of the page stands without it
        return SideParts(asked, (), (), error.message)
    for row in answer.to_pylist():
        if row["step"] in kept:
            by_rank.setdefault(row["rank"], []).append([row[column] for column in _PART_COLUMNS])
    rows = tuple(RankParts(rank, len(own), *np.mean(own, axis=0).tolist()) for rank, own in sorted(by_rank.items()))
    return SideParts(asked, rows, tuple(row for row in rows if row.rank in spread))


def steps_statement(side: Side) -> Statement:
    """Gives what step_times does."""
    periods = PERIODS.format(steps=step_condition(side))
    sql = f"""SELECT step, median(period_ns) AS median_ns, max(period_ns) AS slowest_ns
FROM ({periods}) AS periods
GROUP BY step
ORDER BY step"""
    return Statement(sql, (side.job, side.attempt))


def ranks_statement(side: Side) -> Statement:
    """Gives what rank_times does."""
    return Statement(_RANKS.format(steps=step_condition(side)), (side.job, side.attempt) * 2)


def parts_statement(side: Side, ranks: tuple[int, ...] | None) -> Statement:
    """Gives the rows of side_parts. ranks: those asked; None: all."""
    rows, parameters = _part_rows(side, ranks)
    return Statement(_PARTS.format(rows=rows, steps=step_condition(side)), (*parameters, side.job, side.attempt))


def _part_rows(side: Side, ranks: tuple[int, ...] | None) -> tuple[str, tuple[object, ...]]:
    """The parts of every step, and the parameters of that."""
    columns = f"SELECT rank, step, {', '.join(_PART_COLUMNS)}"
    if ranks is None:
        return f"{columns}\nFROM step_parts\nWHERE job = ? AND attempt = ?", (side.job, side.attempt)
    return f"{columns}\nFROM (\n{step_parts_of(len(ranks))}\n) AS parts", (side.job, side.attempt, *ranks) * 2
