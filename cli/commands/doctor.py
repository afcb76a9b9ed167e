"""`annotq doctor`: what will be recorded here, and why not."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from annotq.agent.errors import EXIT_FAILED, AnnotqError
from annotq.cli.options import ReadDb, chosen_place

if TYPE_CHECKING:
    from annotq.agent.doctor import Check


class Form(StrEnum):
    TEXT = "text"
    JSON = "json"


Endpoint = Annotated[
    str | None, typer.Option("--endpoint", metavar="HOST:PORT", help="The collector. Default: ANNOTQ_ENDPOINT.")
]
Spool = Annotated[Path | None, typer.Option("--spool", metavar="DIR", help="Default: ANNOTQ_SPOOL, as the ranks do.")]
FormOption = Annotated[Form, typer.Option("--format", help="For people or for programs.")]


def doctor(endpoint: Endpoint = None, spool: Spool = None, db: ReadDb = None, format: FormOption = Form.TEXT) -> None:
    """What will be recorded here, and why not, each with its fix.

    torch, driver, bindings, CUPTI, other profilers, identity, spool, collector, clock, store. For every rank of a job:
    torchrun --no-python ... annotq doctor. Exit code 1 when something fails.
    """
    checks = list(_checks(endpoint, spool, db))
    rank = os.environ.get("RANK", "")
    if format == Form.JSON:
        rows = [{"rank": int(rank) if rank.isdigit() else None, **asdict(check)} for check in checks]
        text = json.dumps(rows, indent=None if rank else 2)  # of one rank among others: one line
    else:
        prefix = f"rank {rank}  " if rank else ""
        text = "\n".join(f"{prefix}{_line(check)}" for check in checks)
    sys.stdout.write(text + "\n")  # at once, so that ranks do not write into each other's lines
    if any(check.state == "FAIL" for check in checks):
        raise typer.Exit(EXIT_FAILED)


def _line(check: Check) -> str:
    return f"{check.state:<4}  {check.what}: {check.found}" + (f" -> {check.fix}" if check.fix else "")


def _checks(endpoint: str | None, spool: Path | None, db: Path | None) -> Iterator[Check]:
    from annotq.agent.doctor import local_checks
    from annotq.agent.doctor_collector import collector_checks

    yield from local_checks(os.environ, spool)
    yield from collector_checks(endpoint, os.environ)
    place = chosen_place(db, None) if endpoint is None else endpoint
    if isinstance(place, Path):
        yield _store(place)


def _store(path: Path) -> Check:
    from annotq.agent.doctor import Check

    if not path.exists():
        return Check("ok", "store", f"{path} is not there yet: annotq ingest or annotq run makes it")
    from annotq.collector.query import Door

    try:
        with Door(path) as door:
            jobs = door.ask("SELECT count(DISTINCT job) AS jobs FROM process").table.column(0)[0]
    except AnnotqError as error:
        return Check("FAIL", "store", error.message, error.hint)
    return Check("ok", "store", f"{path}, {jobs} jobs, {path.stat().st_size / 1e6:,.1f} MB")
