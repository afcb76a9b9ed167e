-- collectives: One row per rank of a collective: when it arrived, how long it waited for the others, and the transfer.
--
-- How to read it: only the latest attempt of a job is counted. The kernel of a collective lasts from the rank's arrival to
-- the end of the transfer, so duration_ns = wait + transfer. The rank that arrives last waits 0 and sees the true
-- transfer time; last_rank names it. Being last is not yet being slow: an earlier collective may have made it late. Its own
-- part is own_ns, and a last rank whose own_excess_ns is about 0 is a victim.
-- A collective is not judged (no wait, no transfer, no last rank) when its kind does not make every rank wait (send/recv,
-- rooted ones, uneven all_to_all), when a rank of the group lacks it or sent no trace, when its group is unknown, when the
-- profiler's window cut its replay, or when the calls cannot belong together: ranks made different numbers of calls without
-- sequence numbers, or one ended before another arrived. not_judged says which of these it was.
--
-- | column | type | unit | NULL | meaning |
-- |---|---|---|---|---|
-- | job | VARCHAR | - | never | the job's name |
-- | collective_id | VARCHAR | - | never | attempt/group@its lowest rank-hash of its ranks/name/region/phase/graph or eager/step/replay in the step (graphs)/place in the graph, or sequence or order number; equal on all ranks of the collective |
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
-- | own_ns | BIGINT | ns | the first collective of the trace | time since the rank's previous collective of any kind and group ended, 0 when that one had not ended; needs no common clock |
-- | own_excess_ns | DOUBLE | ns | not judged, or own_ns is NULL | own_ns less the median of the ranks of this collective |
-- | disagreement_ns | BIGINT | ns | not judged, or the clock error is not known | wait by the clock less wait by duration: 0 when all ranks end together |
-- | not_judged | VARCHAR | - | judged | why it is not judged: kind does not synchronize, group unknown, replay cut by the window, rank missing, different numbers of calls, group of one rank, duration unknown, ended before another arrived, order unknown |
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
    CASE WHEN w.method IS NOT NULL THEN w.last_rank END AS last_rank,
    w.own_ns,
    CASE WHEN w.method IS NOT NULL THEN w.own_excess_ns END AS own_excess_ns,
    w.disagreement_ns,
    w.not_judged
FROM _collective_waits AS w
JOIN latest AS l ON l.job = w.job AND l.attempt = w.attempt
