-- _collective_calls: One row per communication kernel of a rank, with what tells which calls of other ranks belong to it.
--
-- How to read it: calls with the same (job, attempt, group_name, group_ranks, name, region, phase, step, in_graph,
-- ordinal) are one collective. The ordinal counts the rank's calls of that kind in the step, in node order inside a
-- graph and in time order outside; a sequence number of the group replaces it where the trace has one. Ordinals mean
-- the same call on two ranks only when both made as many calls (calls_in_step). A call whose group is unknown cannot be
-- paired at all. order_known: the trace itself numbers the call or its step; a replay's ordinal depends on the window.
WITH named AS (
    SELECT
        w.*,
        CASE
            WHEN w.collective IN ('allreduce', 'all_reduce', 'allreduce_coalesced') THEN 'all_reduce'
            WHEN w.collective LIKE '%reduce_scatter%' THEN 'reduce_scatter'
            WHEN w.collective LIKE '%allgather%' OR w.collective LIKE '%all_gather%' THEN 'all_gather'
            WHEN w.collective LIKE '%all_to_all%' OR w.collective LIKE '%alltoall%' THEN 'all_to_all'
            WHEN w.collective LIKE '%broadcast%' THEN 'broadcast'
            WHEN w.collective IS NOT NULL THEN w.collective
            WHEN w.name LIKE '%AllReduce%' OR w.name LIKE '%all_reduce%' THEN 'all_reduce'
            WHEN w.name LIKE '%ReduceScatter%' OR w.name LIKE '%reduce_scatter%' THEN 'reduce_scatter'
            WHEN w.name LIKE '%AllGather%' OR w.name LIKE '%all_gather%' THEN 'all_gather'
            WHEN w.name LIKE '%Broadcast%' THEN 'broadcast'
            WHEN w.name LIKE '%SendRecv%' THEN 'send_recv'
            WHEN w.name LIKE '%Reduce%' THEN 'reduce'
            ELSE 'other'
        END AS call
    FROM _gpu_work AS w
    WHERE w.communication
)
SELECT
    job,
    attempt,
    rank,
    trace_id,
    step,
    replay_id,
    region,
    phase,
    call AS name,
    group_name,
    group_ranks,
    in_graph,
    call IN ('all_reduce', 'all_gather', 'reduce_scatter', 'barrier')
        OR (call = 'all_to_all' AND coalesce(in_split, '[]') = '[]' AND coalesce(out_split, '[]') = '[]') AS synchronizing,
    group_size,
    group_name IS NOT NULL AS group_known,
    sequence IS NOT NULL OR (step_source = 'profiler' AND step IS NOT NULL) AS order_known,
    CASE WHEN sequence IS NULL THEN count(*) OVER (
        PARTITION BY job, attempt, rank, group_name, group_ranks, call, region, phase, step, in_graph
    ) END AS calls_in_step,
    coalesce(sequence, row_number() OVER (
        PARTITION BY job, attempt, rank, group_name, group_ranks, call, region, phase, step, in_graph
        ORDER BY replay_id ASC NULLS LAST, node_index ASC NULLS LAST, start_ns ASC NULLS LAST
    ) - 1) AS ordinal,
    start_ns,
    duration_ns,
    host,
    clock_error_ns
FROM named
