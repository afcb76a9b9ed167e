"""`annotq top`: a running job on one screen, refreshed: ranks, steps, who is behind, who waits, who is gone."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from annotq.cli.options import ReadingOptions, reading_command
from annotq.cli.rank_ranges import RankRanges, read_ranges
from annotq.cli.top.order import Order

if TYPE_CHECKING:
    from annotq.cli.top.view import View
    from annotq.cli.top.watch import Watch

JobToWatch = Annotated[
    str | None, typer.Option("--job", metavar="NAME", help="Job. Default: the one that gave the last sign of life.")
]
Interval = Annotated[float, typer.Option("--interval", min=0.2, max=3600, metavar="SECONDS", help="Between refreshes.")]
Once = Annotated[bool, typer.Option("--once", help="Look once, print the table of all ranks, and exit.")]
Json = Annotated[
    bool, typer.Option("--json", help="A JSON object per refresh and line (docs/top.md); with --once just one.")
]
Sort = Annotated[Order, typer.Option("--sort", help="Order of the ranks.")]
Backwards = Annotated[bool, typer.Option("--reverse", help="The order the other way round.")]

# Of the table that goes into a file or a pipe, unless COLUMNS says otherwise.
FILE_WIDTH = 120


@reading_command(without=("job", "format", "output", "limit", "time_unit"))
def top(
    options: ReadingOptions,
    job: JobToWatch = None,
    interval: Interval = 2.0,
    once: Once = False,
    as_json: Json = False,
    sort: Sort = Order.WORST,
    reverse: Backwards = False,
    rank: RankRanges = None,
) -> None:
    """A running job on one screen: each rank's step, step time, slowest region, waits and last sign of life; the verdict.

    Keys: q quits, s sorts, p pauses, / chooses ranks, ? explains. Without a terminal one line per refresh with the worst
    ranks. A store file is shown, too, as it is.
    """
    ranges = read_ranges(rank or [])
    place_asked = options.place()
    from annotq.cli.report import ANALYSIS_ROWS
    from annotq.cli.top.place import Place
    from annotq.cli.top.view import View
    from annotq.cli.top.watch import Watch
    from annotq.collector.query import Limits

    view = View(sort, reverse, ranges)
    with Place(place_asked, Limits(rows=ANALYSIS_ROWS, seconds=120)) as place:
        watch = Watch(place, job)
        if options.show_sql:
            from annotq.cli.top.sql_text import sql_text

            typer.echo(sql_text(place, watch))
        elif once or as_json or not _can_draw():
            from annotq.cli.top.plain import run_plain

            run_plain(watch, view, interval, once, as_json, shutil.get_terminal_size((FILE_WIDTH, 24)).columns)
        else:
            _draw(watch, view, interval)


def _can_draw() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "")


def _draw(watch: Watch, view: View, interval: float) -> None:
    from annotq.cli.top.refresher import Refresher
    from annotq.cli.top.terminal import Terminal

    ended_by = Terminal(Refresher(watch, interval), view).run()
    if ended_by == signal.SIGINT:
        raise KeyboardInterrupt
    if ended_by is not None:
        # The way of this signal, as if it had not been caught to give the terminal back.
        signal.signal(ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)
