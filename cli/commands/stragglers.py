"""`annotq stragglers`: which rank is slow, where, by how much, and how long the others wait for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from annotq.agent.errors import EXIT_FINDING, AnnotqError
from annotq.cli.errors import note
from annotq.cli.options import Format, ReadingOptions, reading_command
from annotq.cli.report import open_report
from annotq.cli.statement import Statement
from annotq.cli.straggler_text import straggler_text

if TYPE_CHECKING:
    import pyarrow as pa

    from annotq.cli.report import Report
    from annotq.collector.report import Report as StragglerReport

Every = Annotated[bool, typer.Option("--all", help="Every comparison, not only the findings.")]
Attempt = Annotated[int | None, typer.Option("--attempt", min=0, metavar="N", help="Default: the latest one.")]
FailOver = Annotated[
    float | None,
    typer.Option(
        "--fail-over", min=1.0, metavar="FACTOR", help="Exit with 3 when a finding that holds at the end is larger."
    ),
]


@reading_command(without=("limit", "time_unit"))
def stragglers(
    options: ReadingOptions, attempt: Attempt = None, every: Every = False, fail_over: FailOver = None
) -> None:
    """The straggler report of a job: verdict, what is slow and what it costs, waits at collectives, coverage.

    Each region's compute time on each rank is compared with that of the other ranks, step by step.
    """
    with open_report(options) as opened:
        job = opened.job()
        chosen = _attempt(opened, job, attempt)
        from annotq.collector.report_json import report_json
        from annotq.collector.stragglers import straggler_report

        asked: list[Statement] = []

        def ask(sql: str, parameters: Sequence[object] = ()) -> pa.Table:
            asked.append(Statement(sql, tuple(parameters)))
            return opened.ask(sql, parameters)

        report = straggler_report(ask, job, chosen)
        if options.show_sql:
            typer.echo(_sql(asked))
            return
        match options.chosen_format():
            case None | Format.TABLE:
                opened.printer.print_text(straggler_text(report, every))
            case Format.JSON:
                opened.printer.print_text(json.dumps(report_json(report, every), indent=2))
            case _:
                opened.printer.print(_table(report, every))
    if fail_over is not None:
        _fail_over(report, fail_over)


def _attempt(opened: Report, job: str, wanted: int | None) -> int:
    rows = opened.ask("SELECT DISTINCT attempt FROM process WHERE job = ? ORDER BY attempt", [job]).to_pylist()
    attempts = [int(row["attempt"]) for row in rows]
    if wanted is not None and wanted not in attempts:
        known = ", ".join(map(str, attempts))
        raise AnnotqError(f"Job {job} has no attempt {wanted}.", f"The attempts are: {known}.")
    return attempts[-1] if wanted is None else wanted


def _sql(asked: list[Statement]) -> str:
    """Every query of the report, in order; what the later ones ask for depends on what the earlier ones found."""
    head = f"-- {len(asked)} statements; annotq query runs one at a time."
    return "\n\n".join([head, *(f"{statement.filled()};" for statement in asked)])


def _fail_over(report: StragglerReport, factor: float) -> None:
    """Raises typer.Exit with 3 when a finding that holds at the end is certainly larger than the factor."""
    for number, finding in enumerate(report.findings, 1):
        surely = finding.effect if finding.effect_low is None else finding.effect_low
        if finding.holds_at_end and surely > factor:
            note(f"Finding {number} ({finding.cause}) is {finding.effect:.2f}, over {factor:g}.")
            raise typer.Exit(EXIT_FINDING)


def _table(report: StragglerReport, every: bool) -> pa.Table:
    """One row per finding and region (one per finding without regions), or per comparison, for the tabular formats."""
    import pyarrow as pa

    from annotq.collector.report_json import report_json

    answer = report_json(report, every)
    findings, evidence = answer["findings"], answer.get("evidence")
    assert isinstance(findings, list)
    found = [row for finding in findings for row in _rows(finding)]
    if isinstance(evidence, list):
        causes = {(row["rank"], row.get("region"), row.get("phase")): row for row in found}
        found = [row | causes.get((row["rank"], row["region"], row["phase"]), {}) for row in evidence]
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
        ("relative_score", pa.float64()),
        ("individual_score", pa.float64()),
        ("since_step", pa.int64()),
        ("until_step", pa.int64()),
    ]
    facts = [{"job": report.job, "host": row.get("host") or hosts.get(row["rank"])} for row in found]
    return pa.Table.from_pylist([row | fact for row, fact in zip(found, facts, strict=True)], schema=pa.schema(columns))


def _rows(finding: dict[str, Any]) -> list[dict[str, Any]]:
    about = {name: finding[name] for name in ("cause", "since_step", "until_step")}
    if finding["regions"]:
        return [region | about for region in finding["regions"]]
    whole = {"rank": finding["rank"], "host": finding["host"], "steps": finding["steps"]}
    ratios = {"ratio": finding["effect"], "ratio_low": finding["effect_low"], "ratio_high": finding["effect_high"]}
    return [about | whole | ratios | {"excess_ns_per_step": finding["cost_ns_per_step"]}]
