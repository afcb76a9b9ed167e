"""`annotq query`: one SELECT over the views."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from annotq.agent.errors import EXIT_USAGE, AnnotqError
from annotq.cli.errors import note
from annotq.cli.options import Format, ReadingOptions, reading_command
from annotq.cli.output import Printer
from annotq.cli.progress import working

DEFAULT_ROWS = 10_000

Sql = Annotated[str | None, typer.Argument(metavar="[SQL]", help="A SELECT, or - to read it from stdin.")]
SqlFile = Annotated[Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read the SQL from a file.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.001, metavar="SECONDS", help="Stop after this long.")]
Memory = Annotated[str, typer.Option("--memory", metavar="SIZE", help="Memory for the query on a file, such as 500MB.")]


@reading_command(without=("job", "show_sql"))
def query(
    options: ReadingOptions, sql: Sql = None, file: SqlFile = None, timeout: Timeout = 60, memory: Memory = "2GB"
) -> None:
    """Run one SELECT over the views.

    It reads the store and nothing else, and cannot change anything. 10,000 rows unless --limit says otherwise.
    """
    printer = Printer(options)
    text = _text(sql, file)
    place = options.place()
    from annotq.cli.door import open_door
    from annotq.collector.query import Limits

    limits = Limits(rows=options.limit or DEFAULT_ROWS, seconds=timeout, memory=memory)
    with open_door(place, limits) as door, working("asking"):
        answer = door.ask(text)
    if printer.format in (None, Format.TABLE) and answer.table.column_names == ["explain_key", "explain_value"]:
        printer.print_text(str(answer.table.column(1)[0]))  # a plan is a drawing, not a cell
        return
    printer.print(answer.table)
    if answer.truncated:
        shown = answer.table.num_rows  # a collector may have a lower limit
        note(f"More than {shown:,} rows; these are {shown:,} of them. Raise --limit to see more.")
    if answer.table.num_rows == 0:
        note("The query gave no rows: nothing in the store fits it. annotq status shows what is loaded.")


def _text(sql: str | None, file: Path | None) -> str:
    if (sql is None) == (file is None):
        raise AnnotqError("Give the SQL as one argument, as - with the SQL on stdin, or with -f FILE.", "", EXIT_USAGE)
    try:
        if file is not None:
            return file.read_text(encoding="utf-8")
        return sys.stdin.read() if sql == "-" else str(sql)
    except (OSError, UnicodeDecodeError) as error:
        raise AnnotqError(f"{file or 'stdin'} cannot be read as SQL: {error}.") from None
