-- _traces: The traces that count (not rejected, not arriving) with their process and the clock of their host.
--
-- How to read it: aligned time = t + offset_ns + (t - reference_ns) * drift_ppb / 1e9.
SELECT
    t.trace_id,
    t.process_id,
    t.job,
    t.attempt,
    t.rank,
    t.step_offset,
    t.step_source,
    p.host,
    p.default_group,
    p.default_group_size,
    coalesce(c.offset_ns, 0) AS offset_ns,
    coalesce(c.drift_ppb, 0) AS drift_ppb,
    coalesce(c.reference_ns, 0) AS reference_ns,
    c.method AS clock_method,
    c.error_ns AS clock_error_ns
FROM trace AS t
JOIN process AS p ON p.process_id = t.process_id
LEFT JOIN clock AS c ON c.job = t.job AND c.attempt = t.attempt AND c.host = coalesce(p.host, '')
WHERE t.status NOT IN ('rejected', 'arriving')
