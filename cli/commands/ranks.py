"""`annotq ranks`: who took part, and how busy each GPU was."""

from __future__ import annotations

from collections.abc import Sequence

from annotq.cli.options import ReadingOptions, reading_command
from annotq.cli.rank_ranges import RankRanges, read_ranks
from annotq.cli.report import Report, open_report
from annotq.cli.statement import equals, one_of, select


@reading_command()
def ranks(options: ReadingOptions, rank: RankRanges = None) -> None:
    """Who took part, and how busy each GPU was.

    Host, process, GPU, how long it computed and communicated, and how long a step took on the GPU and on the host.
    """
    columns = (
        "job, attempt, rank, host, pid, gpu, traces, steps, gpu_events, "
        "busy_ns, compute_ns, collective_ns, median_step_ns, median_host_step_ns"
    )
    chosen = read_ranks(rank or ())
    with open_report(options) as report:
        names = report.jobs()
        conditions = [equals("job", options.job), one_of("rank", chosen)]
        empty = _empty(report, options, chosen)
        if report.show(select(columns, "ranks", conditions, "job, attempt, rank"), empty):
            report.note_coverage(*names)


def _empty(report: Report, options: ReadingOptions, chosen: Sequence[int]) -> str:
    """What to say when there is no row. Ranks that only reported themselves have none: there is nothing to measure yet."""
    if options.show_sql:
        return ""
    jobs = select("count(*), count(DISTINCT job)", "agents", [equals("job", options.job), one_of("rank", chosen)], "1")
    ((ranks, names),) = (row.values() for row in report.ask(jobs.sql, jobs.parameters).to_pylist())
    if ranks:
        of = f" of {options.job}" if options.job else f" of {names} jobs" if names > 1 else ""
        counted = "1 rank" if ranks == 1 else f"{ranks:,} ranks"
        return f"{counted}{of} registered, no profiler window yet. annotq status says how they are."
    if chosen:
        return f"No such rank: {', '.join(map(str, chosen))}. Without --rank all of them are shown."
    return "There is no rank in the store yet. Load a job: annotq ingest DIR"
