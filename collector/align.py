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
    """Rewrite the clock rows of a job attempt after one of its processes became known."""
    hosts = connection.execute(
        "SELECT DISTINCT coalesce(host, '') FROM process WHERE job = ? AND attempt = ? ORDER BY 1", [job, attempt]
    ).fetchall()
    single = len(hosts) == 1 and hosts[0][0] != ""
    method, error = ("same_host", SAME_HOST_ERROR_NS) if single else ("none", None)
    connection.execute("DELETE FROM clock WHERE job = ? AND attempt = ?", [job, attempt])
    for (host,) in hosts:
        connection.execute("INSERT INTO clock VALUES (?, ?, ?, 0, 0, 0, ?, ?)", [job, attempt, host, error, method])
