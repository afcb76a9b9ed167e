-- step_parts: One row per step of a rank: where its time went. The parts add up to the step, to the nanosecond.
--
-- How to read it: period_ns is the time from the end of the previous step's work to the end of this step's (for the first
-- step of a trace from its own first start), so that the periods of a trace follow each other without gap or overlap;
-- period_ns = compute_ns + exposed_transfer_ns + wait_ns + launch_gap_ns + other_ns. Each moment of a period counts once,
-- for the first of these that fits, whichever step launched the work: a compute kernel runs (compute), a communication
-- kernel that has all its ranks runs (exposed transfer), one runs that still waits for the last rank (wait), nothing at all
-- runs and no work of this step has started yet (launch gap), anything else (other: copies and memsets that nothing covers,
-- and idle time within the step). Communication whose wait cannot be told (send/recv, see not_judged in collectives) is
-- exposed transfer, and unjudged_ns says how much. Compare with steps, whose parts are sums over kernels.
--
-- | column | type | unit | NULL | meaning |
-- |---|---|---|---|---|
-- | job | VARCHAR | - | never | the job's name |
-- | attempt | BIGINT | - | never | restart count of the job |
-- | rank | BIGINT | - | never | global rank |
-- | step | BIGINT | - | never | the step, as in the view steps |
-- | period_ns | BIGINT | ns | never | from the end of the previous step's work to the end of this step's; 0 when that ended earlier |
-- | compute_ns | BIGINT | ns | never | time covered by kernels other than communication, all streams together |
-- | exposed_transfer_ns | BIGINT | ns | never | communication that no compute kernel covers, less the wait |
-- | wait_ns | BIGINT | ns | never | waiting for the last rank in a collective, with neither compute nor transfer under way |
-- | launch_gap_ns | BIGINT | ns | never | nothing ran and the step's first work had not started |
-- | other_ns | BIGINT | ns | never | copies and memsets that nothing covers, and idle time after the step's first work |
-- | unjudged_ns | BIGINT | ns | never | of exposed_transfer_ns: communication of which no part could be told to be wait |
-- | copy_ns | BIGINT | ns | never | of other_ns: copies and memsets |
SELECT
    b.job,
    b.attempt,
    b.rank,
    b.step,
    CAST(coalesce(sum(s.length_ns), 0) AS BIGINT) AS period_ns,
    CAST(coalesce(sum(s.length_ns) FILTER (WHERE s.computes), 0) AS BIGINT) AS compute_ns,
    CAST(coalesce(sum(s.length_ns) FILTER (WHERE NOT s.computes AND s.transfers), 0) AS BIGINT) AS exposed_transfer_ns,
    CAST(coalesce(sum(s.length_ns) FILTER (WHERE NOT s.computes AND NOT s.transfers AND s.waits), 0) AS BIGINT) AS wait_ns,
    CAST(coalesce(sum(s.length_ns) FILTER (
        WHERE NOT (s.computes OR s.transfers OR s.waits OR s.copies) AND s.start_ns < b.first_ns
    ), 0) AS BIGINT) AS launch_gap_ns,
    CAST(coalesce(sum(s.length_ns) FILTER (
        WHERE NOT (s.computes OR s.transfers OR s.waits) AND (s.copies OR s.start_ns >= b.first_ns)
    ), 0) AS BIGINT) AS other_ns,
    CAST(coalesce(sum(s.length_ns) FILTER (WHERE NOT s.computes AND s.unjudged), 0) AS BIGINT) AS unjudged_ns,
    CAST(coalesce(sum(s.length_ns) FILTER (
        WHERE NOT (s.computes OR s.transfers OR s.waits) AND s.copies
    ), 0) AS BIGINT) AS copy_ns
FROM _step_bounds AS b
LEFT JOIN _step_segments AS s
    ON s.job = b.job AND s.attempt = b.attempt AND s.rank = b.rank AND s.trace_id = b.trace_id AND s.ordinal = b.ordinal
    AND s.start_ns >= b.begin_ns
GROUP BY b.job, b.attempt, b.rank, b.step
