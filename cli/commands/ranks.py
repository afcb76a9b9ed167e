"""`annotq ranks`: who took part, and how busy each GPU was."""

from __future__ import annotations

from annotq.cli.options import Ranks, ReadingOptions, reading_command
from annotq.cli.report import open_report
from annotq.cli.statement import equals, one_of, select


@reading_command()
def ranks(options: ReadingOptions, rank: Ranks = None) -> None:
    """Who took part, and how busy each GPU was.

    Host, process, GPU, how long it computed and communicated, and how long a step took on the GPU and on the host.
    """
    columns = (
        "job, attempt, rank, host, pid, gpu, traces, steps, gpu_events, "
        "busy_ns, compute_ns, collective_ns, median_step_ns, median_host_step_ns"
    )
    with open_report(options) as report:
        names = report.jobs()
        conditions = [equals("job", options.job), one_of("rank", rank)]
        if report.show(select(columns, "ranks", conditions, "job, attempt, rank"), _empty(options, rank)):
            report.note_coverage(*names)


def _empty(options: ReadingOptions, rank: list[int] | None) -> str:
    if rank:
        return f"No such rank: {', '.join(map(str, rank))}. Without --rank all of them are shown."
    return "There is no rank in the store yet. Load a job: annotq ingest DIR"
