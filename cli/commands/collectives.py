"""`annotq collectives`: who waited for whom in each collective."""

from __future__ import annotations

from annotq.cli.errors import note
from annotq.cli.options import ReadingOptions, RegionGlob, reading_command
from annotq.cli.rank_ranges import RankRanges, read_ranks
from annotq.cli.report import Report, open_report
from annotq.cli.statement import Condition, Statement, equals, fits, one_of, select


@reading_command()
def collectives(options: ReadingOptions, rank: RankRanges = None, region: RegionGlob = None) -> None:
    """Who waited for whom in each collective.

    When each rank arrived, how long it waited for the last one, and how long the transfer took. Calls that cannot be judged
    come last, those of kinds that do not make every rank wait (send, recv, rooted ones, uneven all_to_all) apart from the
    others; the column not_judged says why.
    """
    ranks = read_ranks(rank or ())
    with open_report(options) as report:
        job = report.job()
        conditions = [equals("job", job), one_of("rank", ranks), fits("region", region)]
        statement = _statement(conditions)
        if report.show(statement, _empty(job, ranks, region)):
            _note_apart(report, statement)
            report.note_coverage(job)


def _statement(conditions: list[Condition | None]) -> Statement:
    columns = (
        "collective_id, rank, region, name, group_name, arrive_ns, end_ns, duration_ns, wait_ns, transfer_ns, last_rank, "
        "own_excess_ns, disagreement_ns, not_judged"
    )
    apart = "CASE WHEN not_judged IS NULL THEN 0 WHEN not_judged <> 'kind does not synchronize' THEN 1 ELSE 2 END"
    # Ids are text: their order is not the order in which the collectives ran.
    order = f"{apart}, min(arrive_ns) OVER (PARTITION BY collective_id), collective_id, rank"
    return select(columns, "collectives", conditions, order)


def _note_apart(report: Report, shown: Statement) -> None:
    """Says on stderr how many of the calls are not judged, by reason and kind. Nothing with --show-sql."""
    counts = f"""SELECT not_judged, name, count(*) AS calls FROM ({shown.sql}) AS shown
                 WHERE not_judged IS NOT NULL GROUP BY not_judged, name ORDER BY not_judged, name"""
    reasons: dict[str, list[str]] = {}
    for row in report.ask(counts, shown.parameters).to_pylist():
        reasons.setdefault(row["not_judged"], []).append(f"{row['calls']:,} {row['name']}")
    if reasons:
        note("not judged, at the end: " + "; ".join(f"{why}: {', '.join(what)}" for why, what in reasons.items()))


def _empty(job: str, *filters: object) -> str:
    if any(filters):
        return f"No collective of job {job} fits --rank and --region. Without them all are shown."
    return (
        f"No collectives in job {job}: it has one rank, communicates outside NCCL, "
        "or its traces carry neither collective fields nor NCCL kernel names."
    )
