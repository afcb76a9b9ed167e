-- _collective_calls: One row per communication kernel of a rank, with what tells which calls of other ranks belong to it.
--
-- How to read it: calls with the same (job, attempt, family, step, replay, ordinal) are one collective. Inside a graph,
-- replay counts the rank's replays in the step of any graph that makes the same numbers of calls, in the order of their
-- launch, and ordinal is the place of the node among the nodes of the family in graphs of different calls, so that a replay
-- cut by the window does not shift the calls it still has, and ranks may replay graphs of other nodes: a group's calls come in
-- the same order on all its ranks.
-- Graphs of one fingerprint count as one, since a graph that is instantiated again keeps its nodes. Outside, and where the
-- trace has no node ids, replay is NULL and ordinal is the sequence number of the group, or, without one, the number of the
-- call in the step in time order. (The sequence number of a graph node was taken at its capture and is the same in every
-- replay.) None of this needs a clock.
-- Ordinals mean the same call on two ranks only when both made as many calls (calls: those nodes, or
-- calls in the step, NULL with a sequence number; replays_in_step). whole is false in a replay that lacks calls which other
-- replays of its graph have. order_known: the trace itself numbers the call or its step; a replay's number depends on the
-- window.
-- Counts are 32 bits wide: _collective_waits keeps all rows at hand, millions in a large job.
-- own_ns: time from the end of the rank's previous collective in the trace to this start, 0 when that one had not ended
-- yet, NULL for the first.
WITH names AS (
    SELECT * FROM _collective_names
),
classes AS (
    SELECT
        process_id, graph_id,
        min(graph_id) OVER (PARTITION BY process_id, coalesce(fingerprint, CAST(graph_id AS VARCHAR))) AS class
    FROM graph
),
nodes AS (
    SELECT
        job, attempt, process_id, family, class, node_index,
        row_number() OVER (
            PARTITION BY job, attempt, process_id, family, class ORDER BY node_index ASC NULLS LAST
        ) - 1 AS place,
        count(*) OVER (PARTITION BY job, attempt, process_id, class) AS nodes_of_graph
    FROM (
        SELECT DISTINCT n.job, n.attempt, n.process_id, n.family, coalesce(c.class, n.graph_id) AS class, n.node_index
        FROM names AS n
        LEFT JOIN classes AS c ON c.process_id = n.process_id AND c.graph_id = n.graph_id
        WHERE n.node_index IS NOT NULL
    ) AS seen
),
replayed AS (
    SELECT e.job, e.attempt, e.process_id, e.rank, e.trace_id, e.step, e.replay_id, e.node_index, e.start_ns, e.duration_ns,
        coalesce(c.class, e.graph_id) AS class
    FROM _events AS e
    LEFT JOIN classes AS c ON c.process_id = e.process_id AND c.graph_id = e.graph_id
    WHERE e.communication AND e.replay_id IS NOT NULL AND e.node_index IS NOT NULL
),
calls_of_graph AS (
    SELECT job, attempt, process_id, family, class, count(*) AS calls
    FROM nodes
    GROUP BY job, attempt, process_id, family, class
),
kinds AS (
    SELECT
        job, attempt, process_id, class,
        min(class) OVER (PARTITION BY job, attempt, process_id, families, calls, weighted, squared) AS kind
    FROM (
        SELECT job, attempt, process_id, class, count(*) AS families, sum(calls) AS calls, sum(calls * family) AS weighted,
            sum(calls * family * family) AS squared
        FROM calls_of_graph
        GROUP BY job, attempt, process_id, class
    ) AS sums
),
of_kind AS (
    SELECT
        g.job, g.attempt, g.process_id, g.family, k.kind,
        CAST(sum(g.calls) OVER (PARTITION BY g.job, g.attempt, g.process_id, g.family) AS BIGINT) AS calls,
        CAST(sum(g.calls) OVER (
            PARTITION BY g.job, g.attempt, g.process_id, g.family ORDER BY g.class ASC NULLS LAST
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS BIGINT) - g.calls AS before
    FROM calls_of_graph AS g
    JOIN kinds AS k
        ON k.job = g.job AND k.attempt = g.attempt AND k.process_id = g.process_id AND k.class = g.class AND k.kind = g.class
),
graph_places AS (
    SELECT n.job, n.attempt, n.process_id, n.family, n.class, n.node_index, n.nodes_of_graph, n.place + o.before AS place, o.calls
    FROM nodes AS n
    JOIN kinds AS k ON k.job = n.job AND k.attempt = n.attempt AND k.process_id = n.process_id AND k.class = n.class
    JOIN of_kind AS o
        ON o.job = n.job AND o.attempt = n.attempt AND o.process_id = n.process_id AND o.family = n.family AND o.kind = k.kind
),
numbered AS (
    SELECT
        r.job, r.attempt, r.trace_id, r.step, r.replay_id, r.calls AS calls_seen,
        row_number() OVER (
            PARTITION BY r.job, r.attempt, r.process_id, r.step, k.kind
            ORDER BY r.trace_id ASC NULLS LAST, r.replay_id ASC NULLS LAST
        ) - 1 AS replay,
        count(*) OVER (PARTITION BY r.job, r.attempt, r.process_id, r.step, k.kind) AS replays_in_step
    FROM (
        SELECT job, attempt, process_id, trace_id, step, class, replay_id, count(*) AS calls
        FROM replayed
        GROUP BY job, attempt, process_id, trace_id, step, class, replay_id
    ) AS r
    JOIN kinds AS k ON k.job = r.job AND k.attempt = r.attempt AND k.process_id = r.process_id AND k.class = r.class
),
placed AS (
    SELECT
        c.job, c.attempt, c.rank, c.trace_id, c.step, n.family, r.replay, r.replays_in_step, n.calls,
        r.calls_seen >= n.nodes_of_graph AS whole, n.place AS ordinal, FALSE AS numbered, c.start_ns, c.duration_ns
    FROM replayed AS c
    JOIN graph_places AS n
        ON n.job = c.job AND n.attempt = c.attempt AND n.process_id = c.process_id AND n.class = c.class
        AND n.node_index = c.node_index
    JOIN numbered AS r
        ON r.job = c.job AND r.attempt = c.attempt AND r.trace_id = c.trace_id AND r.replay_id = c.replay_id
        AND r.step IS NOT DISTINCT FROM c.step
    UNION ALL
    SELECT
        job, attempt, rank, trace_id, step, family, NULL AS replay, NULL AS replays_in_step,
        CASE WHEN in_graph OR sequence IS NULL THEN count(*) OVER (PARTITION BY job, attempt, rank, family, step) END AS calls,
        TRUE AS whole,
        CASE WHEN NOT in_graph AND sequence IS NOT NULL THEN sequence
             ELSE row_number() OVER (
                 PARTITION BY job, attempt, rank, family, step
                 ORDER BY start_ns ASC NULLS LAST, correlation_id ASC NULLS LAST
             ) - 1 END AS ordinal,
        NOT in_graph AND sequence IS NOT NULL AS numbered, start_ns, duration_ns
    FROM names
    WHERE node_index IS NULL
),
timed AS (
    SELECT
        p.*,
        p.numbered OR (t.step_source = 'profiler' AND p.step IS NOT NULL) AS order_known,
        max(p.start_ns + p.duration_ns) OVER (
            PARTITION BY p.job, p.attempt, p.trace_id
            ORDER BY p.start_ns ASC NULLS LAST, p.duration_ns ASC NULLS LAST
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before_ns
    FROM placed AS p
    JOIN _traces AS t ON t.trace_id = p.trace_id
)
SELECT
    job,
    attempt,
    rank,
    trace_id,
    step,
    family,
    CAST(replay AS INTEGER) AS replay,
    ordinal,
    CAST(replays_in_step AS INTEGER) AS replays_in_step,
    CAST(calls AS INTEGER) AS calls,
    whole,
    order_known,
    start_ns,
    duration_ns,
    CASE WHEN before_ns IS NOT NULL THEN greatest(start_ns - before_ns, 0) END AS own_ns
FROM timed
