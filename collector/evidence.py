"""How every region of every rank compares with the same region on the other ranks, step by step.

The comparison is paired: a step counts for a region only when every rank that runs the region ran it in that step. The
unit is compute time, communication kernels left out, because those contain the wait for others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class RegionEvidence:
    """One (region, phase) of one rank against the median of the ranks.

    ratio: median over the steps of compute_ns over the ranks' median. ratio_low, ratio_high: 95 % interval of that
    median, None with fewer than 6 steps. slowest_share: share of steps in which the rank alone was the slowest.
    q_value: chance of being slowest that often if all ranks were alike, corrected for all comparisons made.
    excess_ns: per step, compute_ns minus the ranks' median; shape (steps,).
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
    q_value: float
    excess_ns: NDArray[np.float64]


def region_evidence(ask: Ask, job: str, attempt: int) -> list[RegionEvidence]:
    """Evidence for every (region, phase, rank) that at least two ranks can be compared on."""
    table = ask(REGION_STEPS, [job, attempt])
    if table.num_rows == 0:
        return []
    columns = {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names}
    region = _codes(columns["region"], columns["phase"])
    paired = columns["ranks"] == _group_max(region, columns["ranks"])
    paired &= columns["ranks"] > 1
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
    return [_with_q(evidence, float(q)) for evidence, q in zip(found, adjusted, strict=True)]


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
        ranks=int(columns["ranks"][rows[0]]),
        steps=columns["step"][rows].astype(np.int64),
        ratio=float(np.median(ratios)),
        ratio_low=interval[0] if interval else None,
        ratio_high=interval[1] if interval else None,
        slowest_share=float(slowest[rows].mean()),
        q_value=1.0,
        excess_ns=compute - median,
    )


def _chance(evidence: RegionEvidence) -> float:
    steps = len(evidence.steps)
    return binomial_tail(round(evidence.slowest_share * steps), steps, 1 / evidence.ranks)


def _with_q(evidence: RegionEvidence, q_value: float) -> RegionEvidence:
    return RegionEvidence(**{**evidence.__dict__, "q_value": q_value})


def _codes(region: NDArray[np.generic], phase: NDArray[np.generic]) -> NDArray[np.int64]:
    """A number per (region, phase), ascending because the rows come sorted by both."""
    change = (region[1:] != region[:-1]) | (phase[1:] != phase[:-1])
    return np.concatenate([[0], np.cumsum(change)]).astype(np.int64)


def _group_max(group: NDArray[np.int64], values: NDArray[np.generic]) -> NDArray[np.int64]:
    best = np.zeros(int(group[-1]) + 1, dtype=np.int64)
    np.maximum.at(best, group, values.astype(np.int64))
    return best[group]


def _alone_slowest(
    region: NDArray[np.int64], step: NDArray[np.generic], compute: NDArray[np.generic]
) -> NDArray[np.bool_]:
    """Whether the row has the largest compute time of its (region, step); nobody is alone in a tie."""
    _, instance = np.unique(np.stack([region, step.astype(np.int64)]), axis=1, return_inverse=True)
    instance = instance.reshape(-1)
    values = compute.astype(np.int64)
    largest = np.full(int(instance.max()) + 1, -1, dtype=np.int64)
    np.maximum.at(largest, instance, values)
    at_top = values == largest[instance]
    alone: NDArray[np.bool_] = at_top & (np.bincount(instance, weights=at_top)[instance] == 1)
    return alone
