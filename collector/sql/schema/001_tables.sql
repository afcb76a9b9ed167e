-- The tables. Signed integers only, nanoseconds since the epoch, no key on event rows.
-- Ids of processes and traces are 52-bit hashes of what they identify: the same input gives the same id in every
-- store, and a JSON reader with doubles keeps them exact.

CREATE TABLE store_version (
    schema_version BIGINT NOT NULL,
    created_by VARCHAR NOT NULL,
    views VARCHAR NOT NULL       -- hash over the view files that the store's views were made from
);

CREATE TABLE process (
    process_id BIGINT PRIMARY KEY,
    job VARCHAR NOT NULL,
    attempt BIGINT NOT NULL,
    rank BIGINT NOT NULL,
    world_size BIGINT,
    local_rank BIGINT,
    host VARCHAR,
    pid BIGINT,
    gpu VARCHAR,
    versions VARCHAR,            -- JSON object: cuda_driver, cuda_runtime, cupti, nccl, torch
    process_groups VARCHAR,      -- JSON array as in the trace's distributedInfo.pg_config
    default_group VARCHAR,       -- name of the only process group, for collectives that do not say theirs
    default_group_size BIGINT,   -- its number of ranks
    coordinates VARCHAR,         -- JSON object: dp, pp, tp, ep
    annotation_source VARCHAR    -- file, inline, agent; NULL while nothing was reported
);

CREATE TABLE graph (
    process_id BIGINT NOT NULL,
    graph_id BIGINT NOT NULL,
    fingerprint VARCHAR,         -- hash over the nodes' kind and name in node order; NULL while no node is known
    generation BIGINT,           -- how often the graph was instantiated before; known to the agent only
    reported BOOLEAN NOT NULL,   -- an annotation file or the agent named it; otherwise only a trace showed it
    nodes_complete BOOLEAN NOT NULL, -- the node list comes from the graph itself, not from what a trace showed
    valid_from_ns BIGINT,
    valid_to_ns BIGINT,
    PRIMARY KEY (process_id, graph_id)
);

CREATE TABLE graph_node (
    process_id BIGINT NOT NULL,
    graph_id BIGINT NOT NULL,
    node_index BIGINT NOT NULL,
    kind VARCHAR NOT NULL,
    name VARCHAR,
    PRIMARY KEY (process_id, graph_id, node_index)
);

CREATE TABLE annotation (
    process_id BIGINT NOT NULL,
    graph_id BIGINT NOT NULL,
    node_index BIGINT NOT NULL,
    region VARCHAR,
    region_path VARCHAR,
    phase VARCHAR NOT NULL,
    attributes VARCHAR NOT NULL, -- JSON object
    collective VARCHAR,
    group_name VARCHAR,
    group_description VARCHAR,
    group_ranks VARCHAR,
    group_size BIGINT,
    dtype VARCHAR,
    in_elements BIGINT,
    out_elements BIGINT,
    in_split VARCHAR,
    out_split VARCHAR,
    source_rank BIGINT,
    destination_rank BIGINT,
    sequence BIGINT,
    PRIMARY KEY (process_id, graph_id, node_index)
);

-- Every file taken in, once per content and process: traces, annotation files, graph files.
CREATE TABLE source_file (
    process_id BIGINT NOT NULL,
    sha256 VARCHAR NOT NULL,
    path VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,       -- trace, annotations, graphs
    PRIMARY KEY (process_id, sha256)
);

CREATE TABLE trace (
    trace_id BIGINT PRIMARY KEY,
    process_id BIGINT NOT NULL,
    job VARCHAR NOT NULL,
    attempt BIGINT NOT NULL,
    rank BIGINT NOT NULL,
    path VARCHAR NOT NULL,
    sha256 VARCHAR NOT NULL,
    base_ns BIGINT NOT NULL,     -- baseTimeNanoseconds; 0 when the file has absolute times
    window_start_ns BIGINT,      -- first and last moment of any kept event; NULL when there is none
    window_end_ns BIGINT,
    encoding VARCHAR NOT NULL,   -- packed, split, absent, none (no graph work)
    inferred BOOLEAN NOT NULL,   -- node indices of this trace were found by capture order and name
    step_source VARCHAR NOT NULL, -- profiler, announced, replay, none
    step_offset BIGINT NOT NULL, -- added to the steps of this trace where an earlier window of the process used the same numbers
    status VARCHAR NOT NULL,     -- complete, partial, rejected; arriving: its batches are not all here yet
    gpu_events BIGINT NOT NULL,
    graph_events BIGINT NOT NULL,
    dropped_events BIGINT NOT NULL,
    overrun_events BIGINT NOT NULL,
    note VARCHAR,                -- what was wrong, sentences joined with a space; NULL when nothing was
    first_step BIGINT,           -- as in the trace, without step_offset; of GPU work, or where there is none of the host; NULL: of neither
    last_step BIGINT
);

CREATE TABLE gpu_event (
    trace_id BIGINT NOT NULL,
    process_id BIGINT NOT NULL,
    rank BIGINT NOT NULL,
    start_ns BIGINT NOT NULL,
    duration_ns BIGINT NOT NULL,
    kind VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    device BIGINT,
    stream BIGINT,
    correlation_id BIGINT,
    in_graph BOOLEAN NOT NULL,
    graph_id BIGINT,
    node_index BIGINT,
    bytes BIGINT,
    step BIGINT,                 -- the step in which it was launched
    region VARCHAR,              -- eager work only; graph work gets its region from annotation
    region_path VARCHAR,
    region_instance BIGINT,      -- which pass through the eager region, by start within the trace
    overrun BOOLEAN NOT NULL,    -- the duration is impossible; views show NULL instead
    communication BOOLEAN NOT NULL, -- a kernel that waits for other ranks: its duration is not work
    collective VARCHAR,
    group_name VARCHAR,
    group_description VARCHAR,
    group_ranks VARCHAR,
    group_size BIGINT,
    dtype VARCHAR,
    in_elements BIGINT,
    out_elements BIGINT,
    in_split VARCHAR,
    out_split VARCHAR,
    source_rank BIGINT,
    destination_rank BIGINT,
    sequence BIGINT
);

CREATE TABLE host_span (
    trace_id BIGINT NOT NULL,
    process_id BIGINT NOT NULL,
    rank BIGINT NOT NULL,
    start_ns BIGINT NOT NULL,
    duration_ns BIGINT NOT NULL,
    kind VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    thread_id BIGINT,
    correlation_id BIGINT,
    step BIGINT
);

CREATE TABLE clock_sample (
    job VARCHAR NOT NULL,
    attempt BIGINT NOT NULL,
    host VARCHAR NOT NULL,
    sent_ns BIGINT NOT NULL,
    received_ns BIGINT NOT NULL,
    answered_ns BIGINT NOT NULL,
    returned_ns BIGINT NOT NULL
);

-- How each host's clock relates to the job's common clock:
-- aligned = start_ns + offset_ns + (start_ns - reference_ns) * drift_ppb / 1e9.
CREATE TABLE clock (
    job VARCHAR NOT NULL,
    attempt BIGINT NOT NULL,
    host VARCHAR NOT NULL,
    offset_ns BIGINT NOT NULL,
    drift_ppb BIGINT NOT NULL,   -- added per second since reference_ns
    reference_ns BIGINT NOT NULL,
    error_ns BIGINT,             -- NULL: not known, cross-host differences of times mean nothing
    method VARCHAR NOT NULL      -- same_host, collectives, none
);

CREATE TABLE batch_log (
    process_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    kind VARCHAR NOT NULL,
    row_count BIGINT NOT NULL,
    PRIMARY KEY (process_id, sequence)
);
