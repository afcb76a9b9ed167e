"""`annotq collectives`: who waited for whom in each collective."""

from __future__ import annotations

from annotq.cli.options import Ranks, ReadingOptions, RegionGlob, reading_command
from annotq.cli.report import open_report
from annotq.cli.statement import Statement, equals, fits, one_of, select


@reading_command()
def collectives(options: ReadingOptions, rank: Ranks = None, region: RegionGlob = None) -> None:
    """Who waited for whom in each collective.

    When each rank arrived, how long it waited for the last one, and how long the transfer took.
    """
    with open_report(options) as report:
        job = report.job()
        if report.show(_statement(job, rank, region), _empty(job, rank, region)):
            report.note_coverage(job)


def _statement(job: str, rank: list[int] | None, region: str | None) -> Statement:
    columns = (
        "collective_id, rank, region, name, group_name, arrive_ns, end_ns, duration_ns, wait_ns, transfer_ns, last_rank"
    )
    # Ids are text: their order is not the order in which the collectives ran.
    order = "min(arrive_ns) OVER (PARTITION BY collective_id), collective_id, rank"
    return select(columns, "collectives", [equals("job", job), one_of("rank", rank), fits("region", region)], order)


def _empty(job: str, *filters: object) -> str:
    if any(filters):
        return f"No collective of job {job} fits --rank and --region. Without them all are shown."
    return (
        f"No collectives in job {job}: it has one rank, communicates outside NCCL, "
        "or its traces carry neither collective fields nor NCCL kernel names."
    )
