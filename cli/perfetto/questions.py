"""The SQL behind the picture."""

from __future__ import annotations

from annotq.cli.perfetto.selection import Selection
from annotq.cli.statement import Condition, Statement, equals, select

KERNEL_END = "start_ns + duration_ns"


def traces(selection: Selection) -> Statement:
    """The usable traces of the chosen ranks with their process: where they ran, where they came from, their clock."""
    return select(
        "t.rank, t.trace_id, t.process_id, t.host, p.gpu, p.pid, r.path, r.sha256, r.base_ns, r.window_start_ns, "
        "r.window_end_ns, t.offset_ns, t.drift_ppb, t.reference_ns, t.clock_method, t.clock_error_ns, r.gpu_events",
        "_traces AS t\nJOIN trace AS r ON r.trace_id = t.trace_id\nJOIN process AS p ON p.process_id = t.process_id",
        [_of_table("t", condition) for condition in selection.of_job()],
        "t.rank ASC NULLS LAST, r.window_start_ns ASC NULLS FIRST, t.trace_id ASC NULLS LAST",
    )


def overview(selection: Selection) -> Statement:
    """What there is to draw, by trace and stream: counts, and from when to when."""
    chosen = select(
        "rank, trace_id, device, stream, count(*) AS kernels, min(start_ns) AS start_ns, "
        f"max(coalesce({KERNEL_END}, start_ns)) AS end_ns, count(*) FILTER (WHERE duration_ns IS NULL) AS unknown, "
        "count(*) FILTER (WHERE step IS NULL) AS outside_steps, count(*) FILTER (WHERE region IS NULL) AS in_no_region",
        "_gpu_work",
        [*selection.of_job(), *selection.inside("start_ns", KERNEL_END)],
        "rank ASC NULLS LAST, trace_id ASC NULLS LAST, device ASC NULLS LAST, stream ASC NULLS LAST",
    )
    grouped = chosen.sql.replace("\nORDER BY", "\nGROUP BY rank, trace_id, device, stream\nORDER BY")
    return Statement(grouped, chosen.parameters)


def kernels(selection: Selection, trace_id: int, process_id: int) -> Statement:
    """The kernels of one trace, stream after stream, by start; the shorter of two that start together first."""
    return select(
        "start_ns, duration_ns, name, kind, device, stream, step, replay_id, correlation_id, graph_id, node_index, "
        "region, region_path, region_instance, phase, attributes, communication",
        "_gpu_work",
        [
            *selection.of_job(),
            equals("trace_id", trace_id),
            equals("process_id", process_id),  # spares the annotations of all other ranks
            *selection.inside("start_ns", KERNEL_END),
        ],
        "device ASC NULLS LAST, stream ASC NULLS LAST, start_ns ASC NULLS LAST, duration_ns ASC NULLS FIRST, "
        "node_index ASC NULLS LAST, name ASC NULLS LAST",
    )


def steps(selection: Selection) -> Statement:
    """The steps of the chosen ranks; of steps without GPU work the times on the host."""
    start, end = "coalesce(start_ns, host_start_ns)", "coalesce(end_ns, host_start_ns + host_duration_ns)"
    return select(
        "rank, step, start_ns, end_ns, duration_ns, busy_ns, compute_ns, collective_ns, kernels, host_start_ns, "
        "host_duration_ns",
        "steps",
        [*selection.of_job(), *selection.inside(start, end, region=False)],
        "rank ASC NULLS LAST, step ASC NULLS LAST",
    )


def regions(selection: Selection, rank: int) -> Statement:
    """The passes of one rank through the chosen regions, all streams together."""
    return select(
        "region, phase, step, replay_id, start_ns, end_ns, busy_ns, union_ns, kernels",
        "region_instances",
        [
            equals("job", selection.job),
            equals("attempt", selection.attempt),
            equals("rank", rank),
            *selection.inside("start_ns", "end_ns"),
        ],
        "start_ns ASC NULLS LAST, end_ns ASC NULLS FIRST, region ASC NULLS LAST, phase ASC NULLS LAST",
    )


def collectives(selection: Selection) -> Statement:
    """The calls of the chosen ranks, with wait and transfer as in the view collectives; judged with all ranks of the job.

    skew_ns: from the first arrival to the last, the longest wait of any rank.
    """
    judged = select(
        "rank, trace_id, step, collective_id, name, region, group_name, arrive_ns, end_ns, duration_ns, last_rank, "
        "not_judged, CASE method WHEN 'clock' THEN wait_clock_ns WHEN 'duration' THEN wait_duration_ns END AS wait_ns, "
        "CASE method WHEN 'clock' THEN transfer_clock_ns WHEN 'duration' THEN transfer_duration_ns END AS transfer_ns, "
        "max(CASE method WHEN 'clock' THEN wait_clock_ns WHEN 'duration' THEN wait_duration_ns END) "
        "OVER (PARTITION BY collective_id) AS skew_ns",
        "_collective_waits",
        [equals("job", selection.job), equals("attempt", selection.attempt)],
        "",
    )
    inner = judged.sql.removesuffix("\nORDER BY ")
    ranks = [condition for condition in selection.of_job()[2:] if condition is not None]
    chosen = select(
        "trace_id, rank, step, collective_id, name, region, group_name, arrive_ns, duration_ns, last_rank, not_judged, "
        "wait_ns, transfer_ns, skew_ns",
        f"(\n{inner}\n) AS judged",
        [*ranks, *selection.inside("arrive_ns", "end_ns")],
        "rank ASC NULLS LAST, trace_id ASC NULLS LAST, arrive_ns ASC NULLS LAST, collective_id ASC NULLS LAST",
    )
    return Statement(chosen.sql, (*judged.parameters, *chosen.parameters))


def first_work(selection: Selection) -> Statement:
    """The start of the first GPU work of the job, what relative times count from."""
    job = [equals("job", selection.job), equals("attempt", selection.attempt)]
    return select("min(start_ns) AS start_ns", "_events", job, "1")


def _of_table(table: str, condition: Condition | None) -> Condition | None:
    return None if condition is None else Condition(f"{table}.{condition.sql}", condition.parameters)
