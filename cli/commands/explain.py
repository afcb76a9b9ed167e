"""`annotq explain`: the numbers behind a finding of `annotq stragglers`, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from annotq.agent.errors import EXIT_USAGE, AnnotqError
from annotq.cli.errors import note
from annotq.cli.options import Format, ReadingOptions, reading_command
from annotq.cli.report import Report, open_report
from annotq.cli.statement import Statement

if TYPE_CHECKING:
    import pyarrow as pa

    from annotq.collector.finding_rows import Question
    from annotq.collector.findings import Finding

Number = Annotated[
    int, typer.Argument(metavar="FINDING", min=1, help="Its number in annotq stragglers, 1 for the first.")
]
Attempt = Annotated[int | None, typer.Option("--attempt", min=0, metavar="N", help="Default: the latest one.")]
Step = Annotated[int | None, typer.Option("--step", metavar="N", help="Look into this step. Default: the worst one.")]
Kernels = Annotated[
    bool, typer.Option("--kernels", help="The rows of that one step as the answer, in formats that hold one table.")
]


@reading_command()
def explain(
    options: ReadingOptions, number: Number, attempt: Attempt = None, step: Step = None, kernels: Kernels = False
) -> None:
    """The numbers behind a finding: every step, then the kernels of one step beside those of a usual rank.

    In each step the rank's time, the median of the ranks, their ratio, and the rank's place (1 is the slowest). The usual
    rank is the one nearest to the median in that step.
    """
    with open_report(options) as report:
        from annotq.collector.explain import explain_finding
        from annotq.collector.finding_rows import step_rows

        job = report.job()
        finding, chosen = _finding(report, job, attempt, number)
        first = step_rows(job, chosen, finding)
        steps = report.ask(first.sql, first.parameters)
        second = _detail(report, job, chosen, finding, steps, step)
        if options.show_sql:
            typer.echo(_sql([first, second]))
            return
        detail = report.ask(second.sql, second.parameters) if second else None
        if kernels:
            if second is None or detail is None:
                raise AnnotqError(
                    "There is no rank to look into beside the others.", "Leave out --kernels.", EXIT_USAGE
                )
            _print(report, detail, second.purpose)
            return
        _print(report, steps, f"{explain_finding(finding)}\n\n{first.purpose}")
        if second is not None and detail is not None:
            if report.printer.format in (Format.TABLE, Format.MARKDOWN) and options.output is None:
                typer.echo()
                _print(report, detail, second.purpose)
            else:
                note(f"{second.purpose}: add --kernels")
        report.note_coverage(job)


def _finding(report: Report, job: str, wanted: int | None, number: int) -> tuple[Finding, int]:
    """The finding and the attempt it is about. Raises AnnotqError when the report has no finding of that number."""
    from annotq.collector.receipt import latest_attempt
    from annotq.collector.stragglers import straggler_report

    attempt = latest_attempt(report.ask, job) if wanted is None else wanted
    findings = straggler_report(report.ask, job, attempt).findings
    if number > len(findings):
        known = {0: "none", 1: "one"}.get(len(findings), str(len(findings)))
        raise AnnotqError(
            f"{job} has no finding {number}: there is {known}.", f"See them: annotq stragglers --job {job}"
        )
    return findings[number - 1], attempt


def _detail(
    report: Report, job: str, attempt: int, finding: Finding, steps: pa.Table, wanted: int | None
) -> Question | None:
    """What to ask about one step: --step, or the one in which the finding costs most; None where no rank is concerned."""
    from annotq.collector.finding_rows import detail_rows, usual_rank

    rows = [row for row in steps.to_pylist() if row["rank"] is not None and row["time_ns"] is not None]
    inside = [row for row in rows if wanted is None or row["step"] == wanted]
    if wanted is not None and not any(row["step"] == wanted for row in steps.to_pylist()):
        raise AnnotqError(f"Step {wanted} is none of those compared.", "Leave out --step to see them.", EXIT_USAGE)
    if not inside:
        return None
    worst = max(inside, key=lambda row: (row["time_ns"] - (row["median_ns"] or 0), -row["step"]))
    usual = usual_rank(report.ask, job, attempt, finding, worst["step"], worst["rank"])
    return None if usual is None else detail_rows(job, attempt, finding, worst["step"], worst["rank"], usual)


def _print(report: Report, table: pa.Table, before: str) -> None:
    """The rows; what stands before them goes to stderr where a program reads the rows."""
    table = _limited(report, table)
    if report.printer.format in (Format.TABLE, Format.MARKDOWN):
        report.printer.print(table, before=before + "\n")
    else:
        note(before)
        report.printer.print(table)


def _limited(report: Report, table: pa.Table) -> pa.Table:
    limit = report.options.limit
    if limit is None or table.num_rows <= limit:
        return table
    note(f"{table.num_rows:,} rows; these are the first {limit:,}. Raise --limit to see more.")
    return table.slice(0, limit)


def _sql(questions: list[Question | None]) -> str:
    asked = [question for question in questions if question is not None]
    head = f"-- {len(asked)} statements; annotq query runs one at a time."
    return "\n\n".join([head, *(f"-- {one.purpose}\n{Statement(one.sql, one.parameters).filled()};" for one in asked)])
