-- _host_work: What the host did (launches, user annotations, profiler steps) on the job's common clock.
--
-- How to read it: one row per host_span of a trace that counts; kind is graph_launch, launch, annotation or step. step is
-- numbered as in _gpu_work.
SELECT
    t.job,
    t.attempt,
    h.rank,
    h.trace_id,
    h.step + t.step_offset AS step,
    h.kind,
    h.name,
    h.thread_id,
    h.start_ns + t.offset_ns + CAST((h.start_ns - t.reference_ns) * (t.drift_ppb / 1000000000.0) AS BIGINT) AS start_ns,
    h.duration_ns,
    h.correlation_id
FROM host_span AS h
JOIN _traces AS t ON t.trace_id = h.trace_id
