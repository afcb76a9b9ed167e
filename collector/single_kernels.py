"""Tells slow code from single kernels that lasted far too long.

A region can be slow because its code is slow, or because now and then one kernel is held up (a preempted GPU, a clock
change, a page fault). Each node's own median does not move in the second case, so a region rebuilt from node medians
shows what the code costs, and the difference to the measured time is what single kernels did.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from annotq.collector.evidence import Ask

# A kernel counts as held up when it lasts this many times its own node's median.
HELD_UP_RATIO = 10

NODES = """WITH kernel AS (
    SELECT rank, step, region, phase, duration_ns,
        coalesce(CAST(node_index AS VARCHAR), concat('#', CAST(row_number() OVER (
            PARTITION BY rank, trace_id, step, replay_id, region, phase, node_index
            ORDER BY start_ns ASC NULLS LAST) AS VARCHAR))) AS node
    FROM _gpu_work
    WHERE job = ? AND attempt = ? AND NOT communication AND step BETWEEN ? AND ? AND duration_ns IS NOT NULL
        AND rank IN ({ranks}) AND concat(region, '|', phase) IN ({regions})
),
steps AS (
    SELECT rank, region, phase, count(DISTINCT step) AS steps
    FROM kernel
    GROUP BY rank, region, phase
),
node AS (
    SELECT rank, region, phase, node, median(duration_ns) AS median_ns, count(*) AS runs
    FROM kernel
    GROUP BY rank, region, phase, node
),
typical AS (
    SELECT n.rank, n.region, n.phase, sum(n.median_ns * n.runs / s.steps) AS typical_ns
    FROM node AS n
    JOIN steps AS s ON s.rank = n.rank AND s.region = n.region AND s.phase = n.phase
    GROUP BY n.rank, n.region, n.phase
),
held AS (
    SELECT k.rank, k.region, k.phase, count(*) AS held_kernels, count(DISTINCT k.step) AS held_steps,
        median(k.duration_ns) AS held_ns, median(n.median_ns) AS held_median_ns
    FROM kernel AS k
    JOIN node AS n ON n.rank = k.rank AND n.region = k.region AND n.phase = k.phase AND n.node = k.node
    WHERE k.duration_ns > {held_up} * n.median_ns
    GROUP BY k.rank, k.region, k.phase
),
across AS (
    SELECT region, phase, median(typical_ns) AS across_ns
    FROM typical
    GROUP BY region, phase
)
SELECT t.rank, t.region, t.phase, t.typical_ns / nullif(a.across_ns, 0) AS ratio,
    t.typical_ns - a.across_ns AS excess_ns, s.steps,
    coalesce(h.held_kernels, 0) AS held_kernels, coalesce(h.held_steps, 0) AS held_steps, h.held_ns, h.held_median_ns
FROM typical AS t
JOIN across AS a ON a.region = t.region AND a.phase = t.phase
JOIN steps AS s ON s.rank = t.rank AND s.region = t.region AND s.phase = t.phase
LEFT JOIN held AS h ON h.rank = t.rank AND h.region = t.region AND h.phase = t.phase"""


@dataclass(frozen=True)
class NodeMedians:
    """A region of a rank as its nodes' own medians see it.

    ratio: sum of node medians over the ranks' median of that sum; None when the others' is 0. excess_ns: the same as a
    difference, per step. held_kernels lasted over
    10 times their node's median, in held_steps of the steps; held_ns is their median duration, held_median_ns the
    median of what their nodes usually take (both None without such kernels).
    """

    rank: int
    region: str
    phase: str
    ratio: float | None
    excess_ns: float
    steps: int
    held_kernels: int
    held_steps: int
    held_ns: float | None
    held_median_ns: float | None


def node_medians(
    ask: Ask,
    job: str,
    attempt: int,
    regions: Collection[tuple[str, str]],
    ranks: Collection[int],
    steps: tuple[int, int],
) -> dict[tuple[int, str, str], NodeMedians]:
    """By (rank, region, phase), for the given (region, phase) pairs on the given ranks, from the first to the last step."""
    if not regions:
        return {}
    query, parameters = node_query(job, attempt, regions, ranks, steps)
    rows = [NodeMedians(**row) for row in ask(query, parameters).to_pylist()]
    return {(row.rank, row.region, row.phase): row for row in rows}


def node_query(
    job: str, attempt: int, regions: Collection[tuple[str, str]], ranks: Collection[int], steps: tuple[int, int]
) -> tuple[str, list[object]]:
    """The SQL and its parameters."""
    keys = [f"{region}|{phase}" for region, phase in regions]
    marks = {"regions": ", ".join("?" * len(keys)), "ranks": ", ".join("?" * len(ranks))}
    return NODES.format(**marks, held_up=HELD_UP_RATIO), [job, attempt, *steps, *ranks, *keys]
