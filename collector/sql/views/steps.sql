-- steps: One row per step of a rank: when its GPU work ran, what it consisted of, and how long the host was in it.
--
-- How to read it: a step holds the work that was launched in it, so steps overlap in time when the host runs ahead of the
-- GPU; duration_ns is from the first start to the last end of that work. The parts of a step are sums over kernels,
-- so they exceed duration_ns where streams overlap. host_start_ns and host_duration_ns are the step as the profiler saw it
-- on the host. A rank none of whose traces holds GPU work (a job on CPUs) has its profiler steps here with kernels = 0; a
-- rank with GPU work has the steps that launched some.
--
-- | column | type | unit | NULL | meaning |
-- |---|---|---|---|---|
-- | job | VARCHAR | - | never | the job's name |
-- | attempt | BIGINT | - | never | restart count of the job |
-- | rank | BIGINT | - | never | global rank |
-- | step | BIGINT | - | never | ProfilerStep number, or the ordinal of the replay where the trace has no steps; later windows that use the same numbers again go on counting |
-- | start_ns | BIGINT | ns since the epoch | no GPU work | start of its first GPU work |
-- | end_ns | BIGINT | ns since the epoch | no work has a believable duration | end of its last GPU work |
-- | duration_ns | BIGINT | ns | no work has a believable duration | end_ns - start_ns |
-- | busy_ns | BIGINT | ns | never | sum of all durations |
-- | compute_ns | BIGINT | ns | never | of that, everything but communication kernels |
-- | collective_ns | BIGINT | ns | never | of that, communication kernels, waits included |
-- | kernels | BIGINT | - | never | kernels, memcpys and memsets |
-- | host_start_ns | BIGINT | ns since the epoch | the trace has no profiler step of that number | start of the step on the host, on the job's common clock |
-- | host_duration_ns | BIGINT | ns | the trace has no profiler step of that number | how long the host was in it |
WITH gpu AS (
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
),
host AS (
    SELECT
        job,
        attempt,
        rank,
        step,
        min(start_ns) AS start_ns,
        max(start_ns + duration_ns) - min(start_ns) AS duration_ns
    FROM _host_work
    WHERE kind = 'step' AND step IS NOT NULL
    GROUP BY job, attempt, rank, step
),
with_gpu AS (
    SELECT DISTINCT t.job, t.attempt, t.rank
    FROM _traces AS t
    JOIN trace AS r ON r.trace_id = t.trace_id
    WHERE r.gpu_events > 0
)
SELECT
    g.job,
    g.attempt,
    g.rank,
    g.step,
    g.start_ns,
    g.end_ns,
    g.duration_ns,
    g.busy_ns,
    g.compute_ns,
    g.collective_ns,
    g.kernels,
    h.start_ns AS host_start_ns,
    h.duration_ns AS host_duration_ns
FROM gpu AS g
LEFT JOIN host AS h ON h.job = g.job AND h.attempt = g.attempt AND h.rank = g.rank AND h.step = g.step
UNION ALL
SELECT
    h.job,
    h.attempt,
    h.rank,
    h.step,
    CAST(NULL AS BIGINT) AS start_ns,
    CAST(NULL AS BIGINT) AS end_ns,
    CAST(NULL AS BIGINT) AS duration_ns,
    CAST(0 AS BIGINT) AS busy_ns,
    CAST(0 AS BIGINT) AS compute_ns,
    CAST(0 AS BIGINT) AS collective_ns,
    CAST(0 AS BIGINT) AS kernels,
    h.start_ns AS host_start_ns,
    h.duration_ns AS host_duration_ns
FROM host AS h
LEFT JOIN with_gpu AS w ON w.job = h.job AND w.attempt = h.attempt AND w.rank = h.rank
WHERE w.rank IS NULL
