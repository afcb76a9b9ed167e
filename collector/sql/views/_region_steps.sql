-- _region_steps: One row per (step, region, phase, rank): the compute time that straggler analysis compares between ranks.
--
-- How to read it: communication kernels are left out (they contain the wait for others), regions that hold nothing else
-- do not appear. ranks counts the ranks that ran the region in that step; median_ns is the median over them.
WITH per_step AS (
    SELECT
        job, attempt, rank, step, region, phase,
        CAST(sum(compute_ns) AS BIGINT) AS compute_ns,
        CAST(sum(compute_kernels) AS BIGINT) AS kernels
    FROM _region_busy
    WHERE step IS NOT NULL AND compute_kernels > 0
    GROUP BY job, attempt, rank, step, region, phase
),
across AS (
    SELECT job, attempt, step, region, phase, median(compute_ns) AS median_ns, count(*) AS ranks
    FROM per_step
    GROUP BY job, attempt, step, region, phase
)
SELECT
    p.job,
    p.attempt,
    p.rank,
    p.step,
    p.region,
    p.phase,
    p.compute_ns,
    p.kernels,
    a.median_ns,
    a.ranks
FROM per_step AS p
JOIN across AS a
    ON a.job = p.job AND a.attempt = p.attempt AND a.step = p.step AND a.region = p.region AND a.phase = p.phase
