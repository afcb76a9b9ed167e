-- steps: One row per step of a rank: when its GPU work ran and what it consisted of.
--
-- How to read it: a step holds the work that was launched in it, so steps overlap in time when the host runs ahead of the
-- GPU; duration_ns is from the first start to the last end of that work. The parts of a step are sums over kernels,
-- so they exceed duration_ns where streams overlap.
--
-- | column | type | unit | NULL | meaning |
-- |---|---|---|---|---|
-- | job | VARCHAR | - | never | the job's name |
-- | attempt | BIGINT | - | never | restart count of the job |
-- | rank | BIGINT | - | never | global rank |
-- | step | BIGINT | - | never | ProfilerStep number, or the ordinal of the replay where the trace has no steps; later windows that use the same numbers again go on counting |
-- | start_ns | BIGINT | ns since the epoch | never | start of its first GPU work |
-- | end_ns | BIGINT | ns since the epoch | no work has a believable duration | end of its last GPU work |
-- | duration_ns | BIGINT | ns | no work has a believable duration | end_ns - start_ns |
-- | busy_ns | BIGINT | ns | never | sum of all durations |
-- | compute_ns | BIGINT | ns | never | of that, everything but communication kernels |
-- | collective_ns | BIGINT | ns | never | of that, communication kernels, waits included |
-- | kernels | BIGINT | - | never | kernels, memcpys and memsets |
SELECT
    job,
    attempt,
    rank,
    step,
    min(start_ns) AS start_ns,
    max(start_ns + duration_ns) AS end_ns,
    max(start_ns + duration_ns) - min(start_ns) AS duration_ns,
    CAST(coalesce(sum(duration_ns), 0) AS BIGINT) AS busy_ns,
    CAST(coalesce(sum(duration_ns) FILTER (WHERE NOT communication), 0) AS BIGINT) AS compute_ns,
    CAST(coalesce(sum(duration_ns) FILTER (WHERE communication), 0) AS BIGINT) AS collective_ns,
    count(*) AS kernels
FROM _gpu_work
WHERE step IS NOT NULL
GROUP BY job, attempt, rank, step
