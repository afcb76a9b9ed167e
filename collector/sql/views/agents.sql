-- agents: One row per training process that an agent reported: who it is, how it is, when it was last seen.
--
-- How to read it: processes known only from files are not here. Nothing depends on the time of asking: a running process
-- whose seen_ns lies far back is silent, `annotq status` says for how long. A rank of a job attempt has one row; a
-- restarted job is another attempt.
--
-- | column | type | unit | NULL | meaning |
-- |---|---|---|---|---|
-- | job | VARCHAR | - | never | the job's name |
-- | attempt | BIGINT | - | never | restart count of the job |
-- | rank | BIGINT | - | never | global rank |
-- | local_rank | BIGINT | - | the launcher did not say | rank on its host |
-- | world_size | BIGINT | - | the launcher did not say | ranks of the job |
-- | host | VARCHAR | - | never | host name |
-- | pid | BIGINT | - | never | process id on that host |
-- | gpu | VARCHAR | - | none, or not known when recording began | GPU model |
-- | annotation_ids | VARCHAR | - | not reported | where graph node ids come from: driver, cupti, none |
-- | start_ns | BIGINT | ns since the epoch | not reported | when recording began, on the host's own clock |
-- | end_ns | BIGINT | ns since the epoch | recording has not ended | when recording ended, on the host's own clock |
-- | state | VARCHAR | - | never | running; ending (its process is over, files of it are still on their way); stopped (ended by itself); gone (died without a word) |
-- | seen_ns | BIGINT | ns since the epoch | its shipper has not reported yet | when it last gave a sign of itself, on the collector's clock |
-- | step | BIGINT | - | none was announced or profiled | last step |
-- | step_ns | BIGINT | ns | not known | duration of that step |
-- | spooled_bytes | BIGINT | bytes | its shipper has not reported yet | waiting on its node |
-- | dropped_traces | BIGINT | - | its shipper has not reported yet | traces given up for space on its node |
-- | notes | BIGINT | - | never | sentences of the agent about what it lost or could not do |
WITH notes AS (
    SELECT process_id, count(*) AS notes
    FROM agent_note
    GROUP BY process_id
)
SELECT
    p.job,
    p.attempt,
    p.rank,
    p.local_rank,
    p.world_size,
    p.host,
    p.pid,
    p.gpu,
    p.annotation_ids,
    p.start_ns,
    p.end_ns,
    CASE WHEN p.ended IS NOT NULL THEN p.ended WHEN NOT b.alive THEN 'ending' ELSE 'running' END AS state,
    b.seen_ns,
    b.step,
    b.step_ns,
    b.spooled_bytes,
    b.dropped_traces,
    coalesce(n.notes, 0) AS notes
FROM process AS p
LEFT JOIN heartbeat AS b ON b.process_id = p.process_id
LEFT JOIN notes AS n ON n.process_id = p.process_id
WHERE p.process_key IS NOT NULL
