"""`annotq status`: the store file, what is in it, and what went wrong on the way in."""

from __future__ import annotations

from annotq.cli.errors import note
from annotq.cli.options import ReadingOptions, reading_command
from annotq.cli.report import Report, open_report
from annotq.cli.statement import Statement

_LAST_PROBLEMS = 20

# One shape for every format: (topic, item, value). The only report that reads tables: no view shows the store itself.
_ROWS = f"""
WITH picked AS (SELECT * FROM trace WHERE ? OR job = ?),
     problem AS (
    SELECT * FROM picked WHERE note IS NOT NULL ORDER BY window_end_ns DESC NULLS LAST LIMIT {_LAST_PROBLEMS}
),
     answer AS (
    SELECT 1 AS place, 'store' AS topic, 'file' AS item, ? AS value
    UNION ALL SELECT 2, 'store', 'size_bytes', ?
    UNION ALL SELECT 3, 'store', 'schema_version', schema_version::VARCHAR FROM store_version
    UNION ALL SELECT 4, 'store', 'created_by', 'annotq ' || created_by FROM store_version
    UNION ALL SELECT 5, 'job', job, concat('attempt ', attempt, ': ', ranks_seen, ' of ' || ranks_expected, ' ranks, ',
                                           traces, ' traces, ', steps, ' steps, ', gpu_events, ' GPU events')
              FROM jobs WHERE ? OR job = ?
    UNION ALL SELECT 6, 'traces', status, count(*)::VARCHAR FROM picked GROUP BY status
    UNION ALL SELECT 7, 'problem', path, note FROM problem
)
SELECT topic, item, value FROM answer ORDER BY place, item
"""


@reading_command()
def status(options: ReadingOptions) -> None:
    """The store file, what is in it, and what went wrong.

    File, size, schema version, jobs, traces by status, and the last problems met by ingest.
    """
    with open_report(options) as report:
        names = report.jobs()
        report.show(_statement(report), "")
        if not names:
            note("There is no job in the store yet. Load one: annotq ingest DIR")
        report.note_coverage(*names)


def _statement(report: Report) -> Statement:
    path, job = report.door.path, report.options.job
    scope = (job is None, job or "")
    return Statement(_ROWS.strip(), (*scope, str(path.resolve()), str(path.stat().st_size), *scope))
