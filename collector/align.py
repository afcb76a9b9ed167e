"""How the hosts' clocks of a job attempt relate to each other.

Ranks of one host share CLOCK_REALTIME, so a job on one host needs no offset. Across hosts the collector's clock is the common
one: pings say how far each host's is from it. A host without pings keeps its own time and has no known error: its times are
then not compared with those of others. Jobs without any ping, from files, are aligned afterwards (collective_alignment.py).
"""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from annotq.collector.clock_fit import ClockFit, fit_clock

# Kineto converts CUPTI timestamps to CLOCK_REALTIME in each process by itself; two processes of a host agree to about a
# microsecond. An assumption, not a measurement: collective ends of GPUs on one host would measure it.
SAME_HOST_ERROR_NS = 1_000

# The fastest sample of each of 64 stretches of time: a job of weeks has a million pings per host.
_FASTEST = """
    WITH timed AS (
        SELECT host, sent_ns, received_ns, answered_ns, returned_ns,
            (returned_ns - sent_ns) - (answered_ns - received_ns) AS trip_ns
        FROM clock_sample WHERE job = ? AND attempt = ?
    ), span AS (
        SELECT host, min(sent_ns) AS first_ns, max(sent_ns) AS last_ns FROM timed GROUP BY host
    ), fastest AS (
        SELECT host, arg_min(struct_pack(sent_ns, received_ns, answered_ns, returned_ns), trip_ns) AS sample
        FROM timed JOIN span USING (host)
        WHERE trip_ns >= 0
        GROUP BY host, floor((sent_ns - first_ns) * 64.0 / (last_ns - first_ns + 1))
    )
    SELECT host, sample.sent_ns, sample.received_ns, sample.answered_ns, sample.returned_ns
    FROM fastest ORDER BY host, sample.sent_ns"""

Int64s = npt.NDArray[np.int64]


def update_clocks(connection: duckdb.DuckDBPyConnection, job: str, attempt: int) -> None:
    """Rewrite the clock rows of a job attempt after a trace or clock samples came in. Processes without a usable trace
    have no times.
    """
    hosts = connection.execute(
        """SELECT coalesce(p.host, ''), min(t.window_start_ns), max(t.window_end_ns)
           FROM process p JOIN trace t USING (process_id)
           WHERE p.job = ? AND p.attempt = ? AND t.status NOT IN ('rejected', 'arriving') GROUP BY 1 ORDER BY 1""",
        [job, attempt],
    ).fetchall()
    named = [host for host, _, _ in hosts if host]
    connection.execute("DELETE FROM clock WHERE job = ? AND attempt = ?", [job, attempt])
    connection.execute("DELETE FROM clock_note WHERE job = ? AND attempt = ?", [job, attempt])
    samples = _samples(connection, job, attempt) if len(hosts) > 1 else {}
    for host, first_ns, last_ns in hosts:
        fit, method, error = ClockFit(0, 0, 0, 0), "none", None
        if named == [host]:
            method, error = "same_host", SAME_HOST_ERROR_NS
        elif host and host in samples:
            sent = samples[host][0]
            window = (int(sent[0]), int(sent[-1])) if first_ns is None else (first_ns, last_ns)
            found = fit_clock(*samples[host], *window)
            if found is not None:
                fit, method, error = found, "ping", found.error_ns
        connection.execute(
            "INSERT INTO clock VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [job, attempt, host, fit.offset_ns, fit.drift_ppb, fit.reference_ns, error, method],
        )


def _samples(
    connection: duckdb.DuckDBPyConnection, job: str, attempt: int
) -> dict[str, tuple[Int64s, Int64s, Int64s, Int64s]]:
    """The samples of each host by time: sent, received, answered, returned."""
    columns: dict[str, Any] = connection.execute(_FASTEST, [job, attempt]).fetchnumpy()
    hosts, first = np.unique(columns.pop("host").astype(str), return_index=True)
    times = [np.split(np.asarray(column, np.int64), first[1:]) for column in columns.values()]
    return {str(host): (times[0][i], times[1][i], times[2][i], times[3][i]) for i, host in enumerate(hosts)}
