-- _events: GPU events that count (of traces that are not rejected) with their job and host, on the job's common clock.
--
-- How to read it: the one place where times are aligned. No annotations yet: _gpu_work joins them, and questions that need
-- none are spared that join.
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
    e.region,
    e.region_path,
    e.region_instance,
    coalesce(e.phase, 'forward') AS phase,
    e.communication,
    e.collective,
    e.group_name,
    e.group_ranks,
    e.group_size,
    e.in_split,
    e.out_split,
    e.sequence,
    t.step_source,
    t.default_group,
    t.default_group_size,
    t.host,
    t.clock_error_ns
FROM gpu_event AS e
JOIN _traces AS t ON t.trace_id = e.trace_id
