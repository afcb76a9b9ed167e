"""One run of a reading command: open the store or a collector, choose the job, ask, print, say what the numbers rest on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from annotq.agent.errors import AnnotqError
from annotq.cli.coverage_line import coverage_line
from annotq.cli.errors import note
from annotq.cli.options import ReadingOptions
from annotq.cli.output import Printer
from annotq.cli.progress import working
from annotq.cli.statement import Statement

if TYPE_CHECKING:
    import pyarrow as pa

    from annotq.cli.door import AnyDoor

# A report for a program is whole up to here; one for a person stops where nobody reads on.
MACHINE_ROWS = 1_000_000
TERMINAL_ROWS = 1_000

# What an analysis may read: 1,024 ranks x 50 steps x 200 regions, and twice that.
ANALYSIS_ROWS = 20_000_000

REPORT_SECONDS = 600.0


@dataclass(frozen=True)
class Report:
    """An open store and where the answer goes. `door` is for commands that need more than one table."""

    door: AnyDoor
    options: ReadingOptions
    printer: Printer

    def show(self, statement: Statement, empty: str) -> bool:
        """Ask and print. True when there were rows; otherwise `empty` says on stderr what is missing and why.

        With --show-sql the statement is printed instead, and the answer is False.
        """
        if self.options.show_sql:
            typer.echo(statement.filled())
            return False
        limit = self.options.limit or (TERMINAL_ROWS if self.printer.for_terminal else MACHINE_ROWS)
        with working("asking"):
            answer = self.door.ask(statement.sql, statement.parameters, limits=replace(self.door.limits, rows=limit))
        self.printer.print(answer.table)
        if answer.truncated:
            shown = answer.table.num_rows  # a collector may have a lower limit
            note(f"More than {shown:,} rows; these are the first {shown:,}. Raise --limit to see more.")
        if answer.table.num_rows == 0:
            note(empty)
        return answer.table.num_rows > 0

    def ask(self, sql: str, parameters: Sequence[object] = ()) -> pa.Table:
        """All rows of one SELECT, for commands that compute on them.

        Raises AnnotqError as Door.ask does, and when there are more rows than a report may take: never a part of them.
        """
        with working("asking"):
            answer = self.door.ask(sql, parameters)
        if answer.truncated:
            rows = f"{answer.table.num_rows:,}"  # a collector may have a lower limit than the one asked for
            raise AnnotqError(f"The report needs more than {rows} rows.", "Choose a job with --job.")
        return answer.table

    def jobs(self) -> list[str]:
        """Names of all jobs in the store, sorted; with --job only that one. Raises AnnotqError when it is not there."""
        # Not from the view jobs: it counts the steps of all events, seconds in a large store.
        rows = self.ask("SELECT DISTINCT job FROM process ORDER BY job").column(0).to_pylist()
        names = [str(name) for name in rows]
        wanted = self.options.job
        if wanted is None:
            return names
        if wanted not in names:
            raise AnnotqError(f"There is no job {wanted} in {self.door.name}.", _known(names))
        return [wanted]

    def job(self) -> str:
        """The one job this report is about. Raises AnnotqError when there is none, or several and no --job."""
        names = self.jobs()
        if not names:
            raise AnnotqError(f"There is no job in {self.door.name}.", "Load one: annotq ingest DIR")
        if len(names) > 1:
            raise AnnotqError(f"{self.door.name} holds {len(names)} jobs.", f"Choose with --job. {_known(names)}")
        return names[0]

    def note_coverage(self, *jobs: str) -> None:
        """What the numbers rest on, one line per job on stderr. Nothing with --show-sql."""
        if not self.options.show_sql:
            for job in jobs:
                note(coverage_line(self.ask, job))


@contextmanager
def open_report(options: ReadingOptions) -> Iterator[Report]:
    """Opens the store, or the way to the collector. What is wrong with the output options is said before anything is read.

    Raises AnnotqError as open_door and Printer do.
    """
    printer = Printer(options)
    place = options.place()
    from annotq.cli.door import open_door
    from annotq.collector.query import Limits

    with open_door(place, Limits(rows=ANALYSIS_ROWS, seconds=REPORT_SECONDS)) as door:
        yield Report(door, options, printer)


def _known(names: list[str]) -> str:
    return f"The jobs are: {', '.join(names)}." if names else "The store is empty: annotq ingest DIR"
