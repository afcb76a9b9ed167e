"""How long each region takes on each rank, next to the other ranks: what the verdict rests on, one number per rank and region."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from annotq.cli.html.heatmap import Grid
from annotq.cli.html.subject import Subject
from annotq.cli.statement import Statement

# The same numbers as collector.evidence.compare, in SQL. A step counts for a region where enough ranks ran it: the number of
# ranks that keeps the most rows, so that a rank whose window is shorter does not leave every step out.
REGION_RATIOS = """WITH code AS (
    SELECT code, region, phase FROM _region_codes
    UNION ALL
    SELECT code, region, phase FROM _eager_codes
),
work AS (
    SELECT c.region, c.phase, w.rank, w.step, sum(w.compute_ns) AS compute_ns
    FROM _region_work AS w
    JOIN code AS c ON c.code = w.code
    WHERE w.job = ? AND w.attempt = ? AND w.compute_ns IS NOT NULL
    GROUP BY c.region, c.phase, w.rank, w.step
),
across AS (
    SELECT region, phase, step, count(*) AS ranks, median(compute_ns) AS median_ns
    FROM work
    GROUP BY region, phase, step
),
counted AS (
    SELECT region, phase, ranks, ranks * row_number() OVER (PARTITION BY region, phase ORDER BY ranks DESC) AS kept
    FROM across
    WHERE ranks >= 2
),
asked AS (
    SELECT region, phase, ranks, row_number() OVER (PARTITION BY region, phase ORDER BY kept DESC, ranks DESC) AS place
    FROM counted
)
SELECT w.region, w.phase, w.rank, count(*) AS steps, median(w.compute_ns) AS compute_ns,
    median(w.compute_ns / a.median_ns) AS ratio
FROM work AS w
JOIN across AS a ON a.region = w.region AND a.phase = w.phase AND a.step = w.step
JOIN asked AS k ON k.region = w.region AND k.phase = w.phase AND k.place = 1
WHERE a.ranks >= k.ranks AND a.median_ns > 0
GROUP BY w.region, w.phase, w.rank
ORDER BY w.region, w.phase, w.rank"""


@dataclass(frozen=True)
class RegionRatios:
    """regions: (region, phase), the one with the highest ratio first. ranks: ascending. compute_ns: median over the steps;
    ratio: median over the steps of the time over the ranks' median; shape (regions, ranks), NaN where not compared."""

    regions: list[tuple[str, str]]
    ranks: list[int]
    compute_ns: Grid
    ratio: Grid


def statement(subject: Subject) -> Statement:
    """Gives the same numbers; the page takes them from the straggler report, which has read the steps already."""
    return Statement(REGION_RATIOS, (subject.job, subject.attempt))


def region_ratios(subject: Subject) -> RegionRatios:
    """Only what at least two ranks can be compared on; empty without steps or with one rank."""
    from annotq.collector.statistics import medians

    evidence = subject.verdict.comparison
    work = evidence.work
    if not evidence.compared.any():
        return RegionRatios([], [], np.zeros((0, 0)), np.zeros((0, 0)))
    compute = medians(evidence.compute_ns, axis=2)[:, :, 0]
    ratio = medians(evidence.compute_ns / evidence.median_ns, axis=2)[:, :, 0]
    highest = np.max(np.nan_to_num(ratio, nan=0.0), axis=1)
    order = [place for place in np.argsort(-highest, kind="stable").tolist() if highest[place] > 0]
    return RegionRatios([work.regions[place] for place in order], work.ranks.tolist(), compute[order], ratio[order])


TWO_RANKS = " Of two ranks the median lies half-way: one that takes twice as long as the other reads 1.33."

NOTHING_COMPARED = (
    "No region can be compared: that takes two ranks with a usable trace that ran the same region in the same step."
)
