"""`annotq status`: the store, what is in it, who is silent, and what went wrong on the way in."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from annotq.cli.errors import note
from annotq.cli.options import ReadingOptions, reading_command
from annotq.cli.report import Report, open_report
from annotq.cli.statement import Statement
from annotq.cli.status_sql import status_statement

if TYPE_CHECKING:
    from annotq.v1.collector_pb2 import StatusReply


@reading_command()
def status(options: ReadingOptions) -> None:
    """The store, what is in it, who is silent, and what went wrong.

    File, size, jobs, ranks that agents reported, silent and dead ones, traces by status, refused batches and the last
    problems; of a collector also its queue, commits and what keeps it from committing.
    """
    with open_report(options) as report:
        names = report.jobs()
        report.show(_statement(report), "")
        if not names:
            note("There is no job in the store yet. Load one: annotq ingest DIR, or record one: annotq run -- COMMAND")
        report.note_coverage(*names)


def _statement(report: Report) -> Statement:
    place, job = report.options.place(), report.options.job
    if isinstance(place, Path):
        return status_statement(job, str(place.resolve()), place.stat().st_size, time.time_ns(), [])
    from annotq.cli.remote_door import RemoteDoor

    assert isinstance(report.door, RemoteDoor)
    reply = report.door.status()
    # Ages are by the collector's clock, as the times are.
    return status_statement(job, reply.store, reply.store_bytes, reply.now_ns, _about(place, reply))


def _about(endpoint: str, reply: StatusReply) -> list[tuple[str, str]]:
    """(item, value) rows about the collector itself."""
    rows = [
        ("address", endpoint),
        ("version", f"annotq {reply.version}"),
        ("up_seconds", str((reply.now_ns - reply.started_ns) // 1_000_000_000)),
        ("queue", f"{reply.queued_batches:,} batches, {reply.queued_bytes:,} bytes"),
        ("committed", f"{reply.committed_batches:,} batches, {reply.committed_rows:,} rows"),
        ("commit_seconds", f"median {reply.commit_seconds_p50:.3g}, longest {reply.commit_seconds_max:.3g}"),
    ]
    rows += [(f"refused: {reason}", f"{count:,} batches") for reason, count in sorted(reply.rejected.items())]
    if reply.problem:
        rows.append(("problem", reply.problem))
    return rows
