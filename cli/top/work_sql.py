"""The SQL behind what the ranks did in the newest profiler window: its last steps only, whatever else the store holds.

Not from the public views: they compare the whole run, which takes longer with every window. The formulas are theirs: step
duration as in steps, compute time as in _region_steps, ratio as in regions, wait and transfer as in _collective_waits.
"""

from __future__ import annotations

from annotq.cli.statement import Statement
from annotq.cli.top.window import Window

_BOUNDS = """SELECT
    min(window_start_ns) AS start_ns,
    max(window_end_ns) AS end_ns,
    count(DISTINCT rank) AS ranks
FROM trace
WHERE job = ? AND attempt = ? AND status NOT IN ('rejected', 'arriving')
    AND last_step + step_offset >= ? AND first_step + step_offset <= ?"""

# The times of the window are written in, although its traces say the same: numbers let DuckDB skip what lies outside.
_WORK = """WITH wanted AS (
    SELECT CAST(? AS VARCHAR) AS job, CAST(? AS BIGINT) AS attempt, CAST(? AS BIGINT) AS first, CAST(? AS BIGINT) AS last
),
traces AS (
    SELECT t.*, w.first - t.step_offset AS first, w.last - t.step_offset AS last
    FROM _traces AS t
    JOIN trace AS r ON r.trace_id = t.trace_id
    JOIN wanted AS w ON w.job = t.job AND w.attempt = t.attempt
        AND r.last_step + r.step_offset >= w.first AND r.first_step + r.step_offset <= w.last
),
work AS (
    SELECT
        e.rank, e.step + t.step_offset AS step,
        coalesce(a.region, e.region) AS region,
        CASE WHEN a.region IS NOT NULL THEN a.phase WHEN e.region IS NOT NULL THEN coalesce(e.phase, 'forward') END AS phase,
        sum(e.duration_ns) FILTER (WHERE NOT e.communication AND NOT e.overrun) AS compute_ns,
        min(e.start_ns) AS start_ns,
        max(e.start_ns + e.duration_ns) FILTER (WHERE NOT e.overrun) AS end_ns,
        count(*) FILTER (WHERE e.in_graph) AS graph_events
    FROM gpu_event AS e
    JOIN traces AS t ON t.trace_id = e.trace_id AND e.step BETWEEN t.first AND t.last
    LEFT JOIN annotation AS a
        ON a.process_id = e.process_id AND a.graph_id = e.graph_id AND a.node_index = e.node_index
    WHERE e.start_ns BETWEEN ? AND ?
    GROUP BY e.rank, e.step + t.step_offset, coalesce(a.region, e.region),
        CASE WHEN a.region IS NOT NULL THEN a.phase WHEN e.region IS NOT NULL THEN coalesce(e.phase, 'forward') END
),
steps AS (
    SELECT rank, step, max(end_ns) - min(start_ns) AS step_ns, sum(compute_ns) AS compute_ns,
        sum(graph_events) AS graph_events, sum(graph_events) FILTER (WHERE region IS NOT NULL) AS named
    FROM work
    GROUP BY rank, step
),
ranks AS (
    SELECT rank, count(*) AS steps, median(step_ns) AS step_ns, median(compute_ns) AS compute_ns,
        sum(graph_events) AS graph_events, sum(named) AS named
    FROM steps
    GROUP BY rank
),
regions AS (
    SELECT rank, region, phase, median(compute_ns) AS own_ns
    FROM work
    WHERE region IS NOT NULL AND compute_ns IS NOT NULL
    GROUP BY rank, region, phase
),
across AS (
    SELECT region, phase, median(own_ns) AS usual_ns
    FROM regions
    GROUP BY region, phase
    HAVING count(*) > 1
),
slowest AS (
    SELECT r.rank, arg_max(r.region, r.own_ns - a.usual_ns) AS region, arg_max(r.phase, r.own_ns - a.usual_ns) AS phase,
        arg_max(r.own_ns / nullif(a.usual_ns, 0), r.own_ns - a.usual_ns) AS ratio, sum(r.own_ns - a.usual_ns) AS behind_ns
    FROM regions AS r
    JOIN across AS a ON a.region = r.region AND a.phase = r.phase
    GROUP BY r.rank
),
calls AS (
    SELECT
        e.rank, e.step + t.step_offset AS step, e.in_graph, e.correlation_id, e.node_index,
        e.start_ns + t.offset_ns + CAST((e.start_ns - t.reference_ns) * (t.drift_ppb / 1000000000.0) AS BIGINT) AS start_ns,
        CASE WHEN NOT e.overrun THEN e.duration_ns END AS duration_ns,
        replace(lower(coalesce(a.collective, e.collective, e.name)), '_', '') AS said,
        coalesce(a.region, e.region) AS region,
        CASE WHEN a.region IS NOT NULL THEN a.phase WHEN e.region IS NOT NULL THEN coalesce(e.phase, 'forward') END AS phase,
        coalesce(a.group_name, e.group_name, t.default_group) AS group_name,
        coalesce(a.group_ranks, e.group_ranks) AS group_ranks,
        coalesce(a.group_size, e.group_size,
            CASE WHEN a.group_name IS NULL AND e.group_name IS NULL THEN t.default_group_size END) AS group_size,
        coalesce(a.in_split, e.in_split, '[]') <> '[]' OR coalesce(a.out_split, e.out_split, '[]') <> '[]' AS uneven,
        t.step_source, t.host, t.clock_method, t.clock_error_ns
    FROM gpu_event AS e
    JOIN traces AS t ON t.trace_id = e.trace_id AND e.step BETWEEN t.first AND t.last
    LEFT JOIN annotation AS a
        ON a.process_id = e.process_id AND a.graph_id = e.graph_id AND a.node_index = e.node_index
    WHERE e.start_ns BETWEEN ? AND ? AND e.communication
),
placed AS (
    SELECT
        *,
        CASE WHEN said LIKE '%allreduce%' THEN 'all_reduce' WHEN said LIKE '%reducescatter%' THEN 'reduce_scatter'
             WHEN said LIKE '%allgather%' THEN 'all_gather' WHEN said LIKE '%alltoall%' AND NOT uneven THEN 'all_to_all'
             WHEN said = 'barrier' THEN 'barrier' END AS call
    FROM calls
),
numbered AS (
    SELECT
        *,
        -- Numbers instead of texts: grouping a million calls by them takes a fraction of the time.
        CASE WHEN call IS NOT NULL AND group_name IS NOT NULL
             THEN hash(call, group_name, group_ranks, region, phase, in_graph) END AS family,
        row_number() OVER (
            PARTITION BY rank, step, hash(call, group_name, group_ranks, region, phase, in_graph)
            ORDER BY start_ns, correlation_id, node_index
        ) AS ordinal,
        count(*) OVER (PARTITION BY rank, step, hash(call, group_name, group_ranks, region, phase, in_graph)) AS calls
    FROM placed
),
families AS (
    SELECT family, count(DISTINCT rank) AS members, max(group_size) AS group_size,
        count(*) FILTER (WHERE step_source <> 'profiler') AS unordered,
        count(*) FILTER (WHERE clock_method = 'collectives') > 0 AND min(host) <> max(host) AS fitted_clock,
        -- Ranks of one host share a clock to a microsecond, whatever the error against other hosts is.
        CASE WHEN min(host) = max(host) AND count(host) = count(*) THEN least(coalesce(max(clock_error_ns), 1000), 1000)
             WHEN count(clock_error_ns) = count(*) THEN max(clock_error_ns) END AS clock_error_ns
    FROM (SELECT DISTINCT family, rank, group_size, step_source, clock_method, host, clock_error_ns FROM numbered) AS f
    WHERE family IS NOT NULL
    GROUP BY family
),
met AS (
    SELECT
        family, step, ordinal, count(*) AS ranks, count(duration_ns) AS durations, max(calls) - min(calls) AS differing,
        min(start_ns) AS first_ns, max(start_ns) AS last_ns, min(duration_ns) AS shortest_ns,
        min(start_ns + duration_ns) AS first_end_ns
    FROM numbered
    WHERE family IS NOT NULL
    GROUP BY family, step, ordinal
),
judged AS (
    SELECT m.family, m.step, m.ordinal, m.last_ns, m.shortest_ns,
        coalesce(NOT f.fitted_clock AND f.clock_error_ns < m.last_ns - m.first_ns, FALSE) AS by_clock
    FROM met AS m
    JOIN families AS f ON f.family = m.family
    WHERE m.ranks = coalesce(f.group_size, f.members) AND m.ranks > 1 AND m.durations = m.ranks AND m.differing = 0
        AND coalesce(m.first_end_ns >= m.last_ns - f.clock_error_ns, f.unordered = 0)
),
waits AS (
    SELECT n.rank, n.step, n.start_ns, n.start_ns + CASE WHEN j.step IS NULL THEN NULL
        WHEN j.by_clock THEN least(j.last_ns - n.start_ns, n.duration_ns) ELSE n.duration_ns - j.shortest_ns END AS end_ns
    FROM numbered AS n
    LEFT JOIN judged AS j ON j.family = n.family AND j.step = n.step AND j.ordinal = n.ordinal
),
reached AS (
    SELECT *, max(end_ns) OVER (
        PARTITION BY rank, step ORDER BY start_ns, end_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_ns
    FROM waits
),
waited AS (
    SELECT rank, step, count(*) AS collectives, count(end_ns) AS judged,
        -- Waits on two streams at once count once.
        sum(greatest(end_ns - greatest(start_ns, coalesce(before_ns, start_ns)), 0)) AS wait_ns
    FROM reached
    GROUP BY rank, step
),
shares AS (
    SELECT w.rank, sum(w.collectives) AS collectives, sum(w.judged) AS judged,
        sum(w.wait_ns) FILTER (WHERE w.judged > 0) / nullif(sum(s.step_ns) FILTER (WHERE w.judged > 0), 0) AS wait_share
    FROM waited AS w
    JOIN steps AS s ON s.rank = w.rank AND s.step = w.step
    GROUP BY w.rank
)
SELECT r.rank, r.steps, r.step_ns, r.compute_ns, s.region, s.phase, s.ratio, s.behind_ns, w.wait_share,
    CAST(coalesce(w.collectives, 0) AS BIGINT) AS collectives, CAST(coalesce(w.judged, 0) AS BIGINT) AS judged,
    CAST(r.graph_events AS BIGINT) AS graph_events, CAST(coalesce(r.named, 0) AS BIGINT) AS named
FROM ranks AS r
LEFT JOIN slowest AS s ON s.rank = r.rank
LEFT JOIN shares AS w ON w.rank = r.rank
ORDER BY r.rank"""


def bounds_statement(window: Window) -> Statement:
    """One row: start_ns, end_ns (on the hosts' own clocks) and ranks of the traces that hold steps of the window."""
    return Statement(_BOUNDS, (window.job, window.attempt, window.first_step, window.last_step))


def work_statement(window: Window, start_ns: int, end_ns: int) -> Statement:
    """One row per rank with GPU work in the window.

    steps: with work. step_ns, compute_ns: medians over them. region, phase, ratio: where the rank loses most time against the
    ranks' median of the region; behind_ns: what it loses a step in all its regions, below 0 for a quick rank; all four NULL
    when nothing can be compared. wait_share: of the time of the steps, waiting for the last rank in collectives; judged of
    its collectives say so. named of its graph_events lie in a region.
    """
    times = (start_ns, end_ns)
    return Statement(_WORK, (window.job, window.attempt, window.first_step, window.last_step, *times, *times))
