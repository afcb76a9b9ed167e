"""How often the 95 % interval of a ratio contains the true one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from page import Section, percent
from pool import each, report_on
from sample import Sample
from simulated_causes import Cause, slow_layers
from simulated_job import Plan, compute_times
from simulated_layout import LAYOUTS
from simulated_noise import KINDS

STEPS = (6, 12, 20, 50, 200)
RANKS = (2, 4, 8, 64)
# Jobs of a cell; each has 4 intervals.
JOBS = {2: 10, 4: 10, 8: 10, 64: 4}
# So large that it is always found: intervals seen only where they lie high would not be a fair sample.
SIZE = 0.5
# The truth is the median over this many steps; its own error is then a hundredth of the intervals' width.
TRUE_STEPS = {2: 40_000, 4: 40_000, 8: 20_000, 64: 5_000}


@dataclass(frozen=True)
class Interval:
    """One (region, phase) of the slow rank: the interval, and the ratio over as good as infinitely many steps."""

    low: float
    high: float
    truth: float

    @property
    def holds(self) -> bool:
        return self.low <= self.truth <= self.high


def coverage(sample: Sample) -> Section:
    """A table of noise by steps."""
    cells = [
        (kind, steps, _plan(kind, steps, ranks, seed, sample))
        for kind in KINDS
        for steps in STEPS
        for ranks in RANKS
        for seed in range(sample.count(JOBS[ranks]))
    ]
    answers = list(each(intervals_of, [plan for _, _, plan in cells]))
    found = [(kind, steps, one) for (kind, steps, _), answer in zip(cells, answers, strict=True) for one in answer]
    rows = [("noise", *(f"{steps} steps" for steps in STEPS), "all")]
    for kind in (*KINDS, None):
        chosen = [(steps, one) for name, steps, one in found if kind in (name, None)]
        cell = [_cell([one for number, one in chosen if number == steps]) for steps in STEPS]
        rows.append((kind or "all", *cell, _cell([one for _, one in chosen])))
    text = (
        f"Per cent of {len(found):,} intervals that contain the true ratio, and in brackets their median width. "
        "A rank takes half as long again in its MLPs, in jobs of 2, 4, 8 and 64 ranks. The truth is the median over "
        "thousands of steps of the rank's time over the median of the ranks, from the generator itself."
    )
    return Section("Intervals", text, rows)


def intervals_of(plan: Plan) -> list[Interval]:
    """All that a report of the job gives for its slow rank."""
    report = report_on(plan)
    (cause,) = plan.causes
    rows = [row.evidence for finding in report.findings if finding.rank in cause.ranks for row in finding.regions]
    truths = dict(_truths(plan))
    return [
        Interval(row.ratio_low, row.ratio_high, truths[row.region, row.phase])
        for row in rows
        if row.ratio_low is not None and row.ratio_high is not None and (row.region, row.phase) in truths
    ]


def _truths(plan: Plan) -> Iterator[tuple[tuple[str, str], float]]:
    (cause,) = plan.causes
    (rank,) = cause.ranks
    long = replace(plan, steps=TRUE_STEPS[plan.layout.size])
    for (region, phase), times in compute_times(long).items():
        if region in cause.regions:
            there = times[times[:, 0] > 0]
            yield (region, phase), float(np.median(times[rank] / np.median(there, axis=0)))


def _plan(kind: str, steps: int, ranks: int, seed: int, sample: Sample) -> Plan:
    number = sample.seed(2_000_000 + 100_000 * list(KINDS).index(kind) + 1000 * ranks + 100 * STEPS.index(steps) + seed)
    rank = int(np.random.default_rng(number).integers(ranks))
    layout = LAYOUTS[ranks]
    cause = Cause("slow_region", SIZE, (rank,), slow_layers(layout, rank, 2))
    return Plan(seed=number, layout=layout, steps=steps, noise=KINDS[kind], causes=(cause,))


def _cell(intervals: list[Interval]) -> str:
    if not intervals:
        return "-"
    width = float(np.median([one.high - one.low for one in intervals]))
    return f"{percent(one.holds for one in intervals)} ({width:.3f})"
