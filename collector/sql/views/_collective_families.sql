-- _collective_families: One row per family of collectives in a job attempt: calls that differ only in when they happen.
--
-- How to read it: a family is one (group_name, group_ranks, call, region, phase, in graphs or not, uneven or not), numbered
-- within the job attempt (_collective_names). What follows is about the group: ranks, how
-- many ever take part in its calls; first_rank, the lowest of them; rank_sum and square_sum, over their numbers; one_host;
-- clock_error_ns between any two of them, NULL when not known; fitted_clock, that it comes from the ends of collectives.
WITH seen AS (
    SELECT
        job, attempt, family, rank, max(group_size) AS group_size, min(group_name) AS group_name,
        min(group_ranks) AS group_ranks, min(call) AS call, min(region) AS region, min(phase) AS phase,
        bool_or(in_graph) AS in_graph, bool_or(uneven) AS uneven
    FROM _collective_names
    GROUP BY job, attempt, family, rank
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
    SELECT
        job, attempt, family, max(group_size) AS group_size, min(group_name) AS group_name,
        min(group_ranks) AS group_ranks, min(call) AS call, min(region) AS region, min(phase) AS phase,
        bool_or(in_graph) AS in_graph, bool_or(uneven) AS uneven
    FROM seen
    GROUP BY job, attempt, family
)
SELECT
    f.job,
    f.attempt,
    f.family,
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
