"""`annotq views`: the views, and the columns of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from annotq.agent.errors import AnnotqError
from annotq.cli.errors import note
from annotq.cli.options import Format, FormatOption, Output, ReadingOptions
from annotq.cli.output import Printer

if TYPE_CHECKING:
    from annotq.collector.views import View

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show the columns of this view.")]


def views(name: Name = None, format: FormatOption = None, output: Output = None) -> None:
    """The views that annotq query reads, and their columns.

    With NAME its purpose, how to read it, and each column with type, unit and the meaning of NULL. Needs no store.
    """
    printer = Printer(ReadingOptions(format=format, output=output))
    from annotq.collector.views import load_views

    known = load_views()
    if name is None:
        _print_list(printer, [view for view in known if view.public])
    else:
        _print_one(printer, _find(known, name))


def _find(known: list[View], name: str) -> View:
    for view in known:
        if view.name == name:
            return view
    public = ", ".join(sorted(view.name for view in known if view.public))
    raise AnnotqError(f"There is no view {name}.", f"The views are: {public}.")


def _print_list(printer: Printer, known: list[View]) -> None:
    import pyarrow as pa

    printer.print(pa.table({"view": [view.name for view in known], "purpose": [view.purpose for view in known]}))
    note("Columns of one: annotq views NAME")


def _print_one(printer: Printer, view: View) -> None:
    import pyarrow as pa

    names = ("name", "type", "unit", "null", "meaning")
    columns = {field: [getattr(column, field) for column in view.columns] for field in names}
    prose = f"{view.name}: {view.purpose}\n\nHow to read it: {view.reading}\n"
    # Rows that a program reads stay rows: the prose then goes to stderr.
    if printer.format in (Format.TABLE, Format.MARKDOWN):
        printer.print(pa.table(columns), before=prose)
    else:
        note(prose)
        printer.print(pa.table(columns))
