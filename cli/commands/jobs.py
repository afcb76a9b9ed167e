"""`annotq jobs`: what is in the store."""

from __future__ import annotations

from annotq.cli.options import ReadingOptions, reading_command
from annotq.cli.report import open_report
from annotq.cli.statement import equals, select


@reading_command()
def jobs(options: ReadingOptions) -> None:
    """What is in the store, one row per job and attempt.

    Ranks, hosts, traces, steps, the time window and the clock error between hosts.
    """
    columns = (
        "job, attempt, ranks_seen, ranks_expected, ranks_registered, hosts, traces, steps, gpu_events, graph_events, "
        "window_start_ns, window_end_ns, clock_error_ns"
    )
    with open_report(options) as report:
        report.jobs()
        statement = select(columns, "jobs", [equals("job", options.job)], "job, attempt")
        report.show(statement, "There is no job in the store yet. Load one: annotq ingest DIR")
