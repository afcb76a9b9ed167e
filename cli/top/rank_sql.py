"""The SQL of every refresh: who is there and how far. Small tables only, no events."""

from __future__ import annotations

from annotq.cli.statement import Statement

# Which job is the live one: the last to give a sign of life, or, where only files are known, the last that was recorded.
_JOBS = """WITH seen AS (
    SELECT job, max(coalesce(seen_ns, start_ns)) AS seen_ns FROM agents GROUP BY job
),
recorded AS (
    SELECT job, max(window_end_ns) AS end_ns FROM trace GROUP BY job
)
SELECT p.job, max(coalesce(s.seen_ns, r.end_ns)) AS seen_ns
FROM process AS p
LEFT JOIN seen AS s ON s.job = p.job
LEFT JOIN recorded AS r ON r.job = p.job
GROUP BY p.job
ORDER BY seen_ns DESC NULLS LAST, p.job"""

_RANKS = """WITH wanted AS (
    SELECT job, max(attempt) AS attempt FROM process WHERE job = ? GROUP BY job
),
windows AS (
    SELECT t.rank, count(*) AS windows, max(t.last_step + t.step_offset) AS window_step, sum(t.gpu_events) AS gpu_events
    FROM trace AS t
    JOIN wanted AS w ON w.job = t.job AND w.attempt = t.attempt
    WHERE t.status NOT IN ('rejected', 'arriving')
    GROUP BY t.rank
)
SELECT
    epoch_ns(now()) AS now_ns,
    (SELECT count(DISTINCT job) FROM process) AS jobs,
    p.attempt,
    p.rank,
    p.world_size,
    p.host,
    a.state,
    a.seen_ns,
    a.step,
    a.step_ns,
    coalesce(a.spooled_bytes, 0) AS spooled_bytes,
    coalesce(a.dropped_traces, 0) AS dropped_traces,
    coalesce(a.notes, 0) AS notes,
    coalesce(s.windows, 0) AS windows,
    s.window_step,
    CAST(coalesce(s.gpu_events, 0) AS BIGINT) AS gpu_events,
    c.error_ns AS clock_error_ns
FROM process AS p
JOIN wanted AS w ON w.job = p.job AND w.attempt = p.attempt
LEFT JOIN agents AS a ON a.job = p.job AND a.attempt = p.attempt AND a.rank = p.rank
LEFT JOIN windows AS s ON s.rank = p.rank
LEFT JOIN clock AS c ON c.job = p.job AND c.attempt = p.attempt AND c.host = coalesce(p.host, '')
ORDER BY p.rank"""


def jobs_statement() -> Statement:
    """One row per job, the liveliest first: job, seen_ns."""
    return Statement(_JOBS)


def ranks_statement(job: str) -> Statement:
    """One row per rank of the latest attempt that an agent or a trace has shown.

    jobs: in the store. now_ns: the clock of whoever answers, as seen_ns is. state, seen_ns, step, step_ns as in the view
    agents, NULL for a rank known from files only. windows: usable traces; window_step: the last step in them; gpu_events:
    theirs.
    """
    return Statement(_RANKS, (job,))
