-- ranks: One row per rank of a job attempt: where it ran and what its GPU did in the ingested windows.
--
-- How to read it: compare compute_ns and median_step_ns between ranks; collective_ns is high on the ranks that wait, low on
-- the one they wait for. A rank that is missing here sent no usable trace; jobs counts seen against expected.
--
-- | column | type | unit | NULL | meaning |
-- |---|---|---|---|---|
-- | job | VARCHAR | - | never | the job's name |
-- | attempt | BIGINT | - | never | restart count of the job |
-- | rank | BIGINT | - | never | global rank |
-- | host | VARCHAR | - | the trace does not say | host name |
-- | pid | BIGINT | - | the trace does not say | process id on that host |
-- | gpu | VARCHAR | - | the trace does not say | GPU model |
-- | traces | BIGINT | - | never | usable traces |
-- | steps | BIGINT | - | never | steps with GPU work |
-- | gpu_events | BIGINT | - | never | kernels, memcpys and memsets |
-- | busy_ns | BIGINT | ns | never | sum of all durations |
-- | compute_ns | BIGINT | ns | never | of that, everything but communication kernels |
-- | collective_ns | BIGINT | ns | never | of that, communication kernels, waits included |
-- | median_step_ns | DOUBLE | ns | no work was launched in a step | median of the steps' duration_ns |
WITH work AS (
    SELECT
        job, attempt, rank,
        count(DISTINCT trace_id) AS traces,
        count(*) AS gpu_events,
        CAST(coalesce(sum(duration_ns), 0) AS BIGINT) AS busy_ns,
        CAST(coalesce(sum(duration_ns) FILTER (WHERE NOT communication), 0) AS BIGINT) AS compute_ns,
        CAST(coalesce(sum(duration_ns) FILTER (WHERE communication), 0) AS BIGINT) AS collective_ns
    FROM _gpu_work
    GROUP BY job, attempt, rank
),
step AS (
    SELECT job, attempt, rank, count(*) AS steps, median(duration_ns) AS median_step_ns
    FROM steps
    GROUP BY job, attempt, rank
)
SELECT
    w.job,
    w.attempt,
    w.rank,
    p.host,
    p.pid,
    p.gpu,
    w.traces,
    coalesce(s.steps, 0) AS steps,
    w.gpu_events,
    w.busy_ns,
    w.compute_ns,
    w.collective_ns,
    s.median_step_ns
FROM work AS w
JOIN process AS p ON p.job = w.job AND p.attempt = w.attempt AND p.rank = w.rank
LEFT JOIN step AS s ON s.job = w.job AND s.attempt = w.attempt AND s.rank = w.rank
