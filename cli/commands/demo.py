"""`annotq demo`: the whole path on real traces that come with the package."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from annotq.cli.options import default_store
from annotq.cli.straggler_text import straggler_text

# Recorded on one H200 that four ranks share: nobody is slow in the first, rank 2 runs its MLPs four times in the second.
JOBS = {"control4": "four equal ranks", "slow4": "rank 2 runs every layers.*.mlp four times over"}

Store = Annotated[
    Path | None, typer.Option("--db", metavar="FILE", help="Store. Default: demo.duckdb in your data folder.")
]


def demo(db: Store = None) -> None:
    """Load two recorded 4-rank jobs and print the straggler report of each. Needs no GPU and no server."""
    from importlib.resources import as_file, files

    path = db or default_store().with_name("demo.duckdb")
    with as_file(files("annotq.demo_data")) as data:
        for job in JOBS:
            _load(data / job, path, job)
    for job, truth in JOBS.items():
        typer.echo(f"=== {job}: {truth} ===\n")
        typer.echo(_report(path, job) + "\n")
    where = _short(path)
    typer.echo("Next, on the same store:")
    typer.echo(f"  annotq regions --db {where} --job slow4 --sort ratio")
    typer.echo(f"  annotq collectives --db {where} --job slow4")
    typer.echo(f'  annotq query --db {where} "SELECT name, count(*) FROM kernels GROUP BY name ORDER BY 2 DESC"')


def _short(path: Path) -> str:
    """With ~ for the home folder, ready for a shell."""
    if path.is_relative_to(Path.home()):
        return f"~/{shlex.quote(str(path.relative_to(Path.home())))}"
    return shlex.quote(str(path))


def _load(folder: Path, store_path: Path, job: str) -> None:
    from annotq.agent.errors import AnnotqError
    from annotq.agent.intake import take_in
    from annotq.agent.sources import find_sources
    from annotq.collector.load import Loader
    from annotq.collector.rows import Target
    from annotq.collector.store import Store as WritingStore

    with WritingStore(store_path) as store:
        loader = Loader(store, Target(job))
        for outcome in take_in(find_sources([folder]), lambda _: loader):
            if outcome.problems:
                raise AnnotqError(f"The demo data of this installation is damaged: {outcome.problems[0]}")


def _report(path: Path, job: str) -> str:
    from annotq.collector.query import Door, Limits
    from annotq.collector.stragglers import straggler_report

    with Door(path, Limits(rows=20_000_000)) as door:
        return straggler_text(straggler_report(lambda sql, values: door.ask(sql, values).table, job, 0))
