-- collectives: One row per rank of a collective: when it arrived, how long it waited for the others, and the transfer.
--
-- How to read it: only the latest attempt of a job is counted. The kernel of a collective lasts from the rank's arrival to
-- the end of the transfer, so duration_ns = wait + transfer. The rank that arrives last waits 0 and sees the true
-- transfer time; last_rank names it. Being last is not yet being slow: an earlier collective may have made it late.
-- A collective is not judged (no wait, no transfer, no last rank) when its kind does not make every rank wait (send/recv,
-- rooted ones, uneven all_to_all), when a rank of the group lacks it or sent no trace, when its group is unknown, or
-- when the calls cannot belong together: ranks made different numbers of calls in the step without sequence
-- numbers, or one ended before another arrived.
--
-- | column | type | unit | NULL | meaning |
-- |---|---|---|---|---|
-- | job | VARCHAR | - | never | the job's name |
-- | collective_id | VARCHAR | - | never | attempt/group@its lowest rank-hash of its ranks/name/region/phase/graph or eager/step/ordinal or sequence number, equal on all ranks of the collective |
-- | rank | BIGINT | - | never | global rank |
-- | region | VARCHAR | - | in no region, or not known | region of the kernel |
-- | name | VARCHAR | - | never | all_reduce, all_gather, reduce_scatter, all_to_all, barrier, broadcast, reduce, send_recv, ... |
-- | group_name | VARCHAR | - | neither the trace nor the annotation says, and the process has not just one group | process group |
-- | arrive_ns | BIGINT | ns since the epoch | never | start of the kernel, on the job's common clock |
-- | end_ns | BIGINT | ns since the epoch | the reported duration is impossible | end of the kernel |
-- | duration_ns | BIGINT | ns | the reported duration is impossible | end_ns - arrive_ns |
-- | wait_ns | BIGINT | ns | not judged: see above | time spent waiting for the last rank |
-- | transfer_ns | BIGINT | ns | not judged: see above | time after the last rank arrived |
-- | last_rank | BIGINT | - | not judged: see above | rank that arrived last |
WITH latest AS (
    SELECT job, max(attempt) AS attempt
    FROM _traces
    GROUP BY job
)
SELECT
    w.job,
    w.collective_id,
    w.rank,
    w.region,
    w.name,
    w.group_name,
    w.arrive_ns,
    w.end_ns,
    w.duration_ns,
    CASE w.method WHEN 'clock' THEN w.wait_clock_ns WHEN 'duration' THEN w.wait_duration_ns END AS wait_ns,
    CASE w.method WHEN 'clock' THEN w.transfer_clock_ns WHEN 'duration' THEN w.transfer_duration_ns END AS transfer_ns,
    CASE WHEN w.method IS NOT NULL THEN w.last_rank END AS last_rank
FROM _collective_waits AS w
JOIN latest AS l ON l.job = w.job AND l.attempt = w.attempt
