-- _gpu_work: GPU events joined with their trace, clock and annotation; what kernels and the other views are cut from.
--
-- How to read it: the one place where the join is written. An event of a graph finds its annotation
-- by (process, graph, node_index); an eager event carries the region of its launch.
SELECT
    t.job,
    t.attempt,
    e.rank,
    e.process_id,
    e.trace_id,
    e.step + t.step_offset AS step,
    CASE WHEN e.in_graph THEN e.correlation_id END AS replay_id,
    e.start_ns + t.offset_ns + CAST((e.start_ns - t.reference_ns) * (t.drift_ppb / 1000000000.0) AS BIGINT) AS start_ns,
    CASE WHEN NOT e.overrun THEN e.duration_ns END AS duration_ns,
    e.name,
    e.kind,
    e.device,
    e.stream,
    e.correlation_id,
    e.in_graph,
    e.graph_id,
    e.node_index,
    coalesce(a.region, e.region) AS region,
    coalesce(a.region_path, e.region_path) AS region_path,
    e.region_instance,
    CASE WHEN a.region IS NOT NULL THEN a.phase WHEN e.region IS NOT NULL THEN coalesce(e.phase, 'forward') END AS phase,
    a.attributes,
    e.communication,
    coalesce(a.collective, e.collective) AS collective,
    coalesce(a.group_name, e.group_name, t.default_group) AS group_name,
    coalesce(a.group_ranks, e.group_ranks) AS group_ranks,
    coalesce(a.group_size, e.group_size,
        CASE WHEN a.group_name IS NULL AND e.group_name IS NULL THEN t.default_group_size END) AS group_size,
    t.step_source,
    coalesce(a.in_split, e.in_split) AS in_split,
    coalesce(a.out_split, e.out_split) AS out_split,
    coalesce(a.sequence, e.sequence) AS sequence,
    t.host,
    t.clock_error_ns
FROM gpu_event AS e
JOIN _traces AS t ON t.trace_id = e.trace_id
LEFT JOIN annotation AS a
    ON a.process_id = e.process_id AND a.graph_id = e.graph_id AND a.node_index = e.node_index
