"""`annotq report`: the report of a job as one HTML file."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from annotq.agent.errors import EXIT_USAGE, AnnotqError
from annotq.cli.errors import note
from annotq.cli.options import Format, ReadingOptions, reading_command
from annotq.cli.output import Printer
from annotq.cli.progress import working
from annotq.cli.report import open_report

if TYPE_CHECKING:
    from annotq.cli.html.figure import Figure
    from annotq.cli.report import Report

JobArgument = Annotated[str | None, typer.Argument(metavar="JOB", help="Job. Default: the only one in the store.")]
Attempt = Annotated[int | None, typer.Option("--attempt", min=0, metavar="N", help="Default: the latest one.")]

Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="B",
        help="What changed from JOB (before) to B (after), as annotq diff JOB B. Both may be JOB@ATTEMPT or JOB@ATTEMPT:STEPS.",
    ),
]

LONGEST_NAME = 100


@reading_command(without=("format", "limit", "time_unit"))
def report(options: ReadingOptions, name: JobArgument = None, attempt: Attempt = None, against: Against = None) -> None:
    """The report of a job as one HTML file: findings, what they rest on, figures, and the SQL behind every number.

    Written to JOB.html in the current folder unless -o says otherwise; -o - writes to stdout. The file needs no network.
    """
    if name is not None and options.job is not None and name != options.job:
        raise AnnotqError(f"{name} and --job {options.job} are two jobs.", "Name one of them.", EXIT_USAGE)
    out = options.output
    if out is not None:
        _check(out)
    if against is not None:
        _compare(options, name or options.job, attempt, against)
        return
    with open_report(replace(options, job=name or options.job, output=None)) as opened:
        chosen = opened.job()
        from annotq.cli.html.questions import Questions
        from annotq.cli.html.report_page import page_of, read_page

        _check_attempt(opened, chosen, attempt)
        if out is None:
            out = Path(file_name(chosen))
            _check(out)
        with working("making the page"):
            subject, figures = read_page(Questions(opened.door), chosen, attempt)
        if options.show_sql:
            typer.echo(_sql(figures))
            return
        page = page_of(subject, figures)
    write(page, out, options)
    note(subject.verdict.receipt.sentence())


def _compare(options: ReadingOptions, before: str | None, attempt: int | None, after: str) -> None:
    """The page of two sides instead of one job."""
    if attempt is not None:
        raise AnnotqError("--attempt is about one job.", "Write JOB@ATTEMPT for each side.", EXIT_USAGE)
    with open_report(replace(options, job=None, output=None)) as opened:
        from annotq.cli.html.comparison_page import page_of, read_comparison
        from annotq.cli.html.questions import Questions

        before = before or opened.job()
        out = options.output or Path(file_name(f"{before}-against-{after}"))
        _check(out)
        with working("making the page"):
            found, figures = read_comparison(Questions(opened.door), before, after)
        if options.show_sql:
            typer.echo(_sql(figures))
            return
        page = page_of(found, figures, opened.door.name)
    write(page, out, options)
    note(f"before {found.before.title}, after {found.after.title}: {found.sentences[0]}")
    for side in (found.before, found.after):
        note(side.receipt.sentence().replace(f"coverage of {side.side.job}:", f"coverage of {side.title}:", 1))


def write(page: str, out: Path, options: ReadingOptions) -> None:
    """To the file, whole or not at all, or to stdout where it is called `-`; says where it is and how to open it."""
    if out == Path("-"):
        sys.stdout.write(page)
        return
    Printer(replace(options, output=out, format=Format.TABLE)).print_text(page)
    note(f"wrote {out} ({_size(out.stat().st_size)}), open it in a browser: {out.resolve().as_uri()}")


def file_name(job: str) -> str:
    """A file's name for the page of a job, whatever the job is called."""
    plain = re.sub(r"[^\w.+-]+", "_", job).strip("._-")[:LONGEST_NAME]
    return f"{plain or 'report'}.html"


def _check(out: Path) -> None:
    """Before minutes of work. Raises AnnotqError (usage) for a place where no file can be written."""
    if out == Path("-"):
        return
    if out.is_dir():
        raise AnnotqError(f"{out} is a folder.", f"Name a file in it: -o {out / 'report.html'}", EXIT_USAGE)
    if not out.parent.is_dir():
        raise AnnotqError(f"There is no folder {out.parent}.", f"Make it before -o {out}.", EXIT_USAGE)
    if not os.access(out.parent, os.W_OK):
        raise AnnotqError(f"Nothing can be written to {out.parent}.", "Choose another place with -o FILE.", EXIT_USAGE)


def _check_attempt(opened: Report, job: str, wanted: int | None) -> None:
    rows = opened.ask("SELECT DISTINCT attempt FROM process WHERE job = ? ORDER BY attempt", [job]).to_pylist()
    attempts = [int(row["attempt"]) for row in rows]
    if wanted is not None and wanted not in attempts:
        known = ", ".join(map(str, attempts))
        raise AnnotqError(f"Job {job} has no attempt {wanted}.", f"The attempts are: {known}.")


def _sql(figures: list[Figure]) -> str:
    """Every statement behind the page, each once, under the figure that shows its numbers first."""
    seen: set[str] = set()
    blocks = []
    for figure in figures:
        new = [text for statement in figure.statements if (text := statement.filled()) not in seen]
        seen.update(new)
        blocks += [f"-- {figure.title}\n{text};" for text in new]
    return "\n\n".join([f"-- {len(blocks)} statements; annotq query runs one at a time.", *blocks])


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
