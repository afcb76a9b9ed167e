-- _step_segments: The time of a trace, cut wherever something begins or ends; one row per piece, with what ran in it.
--
-- How to read it: computes, transfers, waits and copies say whether a kernel, a communication kernel past its wait, one that
-- still waits for the last rank, a copy or memset ran between start_ns and start_ns + length_ns; unjudged: all transfers
-- among them are of communication whose wait is not known. ordinal is the step (_step_bounds) whose period the piece lies in:
-- the number of steps that had ended before. A step's begin, first work and end are cuts as well, so that no piece crosses
-- them.
WITH waits AS (
    SELECT job, attempt, rank, trace_id, arrive_ns, end_ns, method,
        arrive_ns + CASE method WHEN 'clock' THEN least(wait_clock_ns, duration_ns) WHEN 'duration' THEN wait_duration_ns ELSE 0 END
            AS waited_ns
    FROM _collective_waits
    WHERE duration_ns IS NOT NULL
),
-- One number holds how many of each kind run: compute + 4096 * (transfer + 4096 * (wait + 4096 * (copy + 4096 * unjudged))).
-- Cuts then need one running sum instead of five, which is most of what this view costs.
pieces AS (
    SELECT job, attempt, rank, trace_id, start_ns, start_ns + duration_ns AS end_ns,
        CASE WHEN kind = 'kernel' THEN 1 ELSE 68719476736 END AS code
    FROM _events
    WHERE NOT communication AND duration_ns > 0
    UNION ALL
    SELECT job, attempt, rank, trace_id, arrive_ns AS start_ns, waited_ns AS end_ns, 16777216 AS code
    FROM waits
    WHERE waited_ns > arrive_ns
    UNION ALL
    SELECT job, attempt, rank, trace_id, waited_ns AS start_ns, end_ns,
        CASE WHEN method IS NULL THEN 281474976714752 ELSE 4096 END AS code
    FROM waits
    WHERE end_ns > waited_ns
),
cuts AS (
    SELECT job, attempt, rank, trace_id, start_ns AS at_ns, code, 0 AS ended
    FROM pieces
    UNION ALL
    SELECT job, attempt, rank, trace_id, end_ns AS at_ns, -code, 0 AS ended
    FROM pieces
    UNION ALL
    SELECT job, attempt, rank, trace_id, end_ns AS at_ns, 0 AS code, 1 AS ended
    FROM _step_bounds
    UNION ALL
    SELECT job, attempt, rank, trace_id, first_ns AS at_ns, 0 AS code, 0 AS ended
    FROM _step_bounds
),
running AS (
    -- Cuts at one moment come in any order: RANGE gives all of them the same sums, all but one a piece of length 0.
    SELECT
        job, attempt, rank, trace_id, at_ns,
        lead(at_ns) OVER (PARTITION BY job, attempt, rank, trace_id ORDER BY at_ns ASC NULLS LAST) - at_ns AS length_ns,
        CAST(sum(code) OVER w AS BIGINT) AS code,
        CAST(sum(ended) OVER w AS BIGINT) AS ordinal
    FROM cuts
    WINDOW w AS (
        PARTITION BY job, attempt, rank, trace_id ORDER BY at_ns ASC NULLS LAST
        RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
)
SELECT
    job,
    attempt,
    rank,
    trace_id,
    ordinal,
    at_ns AS start_ns,
    length_ns,
    code % 4096 > 0 AS computes,
    code % 16777216 >= 4096 AS transfers,
    code % 68719476736 >= 16777216 AS waits,
    code % 281474976710656 >= 68719476736 AS copies,
    code >= 281474976710656 AND (code % 16777216 - code % 4096) * 68719476736 = code - code % 281474976710656 AS unjudged
FROM running
WHERE length_ns > 0
