"""`annotq stragglers`: which rank is slow, where, by how much, and how long the others wait for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from annotq.agent.errors import AnnotqError
from annotq.cli.options import Format, ReadingOptions, reading_command
from annotq.cli.report import open_report
from annotq.cli.statement import Statement
from annotq.cli.straggler_text import straggler_text

if TYPE_CHECKING:
    import pyarrow as pa

    from annotq.cli.report import Report
    from annotq.collector.stragglers import Report as StragglerReport

Every = Annotated[bool, typer.Option("--all", help="Every comparison, not only the findings.")]
Attempt = Annotated[int | None, typer.Option("--attempt", min=0, metavar="N", help="Default: the latest one.")]


@reading_command(without=("limit", "time_unit"))
def stragglers(options: ReadingOptions, attempt: Attempt = None, every: Every = False) -> None:
    """The straggler report of a job: verdict, regions in which a rank is slow, waits at collectives, coverage.

    Each region's compute time on each rank is compared with the median of the ranks, step by step.
    """
    with open_report(options) as opened:
        job = opened.job()
        chosen = _attempt(opened, job, attempt)
        if options.show_sql:
            typer.echo(_sql(job, chosen))
            return
        from annotq.collector.report_json import report_json
        from annotq.collector.stragglers import straggler_report

        report = straggler_report(opened.ask, job, chosen)
        match options.chosen_format():
            case None | Format.TABLE:
                opened.printer.print_text(straggler_text(report, every))
            case Format.JSON:
                opened.printer.print_text(json.dumps(report_json(report, every), indent=2))
            case _:
                opened.printer.print(_table(report, every))


def _attempt(opened: Report, job: str, wanted: int | None) -> int:
    rows = opened.ask("SELECT DISTINCT attempt FROM process WHERE job = ? ORDER BY attempt", [job]).to_pylist()
    attempts = [int(row["attempt"]) for row in rows]
    if wanted is not None and wanted not in attempts:
        known = ", ".join(map(str, attempts))
        raise AnnotqError(f"Job {job} has no attempt {wanted}.", f"The attempts are: {known}.")
    return attempts[-1] if wanted is None else wanted


def _sql(job: str, attempt: int) -> str:
    from annotq.collector.evidence import REGION_STEPS
    from annotq.collector.waits import CAUSED, WAITS

    queries = {
        "compute time of each region, step by step, with the median of the ranks": REGION_STEPS,
        "waits and transfers at collectives": WAITS,
        "how long the others waited for each rank": CAUSED,
    }
    return "-- Three statements; annotq query runs one at a time.\n\n" + "\n\n".join(
        f"-- {purpose}\n{Statement(query, (job, attempt)).filled()};" for purpose, query in queries.items()
    )


def _table(report: StragglerReport, every: bool) -> pa.Table:
    """One row per finding and region, or per comparison, for the tabular formats."""
    import pyarrow as pa

    from annotq.collector.report_json import report_json

    answer = report_json(report, every=True)
    findings, evidence = answer["findings"], answer["evidence"]
    assert isinstance(findings, list) and isinstance(evidence, list)
    found = [region | {"cause": finding["cause"]} for finding in findings for region in finding["regions"]]
    causes = {(row["rank"], row["region"], row["phase"]): row for row in found}
    rows = [row | causes.get((row["rank"], row["region"], row["phase"]), {}) for row in evidence] if every else found
    hosts = report.receipt.hosts
    columns: list[tuple[str, pa.DataType]] = [
        ("job", pa.string()),
        ("rank", pa.int64()),
        ("host", pa.string()),
        ("cause", pa.string()),
        ("region", pa.string()),
        ("phase", pa.string()),
        ("ratio", pa.float64()),
        ("ratio_low", pa.float64()),
        ("ratio_high", pa.float64()),
        ("typical_ratio", pa.float64()),
        ("slowest_share", pa.float64()),
        ("q_value", pa.float64()),
        ("steps", pa.int64()),
        ("excess_ns_per_step", pa.int64()),
    ]
    facts = [{"job": report.job, "host": hosts.get(row["rank"])} for row in rows]
    return pa.Table.from_pylist([row | fact for row, fact in zip(rows, facts, strict=True)], schema=pa.schema(columns))
