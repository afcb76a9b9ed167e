"""How long after the beginning of its own step each rank launches its first work: what the host alone is answerable for.

A GPU can be idle although its work was launched in time: shared with other processes it runs when its turn comes. The delay
of the launch, on one clock, from one mark of the same process to another, is not moved by that.
"""

from __future__ import annotations

import numpy as np

from annotq.collector.statistics import Floats
from annotq.collector.work import Ask, Work

DELAYS = """SELECT t.rank, h.step + t.step_offset AS step,
    min(h.start_ns) FILTER (WHERE h.kind IN ('graph_launch', 'launch'))
        - min(h.start_ns) FILTER (WHERE h.kind = 'step') AS delay_ns
FROM host_span AS h
JOIN _traces AS t ON t.trace_id = h.trace_id
WHERE t.job = ? AND t.attempt = ? AND h.kind IN ('graph_launch', 'launch', 'step') AND h.step IS NOT NULL
GROUP BY t.rank, h.step + t.step_offset"""


def launch_delays(ask: Ask, job: str, attempt: int, work: Work) -> Floats:
    """From the beginning of the rank's ProfilerStep to its first launch in it, in ns; shape (ranks, steps) as in `work`.

    NaN where the trace does not show both.
    """
    delays = np.full(work.end_ns.shape, np.nan)
    if not delays.size:
        return delays
    for row in ask(DELAYS, [job, attempt]).to_pylist():
        rank, step = np.searchsorted(work.ranks, row["rank"]), np.searchsorted(work.steps, row["step"])
        known = rank < len(work.ranks) and step < len(work.steps)
        if (
            known
            and work.ranks[rank] == row["rank"]
            and work.steps[step] == row["step"]
            and row["delay_ns"] is not None
        ):
            delays[rank, step] = row["delay_ns"]
    return delays
