-- regions: One row per rank and region: how long a pass takes, and how that compares with the other ranks.
--
-- How to read it: only the latest attempt of a job is counted. Percentiles are over the passes (region_instances) of the
-- rank. Regions of collectives contain the wait for the slowest rank, so a ratio there says who waited, not who is slow;
-- the view collectives takes the wait out.
--
-- | column | type | unit | NULL | meaning |
-- |---|---|---|---|---|
-- | job | VARCHAR | - | never | the job's name |
-- | rank | BIGINT | - | never | global rank |
-- | region | VARCHAR | - | never | name of the region |
-- | phase | VARCHAR | - | never | forward or backward |
-- | instances | BIGINT | - | never | passes through the region |
-- | kernels | BIGINT | - | never | kernels, memcpys and memsets in all passes |
-- | median_ns | DOUBLE | ns | never | median busy time of a pass |
-- | p95_ns | DOUBLE | ns | never | 95th percentile, interpolated |
-- | p99_ns | DOUBLE | ns | never | 99th percentile, interpolated |
-- | total_ns | BIGINT | ns | never | busy time of all passes |
-- | ratio | DOUBLE | 1 | the other ranks' median is 0 | median_ns over the median of all ranks' median_ns |
WITH latest AS (
    SELECT job, max(attempt) AS attempt
    FROM _traces
    GROUP BY job
),
per_rank AS (
    SELECT
        b.job,
        b.rank,
        b.region,
        b.phase,
        count(*) AS instances,
        CAST(sum(b.kernels) AS BIGINT) AS kernels,
        median(b.busy_ns) AS median_ns,
        percentile_cont(0.95) WITHIN GROUP (ORDER BY b.busy_ns) AS p95_ns,
        percentile_cont(0.99) WITHIN GROUP (ORDER BY b.busy_ns) AS p99_ns,
        CAST(sum(b.busy_ns) AS BIGINT) AS total_ns
    FROM _region_busy AS b
    JOIN latest AS l ON l.job = b.job AND l.attempt = b.attempt
    GROUP BY b.job, b.rank, b.region, b.phase
),
across AS (
    SELECT job, region, phase, median(median_ns) AS median_ns
    FROM per_rank
    GROUP BY job, region, phase
)
SELECT
    r.job,
    r.rank,
    r.region,
    r.phase,
    r.instances,
    r.kernels,
    r.median_ns,
    r.p95_ns,
    r.p99_ns,
    r.total_ns,
    r.median_ns / nullif(a.median_ns, 0) AS ratio
FROM per_rank AS r
JOIN across AS a ON a.job = r.job AND a.region = r.region AND a.phase = r.phase
