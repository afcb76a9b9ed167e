-- _collective_names: What tells communication kernels apart: one row per graph node of a process that communicates, and one
-- per eager kernel that does.
--
-- How to read it: names are looked at here, once per node and not once per replay, which is a tenth of the work. call is
-- the kind of collective in one spelling. Eager kernels, and those of a graph whose trace has no node ids, have node_index
-- NULL and bring their times along. family numbers what _collective_families describes: (group_name, group_ranks, call,
-- region, phase, in_graph, uneven) within the job attempt; one number instead of the text columns in every join.
WITH occurring AS (
    SELECT
        job, attempt, process_id, rank, graph_id, node_index, in_graph,
        any_value(name) AS name, any_value(region) AS region, any_value(collective) AS collective,
        any_value(phase) AS own_phase,
        any_value(group_name) AS group_name, any_value(group_ranks) AS group_ranks, any_value(group_size) AS group_size,
        any_value(in_split) AS in_split, any_value(out_split) AS out_split, NULL AS sequence,
        any_value(default_group) AS default_group, any_value(default_group_size) AS default_group_size,
        NULL AS trace_id, NULL AS step, NULL AS correlation_id, NULL AS start_ns, NULL AS duration_ns
    FROM _events
    WHERE communication AND replay_id IS NOT NULL AND node_index IS NOT NULL
    GROUP BY job, attempt, process_id, rank, graph_id, node_index, in_graph
    UNION ALL
    SELECT
        job, attempt, process_id, rank, graph_id, node_index, in_graph,
        name, region, collective, phase, group_name, group_ranks, group_size, in_split, out_split, sequence,
        default_group, default_group_size,
        trace_id, step, correlation_id, start_ns, duration_ns
    FROM _events
    WHERE communication AND (replay_id IS NULL OR node_index IS NULL)
),
named AS (
    SELECT
        o.*,
        coalesce(a.collective, o.collective) AS said,
        coalesce(a.region, o.region) AS in_region,
        CASE WHEN a.region IS NOT NULL THEN a.phase WHEN o.region IS NOT NULL THEN o.own_phase END AS phase,
        coalesce(a.group_name, o.group_name, o.default_group) AS in_group,
        coalesce(a.group_ranks, o.group_ranks) AS ranks_of_group,
        coalesce(a.group_size, o.group_size,
            CASE WHEN a.group_name IS NULL AND o.group_name IS NULL THEN o.default_group_size END) AS size_of_group,
        coalesce(a.in_split, o.in_split, '[]') AS input,
        coalesce(a.out_split, o.out_split, '[]') AS output
    FROM occurring AS o
    LEFT JOIN annotation AS a
        ON a.process_id = o.process_id AND a.graph_id = o.graph_id AND a.node_index = o.node_index
),
spelled AS (
    SELECT
        job,
        attempt,
        process_id,
        rank,
        graph_id,
        node_index,
        in_graph,
        CASE
            WHEN said IN ('allreduce', 'all_reduce', 'allreduce_coalesced') THEN 'all_reduce'
            WHEN said LIKE '%reduce_scatter%' THEN 'reduce_scatter'
            WHEN said LIKE '%allgather%' OR said LIKE '%all_gather%' THEN 'all_gather'
            WHEN said LIKE '%all_to_all%' OR said LIKE '%alltoall%' THEN 'all_to_all'
            WHEN said LIKE '%broadcast%' THEN 'broadcast'
            WHEN said IS NOT NULL THEN said
            WHEN name LIKE '%AllReduce%' OR name LIKE '%all_reduce%' THEN 'all_reduce'
            WHEN name LIKE '%ReduceScatter%' OR name LIKE '%reduce_scatter%' THEN 'reduce_scatter'
            WHEN name LIKE '%AllGather%' OR name LIKE '%all_gather%' THEN 'all_gather'
            WHEN name LIKE '%Broadcast%' THEN 'broadcast'
            WHEN name LIKE '%SendRecv%' THEN 'send_recv'
            WHEN name LIKE '%Reduce%' THEN 'reduce'
            ELSE 'other'
        END AS call,
        in_region AS region,
        phase,
        in_group AS group_name,
        ranks_of_group AS group_ranks,
        size_of_group AS group_size,
        input <> '[]' OR output <> '[]' AS uneven,
        sequence,
        trace_id,
        step,
        correlation_id,
        start_ns,
        duration_ns
    FROM named
),
families AS (
    SELECT
        job, attempt, group_name, group_ranks, call, region, phase, in_graph, uneven,
        CAST(row_number() OVER (
            PARTITION BY job, attempt
            ORDER BY group_name ASC NULLS LAST, group_ranks ASC NULLS LAST, call ASC NULLS LAST, region ASC NULLS LAST,
                phase ASC NULLS LAST, in_graph ASC NULLS LAST, uneven ASC NULLS LAST
        ) AS INTEGER) AS family
    FROM spelled
    GROUP BY job, attempt, group_name, group_ranks, call, region, phase, in_graph, uneven
)
SELECT s.*, f.family
FROM spelled AS s
JOIN families AS f
    ON f.job = s.job AND f.attempt = s.attempt AND f.call = s.call AND f.in_graph = s.in_graph AND f.uneven = s.uneven
    AND f.group_name IS NOT DISTINCT FROM s.group_name AND f.group_ranks IS NOT DISTINCT FROM s.group_ranks
    AND f.region IS NOT DISTINCT FROM s.region AND f.phase IS NOT DISTINCT FROM s.phase
