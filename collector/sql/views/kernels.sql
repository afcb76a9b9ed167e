-- kernels: One row per kernel, memcpy or memset that ran on a GPU, with the region it belongs to.
--
-- How to read it: the finest grain; every other view is a sum over these rows. Work inside a CUDA graph has its region
-- from the annotation of its graph node, eager work from the innermost user annotation around its launch. Rows with
-- region NULL are either outside of every region or could not be named; for graph work the view coverage says how many of
-- each.
--
-- | column | type | unit | NULL | meaning |
-- |---|---|---|---|---|
-- | job | VARCHAR | - | never | the job's name |
-- | attempt | BIGINT | - | never | restart count of the job, 0 for the first run |
-- | rank | BIGINT | - | never | global rank |
-- | trace_id | BIGINT | - | never | the profiler trace the row comes from |
-- | step | BIGINT | - | launched outside of every step | the step in which the work was launched (not in which it ran) |
-- | replay_id | BIGINT | - | eager work | the replay of a graph, unique within the trace: the correlation id of its launch |
-- | start_ns | BIGINT | ns since the epoch | never | start on the GPU, on the job's common clock |
-- | duration_ns | BIGINT | ns | the reported duration is impossible (it runs over a second past the next start on its stream) | time on the GPU |
-- | name | VARCHAR | - | never | kernel name, or the profiler's name of the copy |
-- | kind | VARCHAR | - | never | kernel, memcpy or memset |
-- | device | BIGINT | - | the trace does not say | CUDA device index in the process |
-- | stream | BIGINT | - | the trace does not say | stream as the profiler reports it |
-- | correlation_id | BIGINT | - | the trace does not say | joins the work with its launch; shared by all work of one replay |
-- | graph_id | BIGINT | - | eager work, or the trace carries no ids | executable graph, unique within the process |
-- | node_index | BIGINT | - | eager work, or the trace carries no ids | node within the graph |
-- | region | VARCHAR | - | in no region, or not known | name of the region |
-- | region_path | VARCHAR | - | in no region, or not known | enclosing regions, outermost first, joined with " > " |
-- | phase | VARCHAR | - | in no region, or not known | forward or backward |
-- | attributes | VARCHAR | JSON object | eager work, or not annotated | everything that was recorded for the node |
SELECT
    job,
    attempt,
    rank,
    trace_id,
    step,
    replay_id,
    start_ns,
    duration_ns,
    name,
    kind,
    device,
    stream,
    correlation_id,
    graph_id,
    node_index,
    region,
    region_path,
    phase,
    attributes
FROM _gpu_work
