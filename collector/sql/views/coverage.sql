-- coverage: The join receipt: one row per trace, saying how much of its graph work has a name and why the rest has none.
--
-- How to read it: matched + unannotated + orphan = graph_events. Unannotated work belongs to a graph that was reported but
-- lies in none of its regions. Orphan work belongs to a graph that nobody reported: no annotation file, or one of
-- another process. A rejected trace has a row with zero events and the reason in note; so has a trace that is just
-- arriving at a collector: it counts nowhere until its last batch is in.
--
-- | column | type | unit | NULL | meaning |
-- |---|---|---|---|---|
-- | job | VARCHAR | - | never | the job's name |
-- | rank | BIGINT | - | never | global rank |
-- | trace_id | BIGINT | - | never | the profiler trace |
-- | gpu_events | BIGINT | - | never | kernels, memcpys and memsets in the store |
-- | graph_events | BIGINT | - | never | of those, work of graph replays |
-- | matched | BIGINT | - | never | graph work that lies in a region |
-- | unannotated | BIGINT | - | never | graph work of a reported graph that lies in no region |
-- | orphan | BIGINT | - | never | graph work whose graph was never reported |
-- | annotated_nodes | BIGINT | - | never | graph nodes of the process that have a region, replayed or not |
-- | encoding | VARCHAR | - | never | how the trace writes node ids: packed, split, absent, none (no graph work); "inferred" where absent ids were found by capture order and kernel name |
-- | status | VARCHAR | - | never | complete, partial (something was left out, see note), rejected or arriving |
-- | clock_error_ns | BIGINT | ns | not known: times of this rank cannot be compared with other hosts | bound of the clock error against the job's clock |
-- | note | VARCHAR | - | nothing to say | what was left out or not believed |
WITH counted AS (
    SELECT
        e.trace_id, e.process_id, e.graph_id,
        count(*) AS gpu_events,
        count(*) FILTER (WHERE e.in_graph) AS graph_events,
        count(*) FILTER (WHERE e.in_graph AND a.region IS NOT NULL) AS matched
    FROM gpu_event AS e
    LEFT JOIN annotation AS a
        ON a.process_id = e.process_id AND a.graph_id = e.graph_id AND a.node_index = e.node_index
    GROUP BY e.trace_id, e.process_id, e.graph_id
),
joined AS (
    SELECT
        c.trace_id,
        CAST(sum(c.gpu_events) AS BIGINT) AS gpu_events,
        CAST(sum(c.graph_events) AS BIGINT) AS graph_events,
        CAST(sum(c.matched) AS BIGINT) AS matched,
        CAST(sum(CASE WHEN g.reported THEN c.graph_events - c.matched ELSE 0 END) AS BIGINT) AS unannotated
    FROM counted AS c
    LEFT JOIN graph AS g ON g.process_id = c.process_id AND g.graph_id = c.graph_id
    GROUP BY c.trace_id
),
annotated AS (
    SELECT process_id, count(*) AS nodes
    FROM annotation
    WHERE region IS NOT NULL
    GROUP BY process_id
)
SELECT
    t.job,
    t.rank,
    t.trace_id,
    coalesce(j.gpu_events, 0) AS gpu_events,
    coalesce(j.graph_events, 0) AS graph_events,
    coalesce(j.matched, 0) AS matched,
    coalesce(j.unannotated, 0) AS unannotated,
    coalesce(j.graph_events - j.matched - j.unannotated, 0) AS orphan,
    coalesce(n.nodes, 0) AS annotated_nodes,
    CASE WHEN t.inferred THEN 'inferred' ELSE t.encoding END AS encoding,
    t.status,
    c.error_ns AS clock_error_ns,
    nullif(concat_ws(' ', t.note,
        CASE WHEN n.nodes > 0 AND j.graph_events > 0 AND j.matched = 0
             THEN 'No annotated node occurs in this trace: the annotations belong to another process, '
                 || 'or to graphs that were not replayed in it.' END), '') AS note
FROM trace AS t
JOIN process AS p ON p.process_id = t.process_id
LEFT JOIN joined AS j ON j.trace_id = t.trace_id AND t.status NOT IN ('rejected', 'arriving')
LEFT JOIN annotated AS n ON n.process_id = t.process_id
LEFT JOIN clock AS c ON c.job = t.job AND c.attempt = t.attempt AND c.host = coalesce(p.host, '')
