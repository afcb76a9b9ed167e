-- _collective_waits: One row per rank of a collective with wait and transfer by both formulas.
--
-- How to read it: by clock: A = last arrival, wait = A - arrive, transfer = max(0, end - A). By duration, without any clock:
-- transfer = shortest duration of the ranks, wait = duration - transfer. method says which one the public columns use:
-- clock where the clock error is known and below the skew of the arrivals, else duration. A clock that was fitted to the ends
-- of collectives is never used to judge collectives: there the method is duration. disagreement_ns = wait by clock - wait
-- by duration is the check: 0 when all ranks end together, and of the size of the clock error where the clock is fitted.
-- Judged are only collectives of kinds that synchronize, of a known group with every rank of it (its size as the trace
-- says; where it says none, every rank that ever takes part), equal numbers of calls, in replays that the window holds
-- whole, and no rank that ended before the last one arrived (disjoint: that proves that the calls do not belong together;
-- without a common clock only calls whose step or order the trace itself numbers are believed). not_judged says which of
-- these is missing, NULL when none is.
-- caused_ns stands at the last rank: how long the others waited for it, by duration, on average; NULL at the others.
-- own_ns is the rank's time since its previous collective ended, own_excess_ns the same less the median of the ranks of
-- this collective: the last rank of a collective without an own excess is a victim of an earlier one.
WITH calls AS (
    SELECT * FROM _collective_calls
),
instances AS (
    SELECT
        job, attempt, family, step, replay, ordinal,
        count(*) AS calls,
        -- Sums of the ranks' numbers and of their squares tell whether each rank is there once; count(DISTINCT rank) takes
        -- longer than all the other columns together.
        sum(rank) AS rank_sum,
        sum(rank * rank) AS square_sum,
        min(start_ns) AS first_arrive_ns,
        max(start_ns) AS last_arrive_ns,
        min(start_ns + duration_ns) AS first_end_ns,
        min(duration_ns) AS shortest_ns,
        sum(duration_ns) AS duration_sum_ns,
        count(duration_ns) AS durations,
        count(*) FILTER (WHERE NOT whole) AS cut,
        count(*) FILTER (WHERE NOT order_known) AS unordered,
        max(coalesce(calls, 0)) - min(coalesce(calls, 0)) + max(coalesce(replays_in_step, 0)) - min(coalesce(replays_in_step, 0))
            AS differing,
        -- One number for a time and a rank: of ranks that arrive at once the lowest is the last. A second pass over all calls
        -- to find it, or a window, takes longer than the rest of this view.
        max(CAST(start_ns AS DECIMAL(19, 0)) * 10000000000 - rank) AS last_arrival,
        min(CAST(duration_ns AS DECIMAL(19, 0)) * 10000000000 + rank) AS shortest_call,
        median(own_ns) AS own_median_ns
    FROM calls
    GROUP BY job, attempt, family, step, replay, ordinal
),
lacking AS (
    SELECT
        i.*,
        coalesce(f.group_size, f.ranks) AS expected,
        CASE
            WHEN f.group_name IS NULL THEN 'group unknown'
            WHEN i.cut > 0 THEN 'replay cut by the window'
            WHEN i.calls < coalesce(f.group_size, f.ranks) OR f.ranks < f.group_size THEN 'rank missing'
            WHEN i.calls > coalesce(f.group_size, f.ranks) OR i.rank_sum <> f.rank_sum OR i.square_sum <> f.square_sum
                OR i.differing > 0 THEN 'different numbers of calls'
            WHEN i.calls < 2 THEN 'group of one rank'
            WHEN i.durations < i.calls THEN 'duration unknown'
        END AS lacks,
        f.call, f.region, f.phase, f.group_name, f.group_ranks, f.in_graph, f.first_rank, f.synchronizing, f.one_host,
        f.fitted_clock, f.clock_error_ns
    FROM instances AS i
    JOIN _collective_families AS f ON f.job = i.job AND f.attempt = i.attempt AND f.family = i.family
),
judged AS (
    SELECT
        *,
        first_end_ns < last_arrive_ns - clock_error_ns AS apart,
        CASE
            WHEN lacks IS NOT NULL THEN lacks
            WHEN first_end_ns < last_arrive_ns - clock_error_ns THEN 'ended before another arrived'
            WHEN clock_error_ns IS NULL AND unordered > 0 THEN 'order unknown'
        END AS objection,
        CASE WHEN NOT fitted_clock AND clock_error_ns < last_arrive_ns - first_arrive_ns THEN 'clock' ELSE 'duration' END
            AS formula
    FROM lacking
),
settled AS (
    SELECT
        *,
        CAST(CASE
            WHEN formula = 'clock' THEN CAST(last_arrive_ns AS DECIMAL(19, 0)) * 10000000000 - last_arrival
            ELSE shortest_call - CAST(shortest_ns AS DECIMAL(19, 0)) * 10000000000
        END AS BIGINT) AS last_rank
    FROM judged
)
SELECT
    c.job,
    c.attempt,
    concat_ws('/', CAST(c.attempt AS VARCHAR),
        concat(coalesce(j.group_name, '?'), '@', CAST(j.first_rank AS VARCHAR),
            CASE WHEN j.group_ranks IS NOT NULL THEN concat('-', substr(md5(j.group_ranks), 1, 4)) ELSE '' END), j.call,
        coalesce(j.region, '-'), coalesce(j.phase, '-'), CASE WHEN j.in_graph THEN 'graph' ELSE 'eager' END,
        coalesce(CAST(c.step AS VARCHAR), '-'), CAST(c.replay AS VARCHAR), CAST(c.ordinal AS VARCHAR)) AS collective_id,
    c.family,
    c.replay,
    c.ordinal,
    c.rank,
    c.trace_id,
    c.step,
    j.region,
    j.phase,
    j.call AS name,
    j.group_name,
    j.group_ranks,
    j.first_rank AS group_first_rank,
    j.synchronizing AND j.lacks IS NULL AND coalesce(j.apart, FALSE) AS disjoint,
    j.synchronizing,
    j.objection IS NULL AS complete,
    CASE WHEN NOT j.synchronizing THEN 'kind does not synchronize' ELSE j.objection END AS not_judged,
    j.expected,
    j.one_host,
    CASE WHEN j.synchronizing AND j.objection IS NULL THEN j.formula END AS method,
    j.clock_error_ns,
    c.start_ns AS arrive_ns,
    c.start_ns + c.duration_ns AS end_ns,
    c.duration_ns,
    CASE WHEN j.clock_error_ns IS NOT NULL THEN j.last_arrive_ns - c.start_ns END AS wait_clock_ns,
    CASE WHEN j.clock_error_ns IS NOT NULL THEN greatest(c.start_ns + c.duration_ns - j.last_arrive_ns, 0) END
        AS transfer_clock_ns,
    c.duration_ns - j.shortest_ns AS wait_duration_ns,
    j.shortest_ns AS transfer_duration_ns,
    CASE WHEN j.synchronizing AND j.objection IS NULL AND j.clock_error_ns IS NOT NULL
         THEN j.last_arrive_ns - c.start_ns - c.duration_ns + j.shortest_ns END AS disagreement_ns,
    j.last_rank,
    CASE WHEN c.rank = j.last_rank AND j.synchronizing AND j.objection IS NULL
         THEN CAST(j.duration_sum_ns - j.calls * j.shortest_ns AS DOUBLE) / (j.calls - 1) END AS caused_ns,
    c.own_ns,
    c.own_ns - j.own_median_ns AS own_excess_ns
FROM calls AS c
JOIN settled AS j
    ON j.job = c.job AND j.attempt = c.attempt AND j.family = c.family AND j.ordinal = c.ordinal
    AND j.step IS NOT DISTINCT FROM c.step AND j.replay IS NOT DISTINCT FROM c.replay
