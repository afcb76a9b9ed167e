"""Questions to a store of 50 million kernels, each in a process of its own: time and memory."""

from __future__ import annotations

import sys
from pathlib import Path

from ingest import timed
from measure import spread
from section import Section, megabytes

HERE = Path(__file__).parent

# The memory limit is DuckDB's own account, which runs ahead of what is resident: two percentiles written apart keep
# the 50 million values twice, and pass under 2 GB resident, but not under a limit of 2 GB.
QUESTIONS = [
    (
        "p50 and p99 of every region, phase and rank over `kernels`, as one list",
        "2GB",
        "SELECT rank, region, phase, quantile_cont(duration_ns, [0.5, 0.99]) FROM kernels GROUP BY rank, region, phase",
    ),
    (
        "the same as two `percentile_cont`",
        "3GB",
        """SELECT rank, region, phase,
            percentile_cont(0.5) WITHIN GROUP (ORDER BY duration_ns) AS p50_ns,
            percentile_cont(0.99) WITHIN GROUP (ORDER BY duration_ns) AS p99_ns
        FROM kernels GROUP BY rank, region, phase""",
    ),
    ("the view `regions`, whole", "2GB", "SELECT * FROM regions"),
]


def measure(store: Path, repeats: int) -> Section:
    rows = [("question", "memory limit", "seconds: median (min to max)", "peak memory")]
    for name, memory, sql in QUESTIONS:
        runs = [timed(sys.executable, HERE / "query.py", store, memory, sql) for _ in range(repeats)]
        seconds, peak = [one.seconds for one in runs], max(one.peak_bytes for one in runs)
        rows.append((name, memory, spread(seconds), megabytes(peak)))
    what = "64 ranks, 200 regions forward and backward, through the query door with 2 threads; 25,600 rows of answer."
    return Section("50 million kernels", what, rows)
