-- jobs: One row per job attempt: who reported, for which time.
--
-- How to read it: ranks_seen below ranks_expected means that every cross-rank answer misses somebody. A rank that is
-- registered but not seen has an agent and no profiler window yet.
--
-- | column | type | unit | NULL | meaning |
-- |---|---|---|---|---|
-- | job | VARCHAR | - | never | the job's name |
-- | attempt | BIGINT | - | never | restart count of the job, 0 for the first run |
-- | ranks_seen | BIGINT | - | never | ranks with a usable trace |
-- | ranks_expected | BIGINT | - | no trace or agent gave the world size | world size |
-- | ranks_registered | BIGINT | - | never | ranks that an agent reported, with a trace or without |
-- | hosts | BIGINT | - | never | different host names |
-- | traces | BIGINT | - | never | usable traces |
-- | steps | BIGINT | - | never | different steps on any rank (see the view steps) |
-- | gpu_events | BIGINT | - | never | kernels, memcpys and memsets |
-- | graph_events | BIGINT | - | never | of those, work of graph replays |
-- | window_start_ns | BIGINT | ns since the epoch | no usable trace | start of the earliest profiler window, on the host's own clock |
-- | window_end_ns | BIGINT | ns since the epoch | no usable trace | end of the latest profiler window, on the host's own clock |
-- | clock_error_ns | BIGINT | ns | some host's clock is not aligned | worst clock error of its hosts |
WITH seen AS (
    SELECT
        job, attempt,
        count(DISTINCT rank) AS ranks_seen,
        count(*) AS traces,
        CAST(sum(gpu_events) AS BIGINT) AS gpu_events,
        CAST(sum(graph_events) AS BIGINT) AS graph_events,
        min(window_start_ns) AS window_start_ns,
        max(window_end_ns) AS window_end_ns
    FROM trace
    WHERE status NOT IN ('rejected', 'arriving')
    GROUP BY job, attempt
),
expected AS (
    SELECT
        job, attempt,
        max(world_size) AS ranks_expected,
        count(DISTINCT rank) FILTER (WHERE process_key IS NOT NULL) AS ranks_registered,
        count(DISTINCT host) AS hosts
    FROM process
    GROUP BY job, attempt
),
clocks AS (
    SELECT job, attempt, CASE WHEN count(error_ns) = count(*) THEN max(error_ns) END AS clock_error_ns
    FROM clock
    GROUP BY job, attempt
),
step AS (
    SELECT job, attempt, count(DISTINCT step) AS steps
    FROM steps
    GROUP BY job, attempt
)
SELECT
    e.job,
    e.attempt,
    coalesce(s.ranks_seen, 0) AS ranks_seen,
    e.ranks_expected,
    e.ranks_registered,
    e.hosts,
    coalesce(s.traces, 0) AS traces,
    coalesce(n.steps, 0) AS steps,
    coalesce(s.gpu_events, 0) AS gpu_events,
    coalesce(s.graph_events, 0) AS graph_events,
    s.window_start_ns,
    s.window_end_ns,
    c.clock_error_ns
FROM expected AS e
LEFT JOIN seen AS s ON s.job = e.job AND s.attempt = e.attempt
LEFT JOIN clocks AS c ON c.job = e.job AND c.attempt = e.attempt
LEFT JOIN step AS n ON n.job = e.job AND n.attempt = e.attempt
