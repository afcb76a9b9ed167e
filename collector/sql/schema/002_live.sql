-- What only the live path knows: who the processes are, how they are, what was lost on the way.

ALTER TABLE process ADD COLUMN process_key VARCHAR;  -- of annotq.agent.process_info; NULL: known from files only
ALTER TABLE process ADD COLUMN start_ns BIGINT;      -- when recording began, on the host's own clock
ALTER TABLE process ADD COLUMN end_ns BIGINT;        -- when recording ended, on the host's own clock; NULL: not yet, or killed
ALTER TABLE process ADD COLUMN ended VARCHAR;        -- stopped (by itself), gone (its node saw it die); NULL: neither
ALTER TABLE process ADD COLUMN annotation_ids VARCHAR; -- driver, cupti, none
ALTER TABLE process ADD COLUMN layout VARCHAR;       -- how its shipper cuts traces into batches

-- The last sign of life. Times are the collector's.
CREATE TABLE heartbeat (
    process_id BIGINT PRIMARY KEY,
    seen_ns BIGINT NOT NULL,        -- when the process last gave a sign of itself
    beat_ns BIGINT NOT NULL,        -- when its shipper last reported
    alive BOOLEAN NOT NULL,
    step BIGINT,                    -- last step announced or profiled
    step_ns BIGINT,                 -- its duration
    spooled_bytes BIGINT NOT NULL,  -- waiting on the node
    dropped_traces BIGINT NOT NULL  -- given up for space
);

-- Sentences of the agents: what they lost or could not do.
CREATE TABLE agent_note (
    process_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    note VARCHAR NOT NULL
);

-- Batches that were refused for good; what they held is in the quarantine folder beside the store.
CREATE TABLE rejected_batch (
    process_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    kind VARCHAR NOT NULL,
    reason VARCHAR NOT NULL,
    detail VARCHAR NOT NULL,
    rejected_ns BIGINT NOT NULL
);

-- The trace that a process is sending just now, or whose rest is ignored; its row goes when the trace ends.
CREATE TABLE arriving (
    process_id BIGINT NOT NULL,
    begin_sequence BIGINT NOT NULL, -- of the batch that began it
    trace_id BIGINT,                -- NULL: known already or refused, what follows of it is ignored
    status VARCHAR                  -- what the trace's status becomes at its end
);
