"""How every region of every rank compares with the same region on the other ranks, step by step.

The comparison is paired: a step counts for a region when the ranks that run the region ran it in that step. Ranks whose
windows overlap the others' by a few steps would leave no step complete, so the number of ranks asked of a step is the one
that keeps the most rows. The unit is compute time, communication kernels left out, because those contain the wait for others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from annotq.collector.statistics import benjamini_hochberg, binomial_tail, median_interval

# Runs a query and returns its rows: Door.ask for a file, a remote call for a collector.
Ask = Callable[[str, Sequence[object]], pa.Table]

REGION_STEPS = """SELECT region, phase, rank, step, compute_ns, median_ns, ranks
FROM _region_steps
WHERE job = ? AND attempt = ?
ORDER BY region ASC NULLS LAST, phase ASC NULLS LAST, rank ASC NULLS LAST, step ASC NULLS LAST"""

WHOLE_STEPS = """WITH across AS (
    SELECT step, median(compute_ns) AS median_ns, count(*) AS ranks
    FROM steps
    WHERE job = ? AND attempt = ? AND kernels > 0
    GROUP BY step
)
SELECT 'step' AS region, 'all' AS phase, s.rank, s.step, s.compute_ns, a.median_ns, a.ranks
FROM steps AS s
JOIN across AS a ON a.step = s.step
WHERE s.job = ? AND s.attempt = ? AND s.kernels > 0
ORDER BY s.rank ASC NULLS LAST, s.step ASC NULLS LAST"""


@dataclass(frozen=True)
class RegionEvidence:
    """One (region, phase) of one rank against the median of the ranks.

    ranks: the fewest ranks of any step that counts. ratio: median over the steps of compute_ns over the ranks' median.
    ratio_low, ratio_high: 95 % interval of that median, None with fewer than 6 steps. slowest_share: share of steps in
    which the rank alone was the slowest. above_share: share of steps in which it was above the ranks' median. q_value:
    chance of being the slowest, or above the median, that often if all ranks were alike (the better of the two tests,
    doubled), corrected for all comparisons made. excess_ns: per step, compute_ns minus the ranks' median; shape (steps,).

    The median includes the rank itself, which draws the ratio to 1: two ranks of which one takes r times as long read
    2r / (1 + r), see `against_others`; with 4 ranks and 5 % noise 1.30 reads 1.27, with 8 ranks 1.29.
    """

    region: str
    phase: str
    rank: int
    ranks: int
    steps: NDArray[np.int64]
    ratio: float
    ratio_low: float | None
    ratio_high: float | None
    slowest_share: float
    above_share: float
    q_value: float
    excess_ns: NDArray[np.float64]

    @property
    def median_excess_ns(self) -> float:
        return float(np.median(self.excess_ns))

    @property
    def against_others(self) -> float:
        """The ratio to the other ranks' time."""
        return against_others(self.ratio, self.ranks)


def against_others(ratio: float, ranks: int) -> float:
    """The ratio to the other rank when there are only two, whose median is the mean of both; else the ratio as it is."""
    if ranks != 2:
        return ratio
    return ratio / (2 - ratio) if ratio < 2 else math.inf


def region_evidence(ask: Ask, job: str, attempt: int) -> list[RegionEvidence]:
    """Evidence for every (region, phase, rank) that at least two ranks can be compared on."""
    return _evidence(ask(REGION_STEPS, [job, attempt]))


def step_evidence(ask: Ask, job: str, attempt: int) -> list[RegionEvidence]:
    """The same for all compute of a step, in regions or not (region "step", phase "all")."""
    return _evidence(ask(WHOLE_STEPS, [job, attempt, job, attempt]))


def _evidence(table: pa.Table) -> list[RegionEvidence]:
    if table.num_rows == 0:
        return []
    columns = {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names}
    region = _codes(columns["region"], columns["phase"])
    # Where the ranks' median is 0 there is no ratio.
    paired = (columns["ranks"] >= _ranks_asked(region, columns["ranks"])) & (columns["median_ns"] > 0)
    columns = {name: values[paired] for name, values in columns.items()}
    if len(columns["rank"]) == 0:
        return []
    region = region[paired]
    slowest = _alone_slowest(region, columns["step"], columns["compute_ns"])
    edges = np.flatnonzero(np.diff(region) | np.diff(columns["rank"])) + 1
    groups = np.split(np.arange(len(region)), edges)
    found = [_compare(columns, slowest, rows) for rows in groups]
    chances = np.array([_chance(evidence) for evidence in found])
    adjusted = benjamini_hochberg(chances)
    return [replace(evidence, q_value=float(q)) for evidence, q in zip(found, adjusted, strict=True)]


def _compare(
    columns: dict[str, NDArray[np.generic]], slowest: NDArray[np.bool_], rows: NDArray[np.intp]
) -> RegionEvidence:
    compute = columns["compute_ns"][rows].astype(np.float64)
    median = columns["median_ns"][rows].astype(np.float64)
    ratios = np.divide(compute, median, out=np.ones_like(compute), where=median > 0)
    interval = median_interval(ratios)
    return RegionEvidence(
        region=str(columns["region"][rows[0]]),
        phase=str(columns["phase"][rows[0]]),
        rank=int(columns["rank"][rows[0]]),
        ranks=int(columns["ranks"][rows].min()),
        steps=columns["step"][rows].astype(np.int64),
        ratio=float(np.median(ratios)),
        ratio_low=interval[0] if interval else None,
        ratio_high=interval[1] if interval else None,
        slowest_share=float(slowest[rows].mean()),
        above_share=float((compute > median).mean()),
        q_value=1.0,
        excess_ns=compute - median,
    )


def _chance(evidence: RegionEvidence) -> float:
    """The first test finds one slow rank among many in few steps, the second several that are equally slow."""
    steps = len(evidence.steps)
    slowest = binomial_tail(round(evidence.slowest_share * steps), steps, 1 / evidence.ranks)
    above = binomial_tail(round(evidence.above_share * steps), steps, 0.5)
    return min(1.0, 2 * min(slowest, above))


def _codes(region: NDArray[np.generic], phase: NDArray[np.generic]) -> NDArray[np.int64]:
    """A number per (region, phase), ascending because the rows come sorted by both."""
    change = (region[1:] != region[:-1]) | (phase[1:] != phase[:-1])
    return np.concatenate([[0], np.cumsum(change)]).astype(np.int64)


def _ranks_asked(region: NDArray[np.int64], ranks: NDArray[np.generic]) -> NDArray[np.int64]:
    """By row, how many ranks a step of its region needs to count: the k, at least 2, with the most steps times k.

    A step of n ranks has n rows, so the number of steps is the sum of 1 / n over the rows.
    """
    count = ranks.astype(np.int64)
    steps = np.zeros((int(region[-1]) + 1, int(count.max()) + 1))
    np.add.at(steps, (region, count), 1 / count)
    at_least = np.rint(np.cumsum(steps[:, ::-1], axis=1)[:, ::-1])
    kept = (at_least * np.arange(steps.shape[1]))[:, 2:]
    if kept.shape[1] == 0:
        return np.full_like(count, 2)
    asked: NDArray[np.int64] = steps.shape[1] - 1 - np.argmax(kept[:, ::-1], axis=1)
    return np.maximum(asked, 2)[region]


def _alone_slowest(
    region: NDArray[np.int64], step: NDArray[np.generic], compute: NDArray[np.generic]
) -> NDArray[np.bool_]:
    """Whether the row has the largest compute time of its (region, step); nobody is alone in a tie."""
    numbers = step.astype(np.int64)
    _, instance = np.unique(region * (np.ptp(numbers) + 1) + numbers - numbers.min(), return_inverse=True)
    values = compute.astype(np.int64)
    largest = np.full(int(instance.max()) + 1, -1, dtype=np.int64)
    np.maximum.at(largest, instance, values)
    at_top = values == largest[instance]
    alone: NDArray[np.bool_] = at_top & (np.bincount(instance, weights=at_top)[instance] == 1)
    return alone
