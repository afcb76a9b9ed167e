"""What --show-sql prints: the questions of one refresh, filled in as they would be asked now."""

from __future__ import annotations

import msgspec

from annotq.cli.statement import Statement
from annotq.cli.top.place import Place, rows_of
from annotq.cli.top.rank_sql import jobs_statement, ranks_statement
from annotq.cli.top.watch import Watch
from annotq.cli.top.work_sql import bounds_statement, work_statement


def sql_text(place: Place, watch: Watch) -> str:
    """Raises AnnotqError as Watch.look does."""
    job, windows = watch.windows()
    asked = [
        ("which job, without --job: once", jobs_statement()),
        (
            "ranks: every refresh. A step's time on the screen is the median of the last five step_ns that were seen",
            ranks_statement(job),
        ),
    ]
    if windows is not None:
        bounds = bounds_statement(windows.newest)
        with place.door() as door:
            (row,) = rows_of(door, bounds)
        asked.append(("time of the newest window: when windows came", bounds))
        if row["start_ns"] is not None and row["end_ns"] is not None:
            times = msgspec.convert([row["start_ns"], row["end_ns"]], tuple[int, int])
            asked.append(("work in it: when windows came", work_statement(windows.newest, *times)))
    head = f"-- {len(asked)} statements, annotq query runs one at a time. The verdict's: annotq stragglers --show-sql"
    return "\n\n".join([head, *(_shown(*part) for part in asked)])


def _shown(about: str, statement: Statement) -> str:
    return f"-- {about}\n{statement.filled()};"
