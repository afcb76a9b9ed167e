-- _gpu_work: GPU events joined with their trace, clock and annotation; what kernels and the other views are cut from.
--
-- How to read it: the one place where the join with annotations is written. An event of a graph finds its annotation
-- by (process, graph, node_index); an eager event carries the region of its launch.
SELECT
    e.job,
    e.attempt,
    e.rank,
    e.process_id,
    e.trace_id,
    e.step,
    e.replay_id,
    e.start_ns,
    e.duration_ns,
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
    CASE WHEN a.region IS NOT NULL THEN a.phase WHEN e.region IS NOT NULL THEN e.phase END AS phase,
    a.attributes,
    e.communication
FROM _events AS e
LEFT JOIN annotation AS a
    ON a.process_id = e.process_id AND a.graph_id = e.graph_id AND a.node_index = e.node_index
