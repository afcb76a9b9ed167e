"""The SQL behind a comparison: the numbers of `annotq diff`, intervals included, as one statement to paste."""

from __future__ import annotations

from statistics import NormalDist

from annotq.cli.statement import Statement
from annotq.collector.diff_sides import Side
from annotq.collector.shift import CONFIDENCE, LONGEST
from annotq.collector.waits import COLLECTIVE_STEPS

# Each gives part, region, phase, step, median_ns, slowest_ns of one side; {steps} narrows it to the side's steps.
# A window's first step has no step before it, so its period is left out, unless the side has no other.
PERIODS = """SELECT rank, step, period_ns
    FROM (
        SELECT *, min(opens) OVER () AS only_openings
        FROM (
            SELECT rank, step, CAST(sum(end_ns - begin_ns) AS BIGINT) AS period_ns,
                max(CASE WHEN min(ordinal) = 0 THEN 1 ELSE 0 END) OVER (PARTITION BY step) AS opens
            FROM _step_bounds
            WHERE job = ? AND attempt = ?{steps}
            GROUP BY rank, step
        ) AS lasted
    ) AS kept
    WHERE opens = 0 OR only_openings = 1"""

_STEP = f"""SELECT 'step' AS part, CAST(NULL AS VARCHAR) AS region, CAST(NULL AS VARCHAR) AS phase, step,
        median(period_ns) AS median_ns, CAST(max(period_ns) AS DOUBLE) AS slowest_ns
    FROM ({PERIODS}) AS periods
    GROUP BY step"""

_COMPUTE = """SELECT 'compute' AS part, region, phase, step,
        median(compute_ns) AS median_ns, CAST(max(compute_ns) AS DOUBLE) AS slowest_ns
    FROM _region_steps
    WHERE job = ? AND attempt = ?{steps}
    GROUP BY region, phase, step"""

# A transfer is the same on every rank of its collective: the group's first rank stands for it.
_TRANSFER = f"""SELECT concat('transfer (', name, ')') AS part, region, phase, step,
        median(transfer_duration_ns) AS median_ns, CAST(max(transfer_duration_ns) AS DOUBLE) AS slowest_ns
    FROM ({COLLECTIVE_STEPS}) AS collective_steps
    WHERE rank = group_first_rank AND transfer_duration_ns IS NOT NULL AND step IS NOT NULL{{steps}}
    GROUP BY name, region, phase, step"""

PARTS = {"step": _STEP, "compute": _COMPUTE, "transfer": _TRANSFER}

_PAIRS = """-- Hodges & Lehmann: all differences between a step of one side and one of the other, in order.
pairs AS (
    SELECT a.part, a.region, a.phase, b.median_ns - a.median_ns AS difference_ns,
        row_number() OVER (PARTITION BY a.part, a.region, a.phase ORDER BY b.median_ns - a.median_ns ASC NULLS LAST) AS place
    FROM step_times AS a
    JOIN step_times AS b
        ON b.part = a.part AND b.region IS NOT DISTINCT FROM a.region AND b.phase IS NOT DISTINCT FROM a.phase
    WHERE a.side = 'before' AND b.side = 'after'
),
"""

_WITHOUT_PAIRS = """-- Without intervals: of more than 1,000 steps annotq diff pairs 1,000 evenly spread ones for them.
"""

_COMPARED_WITHOUT_INTERVAL = """compared AS (
    SELECT *, CAST(NULL AS DOUBLE) AS low_ns, CAST(NULL AS DOUBLE) AS high_ns, b_ns / nullif(a_ns, 0) AS ratio
    FROM paired
"""

_COMPARED = """compared AS (
    SELECT p.part, p.region, p.phase, p.a_ns, p.b_ns, p.difference_ns,
        least(max(CASE WHEN p.cut >= 1 AND d.place = p.cut THEN d.difference_ns END), p.difference_ns) AS low_ns,
        greatest(max(CASE WHEN p.cut >= 1 AND d.place = p.steps_a * p.steps_b - p.cut + 1 THEN d.difference_ns END),
            p.difference_ns) AS high_ns,
        p.b_ns / nullif(p.a_ns, 0) AS ratio, p.slowest_a_ns, p.slowest_b_ns, p.steps_a, p.steps_b, p.cut
    FROM paired AS p
    JOIN pairs AS d
        ON d.part = p.part AND d.region IS NOT DISTINCT FROM p.region AND d.phase IS NOT DISTINCT FROM p.phase
    GROUP BY p.part, p.region, p.phase, p.a_ns, p.b_ns, p.difference_ns, p.slowest_a_ns, p.slowest_b_ns, p.steps_a,
        p.steps_b, p.cut
"""

_CHANGES = """WITH step_times AS (
    {sides}
),
counted AS (
    SELECT side, part, region, phase, count(*) AS steps, median(median_ns) AS usual_ns, median(slowest_ns) AS slowest_ns
    FROM step_times
    GROUP BY side, part, region, phase
),
{pairs}-- So many are cut off on each side. {inflation:.6f}: (1 + r) / (1 - r), r how much a step resembles the next.
paired AS (
    SELECT a.part, a.region, a.phase, a.steps AS steps_a, b.steps AS steps_b, a.usual_ns AS a_ns, b.usual_ns AS b_ns,
        b.usual_ns - a.usual_ns AS difference_ns, a.slowest_ns AS slowest_a_ns, b.slowest_ns AS slowest_b_ns,
        CAST(floor(a.steps * b.steps / 2.0 - {score:.9f} * sqrt({inflation!r} * a.steps * b.steps * (a.steps + b.steps + 1) / 12))
            AS BIGINT) AS cut
    FROM counted AS a
    JOIN counted AS b
        ON b.part = a.part AND b.region IS NOT DISTINCT FROM a.region AND b.phase IS NOT DISTINCT FROM a.phase
    WHERE a.side = 'before' AND b.side = 'after'
),
{compared})
SELECT part, region, phase, a_ns, b_ns, difference_ns, CASE WHEN cut >= 1 THEN low_ns END AS low_ns,
    CASE WHEN cut >= 1 THEN high_ns END AS high_ns, ratio, slowest_a_ns, slowest_b_ns, steps_a, steps_b
FROM compared
UNION ALL
-- New and vanished: what only one side has.
SELECT c.part, c.region, c.phase, CASE WHEN c.side = 'before' THEN c.usual_ns END AS a_ns,
    CASE WHEN c.side = 'after' THEN c.usual_ns END AS b_ns,
    CASE WHEN c.side = 'after' THEN c.usual_ns ELSE -c.usual_ns END AS difference_ns, NULL AS low_ns, NULL AS high_ns,
    NULL AS ratio, CASE WHEN c.side = 'before' THEN c.slowest_ns END AS slowest_a_ns,
    CASE WHEN c.side = 'after' THEN c.slowest_ns END AS slowest_b_ns,
    CASE WHEN c.side = 'before' THEN c.steps ELSE 0 END AS steps_a,
    CASE WHEN c.side = 'after' THEN c.steps ELSE 0 END AS steps_b
FROM counted AS c
WHERE NOT EXISTS (
    SELECT 1 FROM counted AS o
    WHERE o.side <> c.side AND o.part = c.part AND o.region IS NOT DISTINCT FROM c.region
        AND o.phase IS NOT DISTINCT FROM c.phase)
ORDER BY greatest(abs(difference_ns), abs(coalesce(slowest_b_ns, 0) - coalesce(slowest_a_ns, 0))) DESC NULLS LAST"""


def changes_statement(
    before: Side, after: Side, parts: tuple[str, ...], inflation: float, most_steps: int = 0
) -> Statement:
    """The rows of `annotq diff` for these parts (keys of PARTS), largest difference first, all but the word for it.

    inflation: of the variance, as diff took it (collector.shift.inflation_of). most_steps: of a side; of more than
    shift.LONGEST the intervals are left out.
    """
    sides, parameters = [], []
    for name, side in (("before", before), ("after", after)):
        for part in parts:
            series = PARTS[part]
            sides.append(f"SELECT '{name}' AS side, * FROM (\n    {series.format(steps=step_condition(side))})")
            parameters += [side.job, side.attempt] * (series.count("?") // 2)
    many = most_steps > LONGEST
    sql = _CHANGES.format(
        sides="\n    UNION ALL\n    ".join(sides),
        inflation=inflation,
        score=NormalDist().inv_cdf(0.5 + CONFIDENCE / 2),
        pairs=_WITHOUT_PAIRS if many else _PAIRS,
        compared=_COMPARED_WITHOUT_INTERVAL if many else _COMPARED,
    )
    return Statement(sql, tuple(parameters))


def step_condition(side: Side, column: str = "step") -> str:
    """The side's steps as the end of a WHERE; empty for all. The numbers are our own, not text from outside."""
    if side.steps is None:
        return ""
    return f" AND ({' OR '.join(f'{column} BETWEEN {first} AND {last}' for first, last in side.steps)})"
