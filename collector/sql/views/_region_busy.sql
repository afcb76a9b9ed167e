-- _region_busy: One row per region instance without the covered time, which needs a sort that most questions do not.
--
-- How to read it: compute_ns leaves communication kernels out, because they contain the wait for other ranks.
SELECT
    job,
    attempt,
    rank,
    trace_id,
    step,
    replay_id,
    region,
    phase,
    min(start_ns) AS start_ns,
    max(start_ns + duration_ns) AS end_ns,
    CAST(coalesce(sum(duration_ns), 0) AS BIGINT) AS busy_ns,
    CAST(coalesce(sum(duration_ns) FILTER (WHERE NOT communication), 0) AS BIGINT) AS compute_ns,
    count(*) AS kernels,
    count(*) FILTER (WHERE NOT communication) AS compute_kernels
FROM _gpu_work
WHERE region IS NOT NULL
GROUP BY job, attempt, rank, trace_id, step, replay_id, region, region_instance, phase
