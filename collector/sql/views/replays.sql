-- replays: One row per replay of a CUDA graph on one rank.
--
-- How to read it: start_ns - launch_ns is the time between the host's launch call and the first kernel; long gaps with a
-- busy GPU are queueing, with an idle GPU they are launch latency. Incomplete replays stand at the edges of a profiler
-- window and should not be compared with complete ones.
--
-- | column | type | unit | NULL | meaning |
-- |---|---|---|---|---|
-- | job | VARCHAR | - | never | the job's name |
-- | attempt | BIGINT | - | never | restart count of the job |
-- | rank | BIGINT | - | never | global rank |
-- | trace_id | BIGINT | - | never | the profiler trace |
-- | step | BIGINT | - | launched outside of every step | step in which it was launched |
-- | replay_id | BIGINT | - | never | correlation id of the launch |
-- | graph_id | BIGINT | - | the trace carries no ids and none could be inferred | executable graph |
-- | fingerprint | VARCHAR | - | no node of the graph is known | hash of the nodes, equal on ranks that run the same graph |
-- | launch_ns | BIGINT | ns since the epoch | the launch is not in the trace | start of the launch call on the host |
-- | start_ns | BIGINT | ns since the epoch | never | start of the first kernel |
-- | end_ns | BIGINT | ns since the epoch | no kernel has a believable duration | end of the last kernel |
-- | busy_ns | BIGINT | ns | never | sum of kernel durations |
-- | kernels | BIGINT | - | never | kernels, memcpys and memsets that ran |
-- | complete | BOOLEAN | - | never | as many as in the fullest replay of this graph in the same trace |
WITH replay AS (
    SELECT
        job, attempt, rank, process_id, trace_id, step, replay_id,
        min(graph_id) AS graph_id,
        min(start_ns) AS start_ns,
        max(start_ns + duration_ns) AS end_ns,
        CAST(coalesce(sum(duration_ns), 0) AS BIGINT) AS busy_ns,
        count(*) AS kernels
    FROM _gpu_work
    WHERE replay_id IS NOT NULL
    GROUP BY job, attempt, rank, process_id, trace_id, step, replay_id
),
fullest AS (
    SELECT trace_id, graph_id, max(kernels) AS kernels
    FROM replay
    GROUP BY trace_id, graph_id
),
launch AS (
    SELECT
        h.trace_id,
        h.correlation_id,
        min(h.start_ns + t.offset_ns + CAST((h.start_ns - t.reference_ns) * (t.drift_ppb / 1000000000.0) AS BIGINT))
            AS launch_ns
    FROM host_span AS h
    JOIN _traces AS t ON t.trace_id = h.trace_id
    WHERE h.kind = 'graph_launch'
    GROUP BY h.trace_id, h.correlation_id
)
SELECT
    r.job,
    r.attempt,
    r.rank,
    r.trace_id,
    r.step,
    r.replay_id,
    r.graph_id,
    g.fingerprint,
    l.launch_ns,
    r.start_ns,
    r.end_ns,
    r.busy_ns,
    r.kernels,
    r.kernels >= f.kernels AS complete
FROM replay AS r
JOIN fullest AS f ON f.trace_id = r.trace_id AND f.graph_id IS NOT DISTINCT FROM r.graph_id
LEFT JOIN graph AS g ON g.process_id = r.process_id AND g.graph_id = r.graph_id
LEFT JOIN launch AS l ON l.trace_id = r.trace_id AND l.correlation_id = r.replay_id
