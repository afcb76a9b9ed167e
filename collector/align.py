"""How the hosts' clocks of a job attempt relate to each other.

Ranks of one host share CLOCK_REALTIME, so a job on one host needs no offset. Hosts without measured offsets keep their
own time and have no known error: times are then not compared between them.
"""

from __future__ import annotations

import duckdb

# Kineto converts CUPTI timestamps to CLOCK_REALTIME in each process by itself; two processes of a host agree to about a
# microsecond. An assumption, not a measurement: collective ends of GPUs on one host would measure it.
SAME_HOST_ERROR_NS = 1_000


def update_clocks(connection: duckdb.DuckDBPyConnection, job: str, attempt: int) -> None:
    """Rewrite the clock rows of a job attempt after a trace came in. Processes without a usable trace have no times."""
    hosts = connection.execute(
        """SELECT DISTINCT coalesce(p.host, '') FROM process p JOIN trace t USING (process_id)
           WHERE p.job = ? AND p.attempt = ? AND t.status <> 'rejected' ORDER BY 1""",
        [job, attempt],
    ).fetchall()
    named = [host for (host,) in hosts if host]
    connection.execute("DELETE FROM clock WHERE job = ? AND attempt = ?", [job, attempt])
    for (host,) in hosts:
        alone = named == [host]
        method, error = ("same_host", SAME_HOST_ERROR_NS) if alone else ("none", None)
        connection.execute("INSERT INTO clock VALUES (?, ?, ?, 0, 0, 0, ?, ?)", [job, attempt, host, error, method])
