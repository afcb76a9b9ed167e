"""`annotq run`: a training command with everything around it that records it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from annotq.agent.errors import EXIT_FAILED, EXIT_USAGE, AnnotqError
from annotq.agent.valid_text import is_valid, valid_text
from annotq.cli.errors import note, print_error
from annotq.cli.local_collector import LocalCollector
from annotq.cli.options import chosen_place
from annotq.cli.torchrun_words import run_id, spans_nodes
from annotq.cli.training_process import Signals

Command = Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run, such as torchrun train.py.")]
Db = Annotated[
    Path | None,
    typer.Option(
        "--db", metavar="FILE", help="Store of the collector that is started. Default: as the reading commands."
    ),
]
Endpoint = Annotated[
    str | None,
    typer.Option(
        "--endpoint", metavar="HOST:PORT", help="A running collector; none is started. Default: ANNOTQ_ENDPOINT."
    ),
]
JobName = Annotated[
    str | None,
    typer.Option(
        "--job", envvar="ANNOTQ_JOB", metavar="NAME", help="Default: the script's name, date, time and process."
    ),
]
Modules = Annotated[
    bool, typer.Option("--modules", help="Name regions after the model's modules, without a change to its code.")
]
Wait = Annotated[
    float, typer.Option("--wait", min=0, metavar="SECONDS", help="At the end, for the rest to reach the collector.")
]

# A collector of our own is on loopback and speaks plainly, whatever the environment says of another one.
_OF_ANOTHER = ("ANNOTQ_TLS_CA", "ANNOTQ_TLS_CERT", "ANNOTQ_TLS_KEY", "ANNOTQ_TOKEN", "ANNOTQ_TOKEN_FILE")

_SUMMARY_ROWS = 20_000_000
_SUMMARY_SECONDS = 120.0


def run(
    command: Command,
    db: Db = None,
    endpoint: Endpoint = None,
    job: JobName = None,
    modules: Modules = False,
    wait: Wait = 600.0,
) -> None:
    """Run a training command, collect what its ranks record, and say at the end how it went.

    Without a collector (--endpoint) one is started for the run, on the store. Everything annotq says goes to stderr. The
    exit code is the command's (128 + n when signal n ended it); 1 when the command did well and collecting did not.
    """
    if shutil.which(command[0]) is None:
        raise AnnotqError(
            f"There is no command {command[0]}.", "For example: annotq run -- torchrun train.py", EXIT_USAGE
        )
    place = chosen_place(db, endpoint)
    job = _checked_job(job) if job else _job_name(command)
    spool = _spool_folder(job)
    environment = os.environ | {"ANNOTQ_JOB": job, "ANNOTQ_SPOOL": str(spool)}
    if modules:
        environment["ANNOTQ_MODULES"] = "1"
    from annotq.cli.shipping_wait import refused_in

    since_ns = time.time_ns()
    _mention_earlier_runs(spool.parent)
    collector: LocalCollector | None = None
    with Signals() as signals:
        try:
            if isinstance(place, Path):
                environment = {name: value for name, value in environment.items() if name not in _OF_ANOTHER}
                collector = LocalCollector.start(place, spool, environment)
            address = collector.endpoint if collector else str(place)
            environment["ANNOTQ_ENDPOINT"] = address
            _say(f"recording job {job}; meanwhile: annotq status --endpoint {address}")
            code = signals.run(command, environment)
        except BaseException:
            if collector is not None:
                collector.stop()
            _remove_unused(spool)
            raise
        problems = _finish(spool, address, environment, wait, signals, collector)
        if collector is not None and (problem := collector.stop()) is not None and problem not in problems:
            problems.append(problem)
    problems += _summarize(place, job, since_ns, refused_in(spool))
    _clean_up(spool, problems)
    for problem in problems:
        _say(f"not collected: {problem}")
    raise typer.Exit(code or (EXIT_FAILED if problems else 0))


def _finish(
    spool: Path,
    endpoint: str,
    environment: dict[str, str],
    seconds: float,
    signals: Signals,
    collector: LocalCollector | None,
) -> list[str]:
    """Wait for the shipper; what was not collected, as sentences."""
    from annotq.cli.shipping_wait import wait_for_shipping

    if collector is not None and (problem := collector.problem()) is not None:
        return [problem]
    return wait_for_shipping(spool, endpoint, environment, seconds, signals.hurry, _say)


def _summarize(place: Path | str, job: str, since_ns: int, refused: int) -> list[str]:
    """Print the summary. A store that cannot be asked is a problem, not an end. refused: processes that were not taken."""
    from annotq.cli.door import open_door
    from annotq.cli.run_summary import run_summary, where_option
    from annotq.collector.query import Limits

    try:
        with open_door(place, Limits(rows=_SUMMARY_ROWS, seconds=_SUMMARY_SECONDS)) as door:
            lines = run_summary(door, where_option(place), job, valid_text(socket.gethostname()), since_ns, refused)
            note("\n".join(["", *lines]))
    except AnnotqError as error:
        print_error(error)
        return [error.message]
    return []


def _job_name(command: Sequence[str]) -> str:
    """The script's name with the local date and time and our process id: two runs of a script are two jobs.

    All nodes of a torchrun have one name, or are told how to get it: each runs an `annotq run` of its own.
    """
    if spans_nodes(command, os.environ):
        if (given := run_id(command, os.environ)) is not None:
            return _checked_job(given)
        _say(
            "this command runs on several nodes, and each would be a job of its own: give all of them the same --job NAME "
            "here or --rdzv-id NAME in torchrun, and one collector with --endpoint"
        )
    scripts = [word for word in command if word.endswith(".py")]
    stem = valid_text(Path(scripts[0] if scripts else command[0]).stem)
    return f"{stem}-{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"


def _checked_job(name: str) -> str:
    if not is_valid(name):
        raise AnnotqError(f"The job's name {valid_text(name)!r} is no UTF-8.", "Choose another with --job.", EXIT_USAGE)
    return name


def _spool_folder(job: str) -> Path:
    """A folder of this run below the usual spool. Raises AnnotqError when it cannot be made."""
    from annotq.agent.config import spool_base

    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", job)[:80].strip(".")
    folder = spool_base() / f"run-{name}-{os.getpid()}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise AnnotqError(f"{folder}: {error.strerror}.", "Choose another spool folder: ANNOTQ_SPOOL.") from None
    return folder


def _mention_earlier_runs(root: Path) -> None:
    """Not sent along: it may have been meant for another collector."""
    from annotq.cli.shipping_wait import left_by_earlier_runs

    for folder in left_by_earlier_runs(root):
        _say(f"an earlier run left something in {folder}: annotq ship --spool {folder} --once sends it to a collector")


def _remove_unused(spool: Path) -> None:
    from annotq.agent.spool_reader import process_folders

    if not any(process_folders(spool)):
        shutil.rmtree(spool, ignore_errors=True)


def _clean_up(spool: Path, problems: Sequence[str]) -> None:
    if not problems:
        shutil.rmtree(spool, ignore_errors=True)
        return
    _say(f"what is left is in {spool}: annotq ship --spool {spool} --once sends it to a running collector")


def _say(text: str) -> None:
    note(f"annotq: {text}")
