"""The `annotq` program: which commands there are. Each lives in a file of its own under commands/.

Nothing here or at the top of a command's file imports duckdb, pyarrow or numpy: `annotq --help` must be quick.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Annotated

import typer

from annotq.agent.errors import EXIT_FAILED, EXIT_OK
from annotq.cli.commands.collectives import collectives
from annotq.cli.commands.demo import demo
from annotq.cli.commands.diff import diff
from annotq.cli.commands.doctor import doctor
from annotq.cli.commands.explain import explain
from annotq.cli.commands.ingest import ingest
from annotq.cli.commands.jobs import jobs
from annotq.cli.commands.perfetto import perfetto
from annotq.cli.commands.query import query
from annotq.cli.commands.ranks import ranks
from annotq.cli.commands.regions import regions
from annotq.cli.commands.report import report
from annotq.cli.commands.run import run
from annotq.cli.commands.serve import serve
from annotq.cli.commands.ship import ship
from annotq.cli.commands.status import status
from annotq.cli.commands.stragglers import stragglers
from annotq.cli.commands.top import top
from annotq.cli.commands.views import views
from annotq.cli.errors import Commands

app = typer.Typer(
    cls=Commands,
    help="Gives the kernels of a multi-rank PyTorch job the names of your code, and says which rank is slow and where.",
    epilog="Exit codes: 0 ok, 1 failed, 2 usage, 3 finding, 4 collector unreachable, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: importing rich costs more than everything else
    pretty_exceptions_enable=False,
)

# In the order in which `annotq --help` shows them: from the first try to the last detail.
for command in (
    demo,
    run,
    ingest,
    serve,
    ship,
    query,
    views,
    jobs,
    ranks,
    regions,
    collectives,
    stragglers,
    explain,
    diff,
    report,
    perfetto,
    status,
    top,
    doctor,
):
    # What follows the name of the command that run wraps belongs to that command.
    app.command(context_settings={"allow_interspersed_args": command is not run})(command)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"annotq {version('annotq')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The console script. Ends the process with one of the exit codes of annotq.agent.errors."""
    try:
        app(prog_name="annotq")
    except SystemExit as end:
        _leave(end.code)
    _leave(EXIT_OK)


def _leave(code: object) -> None:
    """End at once: taking DuckDB, Arrow and numpy apart takes a tenth of a second and nobody needs it."""
    if isinstance(code, str):
        typer.echo(code, err=True)
        code = EXIT_FAILED
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else EXIT_OK)
