-- region_instances: One row per pass through a region on one rank: one replay of a graph, or one pass of eager work.
--
-- How to read it: busy_ns counts parallel kernels twice, union_ns does not; busy_ns above union_ns means streams overlap,
-- end_ns - start_ns above union_ns means the GPU did something else, or nothing, in between.
--
-- | column | type | unit | NULL | meaning |
-- |---|---|---|---|---|
-- | job | VARCHAR | - | never | the job's name |
-- | attempt | BIGINT | - | never | restart count of the job |
-- | rank | BIGINT | - | never | global rank |
-- | step | BIGINT | - | launched outside of every step | step in which it was launched |
-- | replay_id | BIGINT | - | eager work | replay of the graph, unique within the trace |
-- | region | VARCHAR | - | never | name of the region |
-- | phase | VARCHAR | - | never | forward or backward |
-- | start_ns | BIGINT | ns since the epoch | never | start of its first kernel, on the job's common clock |
-- | end_ns | BIGINT | ns since the epoch | no kernel has a believable duration | end of its last kernel |
-- | busy_ns | BIGINT | ns | never | sum of the durations of its kernels; impossible durations count as 0 |
-- | union_ns | BIGINT | ns | never | time during which at least one of its kernels ran |
-- | kernels | BIGINT | - | never | kernels, memcpys and memsets in it |
WITH reached AS (
    SELECT
        job, attempt, rank, trace_id, step, replay_id, region, region_instance, phase, start_ns, duration_ns,
        start_ns + duration_ns AS end_ns,
        max(start_ns + duration_ns) OVER (
            PARTITION BY job, attempt, rank, trace_id, step, replay_id, region, region_instance, phase
            ORDER BY start_ns ASC NULLS LAST, node_index ASC NULLS LAST
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before_ns
    FROM _gpu_work
    WHERE region IS NOT NULL
)
SELECT
    job,
    attempt,
    rank,
    step,
    replay_id,
    region,
    phase,
    min(start_ns) AS start_ns,
    max(end_ns) AS end_ns,
    CAST(coalesce(sum(duration_ns), 0) AS BIGINT) AS busy_ns,
    CAST(coalesce(sum(greatest(end_ns - greatest(start_ns, coalesce(before_ns, start_ns)), 0)), 0) AS BIGINT) AS union_ns,
    count(*) AS kernels
FROM reached
GROUP BY job, attempt, rank, trace_id, step, replay_id, region, region_instance, phase
