"""Aligns the hosts of a job by its own collectives, where nobody pinged: traces that were loaded from files.

Ranks end a collective together, so the ends tell how far the hosts' clocks are apart (collective_clock.py). Where they do not
agree, every host keeps its own time and has no known error, and times are not compared between them.

A clock of the method `collectives` puts the kernels of different hosts on one time axis. It never judges the collectives
that it was fitted to: waits between such hosts are taken by duration (the view _collective_waits).
"""

from __future__ import annotations

import duckdb
import numpy as np

from annotq.collector.align import SAME_HOST_ERROR_NS
from annotq.collector.collective_clock import Ends, HostClock, fit_clocks

# Collectives that a fit takes, spread evenly over the job: more do not make it better.
MOST_COLLECTIVES = 2_000

# The question for the ends reads all collectives of the job; a loader's memory is too small for it.
FIT_MEMORY = "2GB"

# One row per (collective, host): the median end of the host's ranks, on the host's own clock as long as it has no offset.
ENDS = """WITH ends AS (
    SELECT w.family, w.step, w.replay, w.ordinal, p.host, quantile_disc(w.end_ns, 0.5) AS end_ns
    FROM _collective_waits AS w
    JOIN trace AS t ON t.trace_id = w.trace_id
    JOIN process AS p ON p.process_id = t.process_id
    WHERE w.job = ? AND w.attempt = ? AND w.synchronizing AND w.complete AND NOT w.one_host
    GROUP BY w.family, w.step, w.replay, w.ordinal, p.host
),
numbered AS (
    SELECT *, dense_rank() OVER (ORDER BY step, replay, family, ordinal) - 1 AS collective
    FROM ends
)
SELECT collective, family, coalesce(step, -1) AS step, host, end_ns
FROM numbered
WHERE collective % (SELECT 1 + max(collective) // ? FROM numbered) = 0
ORDER BY collective, host"""

UNALIGNED = """SELECT job, attempt
FROM clock
WHERE host <> '' AND method = 'none'
    AND NOT EXISTS (SELECT 1 FROM clock_note AS n WHERE n.job = clock.job AND n.attempt = clock.attempt)
    AND NOT EXISTS (SELECT 1 FROM clock AS p WHERE p.job = clock.job AND p.attempt = clock.attempt AND p.method = 'ping')
GROUP BY job, attempt
HAVING count(*) > 1
ORDER BY job, attempt"""

WINDOWS = """SELECT p.host, min(t.window_start_ns), max(t.window_end_ns)
FROM trace AS t
JOIN process AS p ON p.process_id = t.process_id
WHERE t.job = ? AND t.attempt = ? AND t.status NOT IN ('rejected', 'arriving') AND t.window_start_ns IS NOT NULL
    AND p.host IS NOT NULL
GROUP BY p.host
ORDER BY p.host"""


def align_hosts(connection: duckdb.DuckDBPyConnection) -> None:
    """Align the hosts of every job attempt whose clocks nobody knows, by its collectives, or note why that cannot be.

    To be called once after loading: it reads all collectives of those job attempts, and each new trace undoes it.
    """
    for job, attempt in connection.execute(UNALIGNED).fetchall():
        before = str(connection.execute("SELECT current_setting('memory_limit')").fetchall()[0][0])
        connection.execute(f"SET memory_limit = '{FIT_MEMORY}'")
        try:
            _align(connection, str(job), int(attempt))
        finally:
            connection.execute(f"SET memory_limit = '{before}'")


def _align(connection: duckdb.DuckDBPyConnection, job: str, attempt: int) -> None:
    windows = connection.execute(WINDOWS, [job, attempt]).fetchall()
    names = {number: str(host) for number, (host, _, _) in enumerate(windows)}
    rows = connection.execute(ENDS, [job, attempt, MOST_COLLECTIVES]).fetchnumpy()
    number_of = {host: number for number, host in names.items()}
    ends = Ends(
        collective=rows["collective"].astype(np.int64),
        family=rows["family"].astype(np.int64),
        step=rows["step"].astype(np.int64),
        host=np.array([number_of[host] for host in rows["host"]], dtype=np.int64),
        end_ns=rows["end_ns"].astype(np.int64),
    )
    spans = {number: (int(begin), int(end)) for number, (_, begin, end) in enumerate(windows)}
    fit = fit_clocks(ends, spans, names)
    for number, clock in fit.clocks.items():
        _store(connection, job, attempt, names[number], clock)
    if fit.objection:
        connection.execute("INSERT INTO clock_note VALUES (?, ?, ?)", [job, attempt, fit.objection])


def _store(connection: duckdb.DuckDBPyConnection, job: str, attempt: int, host: str, clock: HostClock) -> None:
    error = clock.error_ns + SAME_HOST_ERROR_NS
    connection.execute(
        """UPDATE clock SET offset_ns = ?, drift_ppb = ?, reference_ns = ?, error_ns = ?, method = 'collectives'
           WHERE job = ? AND attempt = ? AND host = ?""",
        [clock.offset_ns, clock.drift_ppb, clock.reference_ns, error, job, attempt, host],
    )
