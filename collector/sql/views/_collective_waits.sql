-- _collective_waits: One row per rank of a collective with wait and transfer by both formulas.
--
-- How to read it: by clock: A = last arrival, wait = A - arrive, transfer = max(0, end - A). By duration, without any clock:
-- transfer = shortest duration of the ranks, wait = duration - transfer. method says which one the public columns use:
-- clock where the clock error is known and below the skew of the arrivals, else duration. Judged are only collectives of
-- kinds that synchronize, of a known group with every rank of it (its size as the trace says; where it says none, every
-- rank that ever takes part), equal numbers of calls in the step, and no rank that ended before the last one arrived
-- (disjoint: that proves that the calls do not belong together; without a common clock only calls whose step or order
-- the trace itself numbers are believed).
WITH members AS (
    SELECT job, attempt, group_name, group_ranks, count(DISTINCT rank) AS ranks, min(rank) AS first_rank
    FROM _collective_calls
    GROUP BY job, attempt, group_name, group_ranks
),
groups AS (
    SELECT
        c.job, c.attempt, c.group_name, c.group_ranks, c.name, c.region, c.phase, c.step, c.in_graph, c.ordinal,
        count(DISTINCT c.rank) AS ranks,
        count(*) AS calls,
        min(c.start_ns) AS first_arrive_ns,
        max(c.start_ns) AS last_arrive_ns,
        min(c.start_ns + c.duration_ns) AS first_end_ns,
        min(c.duration_ns) AS shortest_ns,
        count(c.duration_ns) AS durations,
        max(c.group_size) AS group_size,
        count(*) FILTER (WHERE NOT c.group_known) AS unknown_groups,
        count(DISTINCT c.calls_in_step) AS different_counts,
        count(*) FILTER (WHERE NOT c.order_known) AS unknown_orders,
        -- Ranks of one host share a clock, whatever the error against other hosts is.
        CASE WHEN count(DISTINCT c.host) = 1 AND count(c.host) = count(*) THEN min(c.clock_error_ns)
             WHEN count(c.clock_error_ns) = count(*) THEN max(c.clock_error_ns) END AS clock_error_ns
    FROM _collective_calls AS c
    GROUP BY c.job, c.attempt, c.group_name, c.group_ranks, c.name, c.region, c.phase, c.step, c.in_graph, c.ordinal
),
whole AS (
    SELECT
        g.*,
        coalesce(g.group_size, m.ranks) AS expected,
        m.first_rank,
        g.ranks = coalesce(g.group_size, m.ranks) AND g.calls = g.ranks AND g.ranks > 1 AND g.durations = g.calls
            AND g.unknown_groups = 0 AND g.different_counts <= 1 AS all_there,
        g.first_end_ns < g.last_arrive_ns - g.clock_error_ns AS apart
    FROM groups AS g
    JOIN members AS m
        ON m.job = g.job AND m.attempt = g.attempt
        AND m.group_name IS NOT DISTINCT FROM g.group_name AND m.group_ranks IS NOT DISTINCT FROM g.group_ranks
),
judged AS (
    SELECT
        g.*,
        g.all_there AND coalesce(NOT g.apart, g.unknown_orders = 0) AS complete,
        CASE WHEN g.clock_error_ns < g.last_arrive_ns - g.first_arrive_ns THEN 'clock' ELSE 'duration' END AS method
    FROM whole AS g
)
SELECT
    c.job,
    c.attempt,
    concat_ws('/', CAST(c.attempt AS VARCHAR),
        concat(coalesce(c.group_name, '?'), '@', CAST(j.first_rank AS VARCHAR),
            CASE WHEN c.group_ranks IS NOT NULL THEN concat('-', substr(md5(c.group_ranks), 1, 4)) ELSE '' END), c.name, coalesce(c.region, '-'),
        coalesce(c.phase, '-'), CASE WHEN c.in_graph THEN 'graph' ELSE 'eager' END,
        coalesce(CAST(c.step AS VARCHAR), '-'), CAST(c.ordinal AS VARCHAR)) AS collective_id,
    c.rank,
    c.step,
    c.region,
    c.phase,
    c.name,
    c.group_name,
    c.group_ranks,
    j.first_rank AS group_first_rank,
    c.synchronizing AND j.all_there AND coalesce(j.apart, FALSE) AS disjoint,
    c.synchronizing,
    j.complete,
    j.ranks,
    j.expected,
    CASE WHEN c.synchronizing AND j.complete THEN j.method END AS method,
    j.clock_error_ns,
    c.start_ns AS arrive_ns,
    c.start_ns + c.duration_ns AS end_ns,
    c.duration_ns,
    j.last_arrive_ns - c.start_ns AS wait_clock_ns,
    greatest(c.start_ns + c.duration_ns - j.last_arrive_ns, 0) AS transfer_clock_ns,
    c.duration_ns - j.shortest_ns AS wait_duration_ns,
    j.shortest_ns AS transfer_duration_ns,
    first_value(c.rank) OVER (
        PARTITION BY c.job, c.attempt, c.group_name, c.group_ranks, c.name, c.region, c.phase, c.step, c.in_graph, c.ordinal
        ORDER BY CASE WHEN j.method = 'clock' THEN -c.start_ns ELSE c.duration_ns END ASC NULLS LAST, c.rank ASC NULLS LAST
    ) AS last_rank
FROM _collective_calls AS c
JOIN judged AS j
    ON j.job = c.job AND j.attempt = c.attempt AND j.name = c.name AND j.in_graph = c.in_graph AND j.ordinal = c.ordinal
    AND j.group_name IS NOT DISTINCT FROM c.group_name AND j.group_ranks IS NOT DISTINCT FROM c.group_ranks
    AND j.region IS NOT DISTINCT FROM c.region AND j.phase IS NOT DISTINCT FROM c.phase
    AND j.step IS NOT DISTINCT FROM c.step
