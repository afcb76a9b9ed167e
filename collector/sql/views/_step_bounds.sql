-- _step_bounds: One row per step of a trace: the stretch of the rank's time that the step accounts for.
--
-- How to read it: steps in the order of their numbers tile the time of a trace: a step's period begins where the work of the
-- earlier ones ended (begin_ns; for the first step of a trace with its own first start) and ends with its own last work
-- (end_ns). Work that ends before that of an earlier step leaves a period of 0. first_ns: start of the step's first work.
-- ordinal counts the steps of the trace. Work without a believable duration is left out.
WITH step AS (
    SELECT
        job, attempt, rank, trace_id, step,
        min(start_ns) AS first_ns,
        max(start_ns + duration_ns) AS last_ns
    FROM _gpu_work
    WHERE step IS NOT NULL AND duration_ns IS NOT NULL
    GROUP BY job, attempt, rank, trace_id, step
),
reached AS (
    SELECT
        job, attempt, rank, trace_id, step, first_ns,
        row_number() OVER (PARTITION BY job, attempt, rank, trace_id ORDER BY step ASC NULLS LAST) - 1 AS ordinal,
        max(last_ns) OVER (
            PARTITION BY job, attempt, rank, trace_id ORDER BY step ASC NULLS LAST
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS end_ns,
        max(last_ns) OVER (
            PARTITION BY job, attempt, rank, trace_id ORDER BY step ASC NULLS LAST
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before_ns
    FROM step
)
SELECT
    job,
    attempt,
    rank,
    trace_id,
    step,
    ordinal,
    first_ns,
    coalesce(before_ns, first_ns) AS begin_ns,
    end_ns
FROM reached
