-- ranks: One row per rank of a job attempt: where it ran and what it did in the profiler windows.
--
-- How to read it: compare compute_ns and median_step_ns between ranks; collective_ns is high on the ranks that wait, low on
-- the one they wait for. A rank without GPU work has zeros and its host's step time. A rank that is missing here sent no
-- usable trace; jobs counts seen against expected, agents lists who reported.
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
-- | steps | BIGINT | - | never | its rows in the view steps: steps with GPU work, or the profiler's where the rank has none |
-- | gpu_events | BIGINT | - | never | kernels, memcpys and memsets |
-- | busy_ns | BIGINT | ns | never | sum of all durations |
-- | compute_ns | BIGINT | ns | never | of that, everything but communication kernels |
-- | collective_ns | BIGINT | ns | never | of that, communication kernels, waits included |
-- | median_step_ns | DOUBLE | ns | no work was launched in a step | median of the steps' duration_ns |
-- | median_host_step_ns | DOUBLE | ns | the traces have no profiler steps | median of the steps' host_duration_ns |
WITH seen AS (
    SELECT job, attempt, rank, count(*) AS traces
    FROM _traces
    GROUP BY job, attempt, rank
),
work AS (
    SELECT
        job, attempt, rank,
        count(*) AS gpu_events,
        CAST(coalesce(sum(duration_ns), 0) AS BIGINT) AS busy_ns,
        CAST(coalesce(sum(duration_ns) FILTER (WHERE NOT communication), 0) AS BIGINT) AS compute_ns,
        CAST(coalesce(sum(duration_ns) FILTER (WHERE communication), 0) AS BIGINT) AS collective_ns
    FROM _gpu_work
    GROUP BY job, attempt, rank
),
step AS (
    SELECT
        job, attempt, rank,
        count(*) AS steps,
        median(duration_ns) AS median_step_ns,
        median(host_duration_ns) AS median_host_step_ns
    FROM steps
    GROUP BY job, attempt, rank
)
SELECT
    t.job,
    t.attempt,
    t.rank,
    p.host,
    p.pid,
    p.gpu,
    t.traces,
    coalesce(s.steps, 0) AS steps,
    coalesce(w.gpu_events, 0) AS gpu_events,
    coalesce(w.busy_ns, 0) AS busy_ns,
    coalesce(w.compute_ns, 0) AS compute_ns,
    coalesce(w.collective_ns, 0) AS collective_ns,
    s.median_step_ns,
    s.median_host_step_ns
FROM seen AS t
JOIN process AS p ON p.job = t.job AND p.attempt = t.attempt AND p.rank = t.rank
LEFT JOIN work AS w ON w.job = t.job AND w.attempt = t.attempt AND w.rank = t.rank
LEFT JOIN step AS s ON s.job = t.job AND s.attempt = t.attempt AND s.rank = t.rank
