-- _collective_families: One row per family of collectives in a job attempt: calls that differ only in when they happen.
--
-- How to read it: a family is one (group_name, group_ranks, call, region, phase, in graphs or not, uneven or not), numbered
-- within the job attempt. One number instead of the text columns in every join. What follows is about the group: ranks, how
-- many ever take part in its calls; first_rank, the lowest of them; rank_sum and square_sum, over their numbers; one_host;
-- clock_error_ns between any two of them, NULL when not known; fitted_clock, that it comes from the ends of collectives.
WITH seen AS (
    SELECT job, attempt, group_name, group_ranks, call, region, phase, in_graph, uneven, rank, max(group_size) AS group_size
    FROM _collective_names
    GROUP BY job, attempt, group_name, group_ranks, call, region, phase, in_graph, uneven, rank
),
clocks AS (
    SELECT job, attempt, rank, min(host) AS host, min(clock_method) AS clock_method, max(clock_error_ns) AS clock_error_ns
    FROM _traces
    GROUP BY job, attempt, rank
),
members AS (
    SELECT
        m.job, m.attempt, m.group_name, m.group_ranks,
        count(*) AS ranks,
        min(m.rank) AS first_rank,
        sum(m.rank) AS rank_sum,
        sum(m.rank * m.rank) AS square_sum,
        coalesce(min(c.host) = max(c.host) AND count(c.host) = count(*), FALSE) AS one_host,
        count(*) FILTER (WHERE c.clock_method = 'collectives') > 0 AS fitted_clock,
        CASE WHEN count(c.clock_error_ns) = count(*) THEN max(c.clock_error_ns) END AS clock_error_ns
    FROM (SELECT DISTINCT job, attempt, group_name, group_ranks, rank FROM seen) AS m
    JOIN clocks AS c ON c.job = m.job AND c.attempt = m.attempt AND c.rank = m.rank
    GROUP BY m.job, m.attempt, m.group_name, m.group_ranks
),
families AS (
    SELECT job, attempt, group_name, group_ranks, call, region, phase, in_graph, uneven, max(group_size) AS group_size
    FROM seen
    GROUP BY job, attempt, group_name, group_ranks, call, region, phase, in_graph, uneven
)
SELECT
    f.job,
    f.attempt,
    row_number() OVER (
        PARTITION BY f.job, f.attempt
        ORDER BY f.group_name ASC NULLS LAST, f.group_ranks ASC NULLS LAST, f.call ASC NULLS LAST, f.region ASC NULLS LAST,
            f.phase ASC NULLS LAST, f.in_graph ASC NULLS LAST, f.uneven ASC NULLS LAST
    ) AS family,
    f.call,
    f.region,
    f.phase,
    f.group_name,
    f.group_ranks,
    f.in_graph,
    f.uneven,
    f.group_size,
    f.call IN ('all_reduce', 'all_gather', 'reduce_scatter', 'barrier') OR (f.call = 'all_to_all' AND NOT f.uneven)
        AS synchronizing,
    CAST(m.ranks AS BIGINT) AS ranks,
    m.first_rank,
    CAST(m.rank_sum AS BIGINT) AS rank_sum,
    CAST(m.square_sum AS BIGINT) AS square_sum,
    m.one_host,
    m.fitted_clock AND NOT m.one_host AS fitted_clock,
    -- Ranks of one host share a clock to a microsecond (align.py), whatever the error against other hosts is.
    CASE WHEN m.one_host THEN least(coalesce(m.clock_error_ns, 1000), 1000) ELSE m.clock_error_ns END AS clock_error_ns
FROM families AS f
JOIN members AS m
    ON m.job = f.job AND m.attempt = f.attempt
    AND m.group_name IS NOT DISTINCT FROM f.group_name AND m.group_ranks IS NOT DISTINCT FROM f.group_ranks
