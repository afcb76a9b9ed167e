"""`annotq regions`: where the GPU time of each rank went, by the names of the workload."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from annotq.cli.options import ReadingOptions, RegionGlob, reading_command
from annotq.cli.rank_ranges import RankRanges, read_ranks
from annotq.cli.report import open_report
from annotq.cli.statement import Statement, equals, fits, one_of, select


class Sort(StrEnum):
    RATIO = "ratio"
    TOTAL = "total"
    MEDIAN = "median"
    NAME = "name"


# Each ends in what makes the order the same every time.
ORDER = {
    Sort.RATIO: "ratio DESC NULLS LAST, region, phase, rank",
    Sort.TOTAL: "total_ns DESC NULLS LAST, region, phase, rank",
    Sort.MEDIAN: "median_ns DESC NULLS LAST, region, phase, rank",
    Sort.NAME: "region NULLS LAST, phase, rank",
}

Phase = Annotated[str | None, typer.Option("--phase", metavar="NAME", help="Only this phase: forward or backward.")]
SortOption = Annotated[Sort, typer.Option("--sort", help="Largest first; by name in alphabetical order.")]


@reading_command()
def regions(
    options: ReadingOptions,
    rank: RankRanges = None,
    region: RegionGlob = None,
    phase: Phase = None,
    sort: SortOption = Sort.TOTAL,
) -> None:
    """GPU time of each region on each rank.

    ratio is this rank's median over the median of the ranks' medians: with many ranks 2.0 is twice as slow
    as the others; of two ranks the slow one moves the median itself, and the ratio stays below 2.
    """
    ranks = read_ranks(rank or ())
    with open_report(options) as report:
        job = report.job()
        if report.show(_statement(job, ranks, region, phase, sort), _empty(job, ranks, region, phase)):
            report.note_coverage(job)


def _statement(job: str, ranks: Sequence[int], region: str | None, phase: str | None, sort: Sort) -> Statement:
    columns = "rank, region, phase, instances, kernels, median_ns, p95_ns, p99_ns, total_ns, ratio"
    conditions = [equals("job", job), one_of("rank", ranks), fits("region", region), equals("phase", phase)]
    return select(columns, "regions", conditions, ORDER[sort])


def _empty(job: str, *filters: object) -> str:
    if any(filters):
        return f"No region of job {job} fits --rank, --region and --phase. Without them all are shown."
    return (
        f"No kernel of job {job} lies in a region: no annotations were loaded, or they belong to other processes. "
        "annotq status shows what was loaded."
    )
