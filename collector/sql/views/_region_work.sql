-- _region_work: One row per (trace, step, region): compute time, and from when to when any of its work ran.
--
-- How to read it: what the straggler analysis rests on, in one pass over the events. code numbers region and phase
-- (_region_codes, _eager_codes), NULL is work in no region; grouping 55 million events by number takes a third of the time of grouping by
-- name. compute_ns leaves communication kernels out, because they contain the wait for other ranks; it is NULL where there
-- was nothing else. Several traces of a rank may hold parts of one step. Times are those of the host's own clock.
SELECT
    t.job,
    t.attempt,
    t.rank,
    w.step + t.step_offset AS step,
    w.code,
    w.compute_ns,
    w.start_ns,
    w.end_ns
FROM (
    -- Eager work, which brings its region along, apart: two columns of text in the key, though they hold nothing but NULL,
    -- cost half of the time that all the rest takes.
    SELECT
        e.trace_id,
        e.step,
        c.code,
        CAST(sum(e.duration_ns) FILTER (WHERE NOT e.communication AND NOT e.overrun) AS BIGINT) AS compute_ns,
        min(e.start_ns) AS start_ns,
        max(e.start_ns + e.duration_ns) FILTER (WHERE NOT e.overrun) AS end_ns
    FROM gpu_event AS e
    LEFT JOIN (
        SELECT a.process_id, a.graph_id, a.node_index, n.code
        FROM annotation AS a
        JOIN _region_codes AS n ON n.region = a.region AND n.phase = a.phase
    ) AS c ON c.process_id = e.process_id AND c.graph_id = e.graph_id AND c.node_index = e.node_index
    WHERE e.step IS NOT NULL AND e.region IS NULL
    GROUP BY e.trace_id, e.step, c.code
    UNION ALL
    SELECT
        r.trace_id,
        r.step,
        g.code,
        r.compute_ns,
        r.start_ns,
        r.end_ns
    FROM (
        SELECT
            trace_id, step, region, coalesce(phase, 'forward') AS phase,
            CAST(sum(duration_ns) FILTER (WHERE NOT communication AND NOT overrun) AS BIGINT) AS compute_ns,
            min(start_ns) AS start_ns,
            max(start_ns + duration_ns) FILTER (WHERE NOT overrun) AS end_ns
        FROM gpu_event
        WHERE step IS NOT NULL AND region IS NOT NULL
        GROUP BY trace_id, step, region, coalesce(phase, 'forward')
    ) AS r
    JOIN _eager_codes AS g ON g.region = r.region AND g.phase = r.phase
) AS w
JOIN _traces AS t ON t.trace_id = w.trace_id
