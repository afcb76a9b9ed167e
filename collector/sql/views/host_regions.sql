-- host_regions: One row per rank and user annotation on the host: how long a pass takes there, and how that compares.
--
-- How to read it: the same names as in regions, measured on the host: for a job on CPUs it is where the time goes, for eager
-- GPU work it is the time to launch. Only the latest attempt of a job is counted. A pass contains the passes nested in it, so
-- totals of outer and inner regions do not add up. What PyTorch annotates itself (Optimizer.step#..., gloo:all_reduce,
-- nccl:...) is listed too; a collective's time contains the wait for the slowest rank. Code inside a CUDA graph runs on
-- the host only once, at capture: look for it in regions.
--
-- | column | type | unit | NULL | meaning |
-- |---|---|---|---|---|
-- | job | VARCHAR | - | never | the job's name |
-- | attempt | BIGINT | - | never | restart count of the job; the latest one |
-- | rank | BIGINT | - | never | global rank |
-- | region | VARCHAR | - | never | name of the annotation |
-- | instances | BIGINT | - | never | passes |
-- | median_ns | DOUBLE | ns | never | median duration of a pass on the host |
-- | p95_ns | DOUBLE | ns | never | 95th percentile, interpolated |
-- | total_ns | BIGINT | ns | never | duration of all passes |
-- | ratio | DOUBLE | 1 | the other ranks' median is 0 | median_ns over the median of all ranks' median_ns |
WITH latest AS (
    SELECT job, max(attempt) AS attempt
    FROM _traces
    GROUP BY job
),
per_rank AS (
    SELECT
        h.job,
        h.attempt,
        h.rank,
        h.name AS region,
        count(*) AS instances,
        median(h.duration_ns) AS median_ns,
        percentile_cont(0.95) WITHIN GROUP (ORDER BY h.duration_ns) AS p95_ns,
        CAST(sum(h.duration_ns) AS BIGINT) AS total_ns
    FROM _host_work AS h
    JOIN latest AS l ON l.job = h.job AND l.attempt = h.attempt
    WHERE h.kind = 'annotation'
    GROUP BY h.job, h.attempt, h.rank, h.name
),
across AS (
    SELECT job, region, median(median_ns) AS median_ns
    FROM per_rank
    GROUP BY job, region
)
SELECT
    r.job,
    r.attempt,
    r.rank,
    r.region,
    r.instances,
    r.median_ns,
    r.p95_ns,
    r.total_ns,
    r.median_ns / nullif(a.median_ns, 0) AS ratio
FROM per_rank AS r
JOIN across AS a ON a.job = r.job AND a.region = r.region
