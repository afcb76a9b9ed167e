-- graphs: One row per executable graph of a rank: how many nodes, how many named, how often replayed.
--
-- How to read it: ranks that run the same program have the same fingerprint; a rank with another one executes different
-- kernels, which is a finding of its own. Ids say nothing across ranks.
--
-- | column | type | unit | NULL | meaning |
-- |---|---|---|---|---|
-- | job | VARCHAR | - | never | the job's name |
-- | attempt | BIGINT | - | never | restart count of the job |
-- | rank | BIGINT | - | never | global rank |
-- | graph_id | BIGINT | - | never | executable graph, unique within the process |
-- | fingerprint | VARCHAR | - | no node is known | hash over kind and kernel name of the nodes in node order |
-- | nodes | BIGINT | - | never | known nodes: all when the graph was reported with its nodes, else those seen in replays |
-- | annotated_nodes | BIGINT | - | never | nodes with a region |
-- | replays | BIGINT | - | never | replays in the ingested traces |
-- | reported | BOOLEAN | - | never | false: only traces show it, its work counts as orphan |
WITH node AS (
    SELECT process_id, graph_id, count(*) AS nodes
    FROM graph_node
    GROUP BY process_id, graph_id
),
named AS (
    SELECT process_id, graph_id, count(*) AS nodes
    FROM annotation
    WHERE region IS NOT NULL
    GROUP BY process_id, graph_id
),
replay AS (
    SELECT process_id, graph_id, count(*) AS replays
    FROM (
        SELECT DISTINCT e.process_id, e.trace_id, e.graph_id, e.correlation_id
        FROM gpu_event AS e
        JOIN _traces AS t ON t.trace_id = e.trace_id
        WHERE e.in_graph AND e.graph_id IS NOT NULL
    ) AS distinct_replay
    GROUP BY process_id, graph_id
)
SELECT
    p.job,
    p.attempt,
    p.rank,
    g.graph_id,
    g.fingerprint,
    coalesce(n.nodes, 0) AS nodes,
    coalesce(a.nodes, 0) AS annotated_nodes,
    coalesce(r.replays, 0) AS replays,
    g.reported
FROM graph AS g
JOIN process AS p ON p.process_id = g.process_id
LEFT JOIN node AS n ON n.process_id = g.process_id AND n.graph_id = g.graph_id
LEFT JOIN named AS a ON a.process_id = g.process_id AND a.graph_id = g.graph_id
LEFT JOIN replay AS r ON r.process_id = g.process_id AND r.graph_id = g.graph_id
