"""`annotq ship`: what trainers left in a spool folder to the collector."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from annotq.agent.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, AnnotqError
from annotq.cli.errors import note

Spool = Annotated[
    Path | None,
    typer.Option(
        "--spool", envvar="ANNOTQ_SPOOL", metavar="DIR", help="Default: the collector's in your state folder."
    ),
]
Endpoint = Annotated[
    str | None, typer.Option("--endpoint", envvar="ANNOTQ_ENDPOINT", metavar="HOST:PORT", help="The collector.")
]
Once = Annotated[bool, typer.Option("--once", help="Ship what is there now, then exit; 4 when there is no collector.")]
Forever = Annotated[bool, typer.Option("--forever", help="Wait for new processes without end, as a sidecar does.")]
GiveUp = Annotated[
    float,
    typer.Option("--give-up", min=0, metavar="SECONDS", help="With no trainer left and no progress, exit after this."),
]
Flush = Annotated[
    float, typer.Option("--flush", min=0, metavar="SECONDS", help="After SIGTERM, time to ship what is there.")
]
Host = Annotated[
    str | None,
    typer.Option("--host", metavar="NAME", help="What the trainers call this machine, if not as it calls itself."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only print the summary and what went wrong.")]


def ship(
    spool: Spool = None,
    endpoint: Endpoint = None,
    once: Once = False,
    forever: Forever = False,
    give_up: GiveUp = 600.0,
    flush: Flush = 10.0,
    host: Host = None,
    quiet: Quiet = False,
) -> None:
    """Send what trainers recorded into a spool folder to the collector, and delete what it acknowledged.

    Ends when the trainers are gone and all is with the collector. A second one for the same folder has nothing to do.
    """
    if once and forever:
        raise AnnotqError("--once and --forever contradict each other.", "Give one of them.", EXIT_USAGE)
    import logging
    import socket

    from annotq.agent.channel import access, as_error
    from annotq.agent.config import spool_base, spool_root
    from annotq.agent.ship import log_to_stderr, run_shipper, stop_on_signals
    from annotq.agent.ship_options import NICENESS, ShipOptions
    from annotq.agent.valid_text import valid_text

    way = access(endpoint)
    folder = spool or spool_root(endpoint=way.endpoint)
    unaddressed = _unaddressed(spool_base()) if spool is None else ""
    if once and not folder.is_dir():
        raise AnnotqError(
            f"{folder}: no such folder.",
            unaddressed or "Give the spool with --spool DIR; annotq doctor lists what waits.",
        )
    if unaddressed:
        note(unaddressed)
    named = valid_text(host or socket.gethostname())
    options = ShipOptions(
        folder,
        way,
        once,
        forever,
        give_up,
        flush_seconds=flush,
        host=named,
        niceness=NICENESS,
    )
    stop = stop_on_signals(flush)
    log_to_stderr()
    if quiet:
        logging.getLogger().setLevel(logging.WARNING)
    summary = run_shipper(options, stop)
    note(summary.sentence())
    if once and summary.unreachable is not None:
        raise as_error(summary.unreachable, options.access.endpoint)
    if stop.is_set() and summary.left:
        raise typer.Exit(EXIT_INTERRUPTED)
    if summary.refused or (once and summary.gave_up):
        raise typer.Exit(EXIT_FAILED)


def _unaddressed(base: Path) -> str:
    """What to say of ranks that were recorded while no collector was named; empty when there are none.

    Not sent along: the user says which collector they are for.
    """
    from annotq.agent.spool_reader import ProcessFolder, process_folders

    waiting = [
        found
        for found in process_folders(base)
        if isinstance(found, ProcessFolder) and not found.shipped() and found.refused() is None
    ]
    if not waiting:
        return ""
    ranks = "1 rank was" if len(waiting) == 1 else f"{len(waiting)} ranks were"
    return f"{ranks} recorded without a collector: annotq ship --spool {base} --once sends that."
