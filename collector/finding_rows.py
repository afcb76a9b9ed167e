"""The rows behind a finding: its steps one by one, and the kernels of one of them beside those of a usual rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from annotq.collector.findings import Finding
from annotq.collector.work import REGION_CODES, Ask

# What is compared, by cause: one number per rank and step.
_REGIONS = (
    """SELECT w.rank, w.step, sum(w.compute_ns) AS time_ns
    FROM _region_work AS w
    LEFT JOIN ("""
    + REGION_CODES
    + """) AS c ON c.code = w.code
    WHERE w.job = ? AND w.attempt = ? AND w.compute_ns IS NOT NULL{chosen}
    GROUP BY w.rank, w.step"""
)

_GAPS = """SELECT rank, step, sum(greatest(first_ns - begin_ns, 0)) AS time_ns
    FROM _step_bounds
    WHERE job = ? AND attempt = ? AND ordinal > 0
    GROUP BY rank, step"""

_TRANSFERS = """SELECT rank, step, sum(transfer_duration_ns) AS time_ns
    FROM _collective_waits
    WHERE job = ? AND attempt = ? AND method IS NOT NULL AND step IS NOT NULL
    GROUP BY rank, step"""

_RANKED = """WITH measured AS (
    {measured}
),
ranked AS (
    SELECT rank, step, time_ns,
        median(time_ns) OVER (PARTITION BY step) AS median_ns,
        rank() OVER (PARTITION BY step ORDER BY time_ns DESC) AS place,
        count(*) OVER (PARTITION BY step) AS ranks
    FROM measured
)
"""

_STEPS = """SELECT step, rank, CAST(time_ns AS BIGINT) AS time_ns, CAST(median_ns AS BIGINT) AS median_ns,
    time_ns / nullif(median_ns, 0) AS ratio, place, ranks
FROM ranked
WHERE {whose}
ORDER BY step ASC NULLS LAST, place ASC NULLS LAST, rank ASC NULLS LAST"""

# A stage against the other ranks; and everyone, for what slowed everyone.
_TOGETHER = """SELECT step, CAST(NULL AS BIGINT) AS rank, CAST(median(time_ns) FILTER (WHERE {inside}) AS BIGINT) AS time_ns,
    CAST(median(time_ns) FILTER (WHERE {outside}) AS BIGINT) AS median_ns,
    median(time_ns) FILTER (WHERE {inside}) / nullif(median(time_ns) FILTER (WHERE {outside}), 0) AS ratio,
    CAST(NULL AS BIGINT) AS place, count(*) AS ranks
FROM measured
GROUP BY step
ORDER BY step ASC NULLS LAST"""

_USUAL_RANK = """SELECT rank
FROM ranked
WHERE step = ? AND rank <> ?
ORDER BY abs(time_ns - median_ns) ASC NULLS LAST, rank ASC NULLS LAST
LIMIT 1"""

# The nth kernel of a name in a region on one rank belongs to the nth on the other: where both ran the same graph that is
# the same node, and where one has more kernels (another graph) only those have no other beside them.
_KERNELS = """WITH ran AS (
    SELECT rank, region, phase, node_index, name, duration_ns, start_ns, row_number() OVER (
        PARTITION BY rank, region, phase, name
        ORDER BY replay_id ASC NULLS LAST, node_index ASC NULLS LAST, start_ns ASC NULLS LAST) AS run
    FROM _gpu_work
    WHERE job = ? AND attempt = ? AND step = ? AND rank IN (?, ?) AND NOT communication{chosen}
),
mine AS (
    SELECT * FROM ran WHERE rank = ?
),
usual AS (
    SELECT * FROM ran WHERE rank = ?
)
SELECT coalesce(m.region, u.region) AS region, coalesce(m.phase, u.phase) AS phase,
    coalesce(m.node_index, u.node_index) AS node_index, m.duration_ns AS duration_ns, u.duration_ns AS usual_rank_ns,
    m.duration_ns / nullif(u.duration_ns, 0) AS ratio,
    coalesce(m.duration_ns, 0) - coalesce(u.duration_ns, 0) AS excess_ns, coalesce(m.name, u.name) AS name
FROM mine AS m
FULL JOIN usual AS u
    ON u.run = m.run AND u.name = m.name AND u.region IS NOT DISTINCT FROM m.region AND u.phase IS NOT DISTINCT FROM m.phase
ORDER BY excess_ns DESC, region ASC NULLS LAST, phase ASC NULLS LAST, node_index ASC NULLS LAST, coalesce(m.run, u.run)"""

_PARTS = """SELECT rank, period_ns, compute_ns, exposed_transfer_ns, wait_ns, launch_gap_ns, other_ns
FROM step_parts
WHERE job = ? AND attempt = ? AND step = ? AND rank IN (?, ?)
ORDER BY rank = ? DESC"""

_COLLECTIVES = """SELECT rank, name, region, phase, group_name, duration_ns, wait_duration_ns AS wait_ns,
    transfer_duration_ns AS transfer_ns
FROM _collective_waits
WHERE job = ? AND attempt = ? AND step = ? AND rank IN (?, ?) AND method IS NOT NULL
ORDER BY transfer_ns DESC, rank = ? DESC, arrive_ns ASC NULLS LAST"""


@dataclass(frozen=True)
class Question:
    """One SELECT with its parameters, and what its rows are."""

    purpose: str
    sql: str
    parameters: tuple[object, ...]


def step_rows(job: str, attempt: int, finding: Finding) -> Question:
    """One row per step (for imbalance, its slowest rank): step, rank, time_ns, median_ns of the ranks, ratio, place (1 is the
    slowest) of how many ranks. For a stage and for everyone rank is NULL, time_ns the median of those concerned, and
    median_ns that of the others; for everyone there are none, and it is NULL."""
    measured, parameters = _measured(job, attempt, finding)
    head = _RANKED.format(measured=measured)
    if finding.cause in ("stage", "global"):
        concerned = ", ".join(map(str, finding.ranks)) or "NULL"
        everyone = finding.cause == "global" or not finding.ranks
        inside, outside = ("TRUE", "FALSE") if everyone else (f"rank IN ({concerned})", f"rank NOT IN ({concerned})")
        sql = head + _TOGETHER.format(inside=inside, outside=outside)
    elif finding.cause == "imbalance":
        sql = head + _STEPS.format(whose="place = 1")
    else:
        sql = head + _STEPS.format(whose=f"rank IN ({', '.join(map(str, _concerned(finding)))})")
    return Question(f"{_what(finding)} of each step", sql, parameters)


def usual_rank(ask: Ask, job: str, attempt: int, finding: Finding, step: int, rank: int) -> int | None:
    """The other rank that is nearest to the median of the ranks in this step; None when there is no other."""
    measured, parameters = _measured(job, attempt, finding)
    rows = ask(_RANKED.format(measured=measured) + _USUAL_RANK, [*parameters, step, rank]).to_pylist()
    return int(rows[0]["rank"]) if rows else None


def detail_rows(job: str, attempt: int, finding: Finding, step: int, rank: int, usual: int) -> Question:
    """Inside one step: the kernels of the finding's regions, each beside the same one on the usual rank, the largest
    difference first; for a late launch the parts of the step, for a slow link the collectives, of both ranks."""
    both: tuple[object, ...] = (job, attempt, step, rank, usual)
    if finding.cause == "late_launch":
        return Question(f"parts of step {step} on rank {rank} and on rank {usual}", _PARTS, (*both, rank))
    if finding.cause == "slow_link":
        return Question(f"collectives of step {step} on rank {rank} and on rank {usual}", _COLLECTIVES, (*both, rank))
    chosen, keys = _chosen(finding, "region", "phase")
    sql = _KERNELS.format(chosen=chosen)
    return Question(f"kernels of step {step} on rank {rank}, beside rank {usual}", sql, (*both, *keys, rank, usual))


def _what(finding: Finding) -> str:
    return {"late_launch": "launch gap", "slow_link": "transfers"}.get(finding.cause, "compute time")


def _concerned(finding: Finding) -> Sequence[int]:
    return finding.ranks or ((finding.rank,) if finding.rank is not None else ())


def _measured(job: str, attempt: int, finding: Finding) -> tuple[str, tuple[object, ...]]:
    if finding.cause == "late_launch":
        return _GAPS, (job, attempt)
    if finding.cause == "slow_link":
        return _TRANSFERS, (job, attempt)
    chosen, keys = _chosen(finding, "c.region", "c.phase")
    return _REGIONS.format(chosen=chosen), (job, attempt, *keys)


def _chosen(finding: Finding, region: str, phase: str) -> tuple[str, tuple[object, ...]]:
    """A condition that holds for the finding's regions, with its parameters; none where it concerns all computing."""
    keys = tuple(f"{row.evidence.region}|{row.evidence.phase}" for row in finding.regions)
    if not keys:
        return "", ()
    return f" AND concat({region}, '|', {phase}) IN ({', '.join('?' * len(keys))})", keys
