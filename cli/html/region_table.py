"""All regions with everything that ran in them: sortable, filterable, to be copied as CSV."""

from __future__ import annotations

from dataclasses import dataclass

from annotq.cli.html.figure import Figure, without_data
from annotq.cli.html.rendering import render
from annotq.cli.html.subject import Subject
from annotq.cli.statement import Statement

ANCHOR, TITLE = "regions", "All regions"
# A page of more rows is read by nobody, and heavy.
REGIONS_SHOWN = 2_000

REGIONS = """WITH traced AS (
    SELECT trace_id, rank
    FROM _traces
    WHERE job = ? AND attempt = ?
),
-- As _region_busy, but work of graphs is grouped by the number of its region: by name it takes twice as long.
graph_pass AS (
    SELECT t.rank, c.code, coalesce(sum(e.duration_ns) FILTER (WHERE NOT e.overrun), 0) AS busy_ns,
        coalesce(sum(e.duration_ns) FILTER (WHERE NOT e.overrun AND NOT e.communication), 0) AS compute_ns,
        count(*) AS kernels, count(*) FILTER (WHERE NOT e.communication) AS compute_kernels
    FROM gpu_event AS e
    JOIN traced AS t ON t.trace_id = e.trace_id
    JOIN (
        SELECT a.process_id, a.graph_id, a.node_index, n.code
        FROM annotation AS a
        JOIN _region_codes AS n ON n.region = a.region AND n.phase = a.phase
    ) AS c ON c.process_id = e.process_id AND c.graph_id = e.graph_id AND c.node_index = e.node_index
    WHERE e.region IS NULL
    GROUP BY t.rank, e.trace_id, e.step, CASE WHEN e.in_graph THEN e.correlation_id END, c.code
),
eager_pass AS (
    SELECT t.rank, coalesce(a.region, e.region) AS region, coalesce(a.phase, e.phase, 'forward') AS phase,
        coalesce(sum(e.duration_ns) FILTER (WHERE NOT e.overrun), 0) AS busy_ns,
        coalesce(sum(e.duration_ns) FILTER (WHERE NOT e.overrun AND NOT e.communication), 0) AS compute_ns,
        count(*) AS kernels, count(*) FILTER (WHERE NOT e.communication) AS compute_kernels
    FROM gpu_event AS e
    JOIN traced AS t ON t.trace_id = e.trace_id
    LEFT JOIN annotation AS a
        ON a.region IS NOT NULL AND a.process_id = e.process_id AND a.graph_id = e.graph_id AND a.node_index = e.node_index
    WHERE e.region IS NOT NULL
    GROUP BY t.rank, e.trace_id, e.step, CASE WHEN e.in_graph THEN e.correlation_id END, coalesce(a.region, e.region),
        e.region_instance, coalesce(a.phase, e.phase, 'forward')
),
pass AS (
    SELECT g.rank, n.region, n.phase, g.busy_ns, g.compute_ns, g.kernels, g.compute_kernels
    FROM graph_pass AS g
    JOIN _region_codes AS n ON n.code = g.code
    UNION ALL
    SELECT rank, region, phase, busy_ns, compute_ns, kernels, compute_kernels
    FROM eager_pass
),
per_rank AS (
    SELECT rank, region, phase, count(*) AS passes, sum(kernels) AS kernels, median(busy_ns) AS median_ns,
        percentile_cont(0.99) WITHIN GROUP (ORDER BY busy_ns) AS p99_ns, sum(busy_ns) AS total_ns,
        median(compute_ns) FILTER (WHERE compute_kernels > 0) AS compute_ns, sum(busy_ns - compute_ns) AS communication_ns
    FROM pass
    GROUP BY rank, region, phase
),
slowest AS (
    SELECT region, phase, rank, row_number() OVER (PARTITION BY region, phase ORDER BY compute_ns DESC, rank) AS place
    FROM per_rank
    WHERE compute_ns IS NOT NULL
)
SELECT p.region, p.phase, count(*) AS ranks, CAST(sum(p.passes) AS BIGINT) AS passes,
    CAST(sum(p.kernels) AS BIGINT) AS kernels, median(p.median_ns) AS median_ns, max(p.p99_ns) AS p99_ns,
    CASE WHEN count(p.compute_ns) > 1 THEN max(p.compute_ns) / nullif(median(p.compute_ns), 0) END AS skew_ratio,
    CASE WHEN count(p.compute_ns) > 1 THEN min(s.rank) END AS slowest_rank,
    CAST(sum(p.total_ns) AS BIGINT) AS total_ns,
    sum(p.total_ns) / nullif(sum(sum(p.total_ns)) OVER (), 0) AS share,
    sum(p.communication_ns) / nullif(sum(p.total_ns), 0) AS communication_share
FROM per_rank AS p
LEFT JOIN slowest AS s ON s.region = p.region AND s.phase = p.phase AND s.place = 1
GROUP BY p.region, p.phase
ORDER BY total_ns DESC, p.region, p.phase"""


@dataclass(frozen=True)
class Region:
    """One region and phase over all ranks. median_ns: of the ranks' medians of a pass; p99_ns: the highest of the ranks' 99th
    percentiles; skew_ratio: compute time of a pass on slowest_rank over the median of the ranks, None unless two compute;
    total_ns: over all passes and ranks; share: of the total of all regions; communication_share: of its own total."""

    region: str
    phase: str
    ranks: int
    passes: int
    kernels: int
    median_ns: float
    p99_ns: float
    skew_ratio: float | None
    slowest_rank: int | None
    total_ns: int
    share: float | None
    communication_share: float | None


def figure(subject: Subject) -> Figure:
    query = Statement(REGIONS, (subject.job, subject.attempt))
    found = [Region(**row) for row in subject.questions.rows(query).to_pylist()]
    if not found:
        receipt = subject.verdict.receipt
        why = (
            f"None of the {receipt.gpu_events:,} GPU events lies in a region: nothing is named. annotq status says why."
            if receipt.gpu_events
            else "No GPU work was recorded. Regions of a job on CPUs: the view host_regions."
        )
        return without_data(ANCHOR, TITLE, subject.no_trace or why, [query])
    body = render("region_table.html", rows=found[:REGIONS_SHOWN])
    lead = (
        "Busy time of a pass through the region, everything that ran in it, waits of collectives included. Median: of the "
        "ranks' medians; p99: the highest of the ranks'. Skew: the slowest rank over the ranks' median, by compute time alone, "
        "so that nobody looks slow by waiting."
    )
    if len(found) > REGIONS_SHOWN:
        lead += (
            f" These are the {REGIONS_SHOWN:,} of {len(found):,} regions with the most time; annotq regions lists all."
        )
    return Figure(ANCHOR, TITLE, lead, body, [query])
