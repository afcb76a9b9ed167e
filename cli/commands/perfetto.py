"""`annotq perfetto`: a job as a trace for the Perfetto page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from annotq.agent.errors import EXIT_USAGE, AnnotqError
from annotq.cli.errors import note
from annotq.cli.options import ReadingOptions, RegionGlob, reading_command
from annotq.cli.rank_ranges import RankRanges, read_ranks
from annotq.cli.report import Report, open_report

if TYPE_CHECKING:
    from annotq.cli.perfetto.jobs import Rank
    from annotq.cli.perfetto.selection import Selection

# What the page in a browser handles well, on the safe side; Trace Processor on a machine of its own takes many times that.
MANY_KERNELS = 2_000_000

Name = Annotated[str | None, typer.Argument(metavar="JOB", help="Job. Default: the only one in the store.")]
Step = Annotated[str | None, typer.Option("--step", metavar="N|A-B", help="Only this step, or these.")]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", help="Work from then on: 1.5s after the first GPU work, or ns since the epoch."
    ),
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Work before that time.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")]
Tar = Annotated[
    bool,
    typer.Option("--tar", help="Pack the ranks' original traces with their clock offsets instead: for large jobs."),
]
Open = Annotated[
    bool, typer.Option("--open", help="Open it in ui.perfetto.dev, which fetches it from this machine: 127.0.0.1:9001.")
]


@reading_command(without=("format", "limit", "time_unit", "output"))
def perfetto(
    options: ReadingOptions,
    name: Name = None,
    rank: RankRanges = None,
    step: Step = None,
    region: RegionGlob = None,
    since: Since = None,
    until: Until = None,
    tar: Tar = False,
    open_: Open = False,
    output: Output = None,
) -> None:
    """A job as a trace for the Perfetto page (ui.perfetto.dev).

    A process per rank on the common clock: steps, counters, and per stream the kernels under their regions, with wait and
    transfer of collectives, and arrows between the ranks of each.
    """
    from annotq.cli.perfetto.asking import chosen, statements
    from annotq.cli.perfetto.selection import parse_moment, parse_steps

    target = None if options.show_sql else _target(output, tar)
    ranks, steps, moments = (
        read_ranks(rank or []),
        parse_steps(step),
        (parse_moment("--since", since), parse_moment("--until", until)),
    )
    if tar and (steps or region or any(moments)):
        raise AnnotqError("--tar packs whole traces.", "Choose with --rank only, or leave out --tar.", EXIT_USAGE)
    with open_report(replace(options, job=_job(options.job, name))) as report:
        job = report.job()
        selection = chosen(report.ask, job, ranks, steps, region, moments)
        if options.show_sql:
            typer.echo(statements(report.ask, selection))
            return
        assert target is not None
        if open_:
            _write_and_open(report, selection, target, tar)
        else:
            _write(report, selection, target, tar)
        report.note_coverage(job)


def _write_and_open(report: Report, selection: Selection, target: Path, tar: bool) -> None:
    from annotq.cli.perfetto.page import Page

    with Page(target) as page:  # before the work: a port that is taken is said at once
        _write(report, selection, target, tar)
        note(page.open())
        note(page.serve())


def _write(report: Report, selection: Selection, target: Path, tar: bool) -> None:
    from annotq.cli.perfetto.asking import ask_of
    from annotq.cli.perfetto.export import planned
    from annotq.cli.progress import working
    from annotq.collector.receipt import ranges

    with working("asking"):
        ranks = planned(ask_of(report.door), selection, work=not tar)
    if not ranks:
        raise AnnotqError(
            f"There is no usable trace of job {selection.job} in this selection: {selection}.",
            "annotq ranks shows which ranks there are.",
        )
    missing = tuple(sorted(set(selection.ranks or ()) - {rank.rank for rank in ranks}))
    if missing:
        note(f"No usable trace of rank {ranges(missing)}.")
    if tar:
        from annotq.cli.perfetto.archive import pack

        with working("packing"):
            lines = pack(selection, ranks, target)
        for line in lines:
            note(line)
        return
    _write_trace(report, selection, target, ranks)


def _write_trace(report: Report, selection: Selection, target: Path, ranks: list[Rank]) -> None:
    from annotq.cli.perfetto.asking import ask_of
    from annotq.cli.perfetto.export import write_trace
    from annotq.cli.perfetto.left_out import counted, sentences
    from annotq.cli.progress import working
    from annotq.cli.whole_file import whole_file

    kernels = sum(work.kernels for rank in ranks for work in rank.work)
    if kernels > MANY_KERNELS:
        note(
            f"{kernels:,} kernels; the page in a browser handles about {MANY_KERNELS:,}. Choose with --rank, --step or "
            "--region, or pack the original traces with --tar."
        )
    with working("writing"), whole_file(target) as beside, beside.open("w+b") as file:
        summary = write_trace(ask_of(report.door), selection, ranks, file)
    size = target.stat().st_size
    large = f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size / 1e3:,.0f} kB"
    held = [counted(summary.ranks, "rank"), counted(summary.kernels, "kernel"), counted(summary.flows, "collective")]
    note(f"wrote {target} ({large}: {', '.join(held)} with flows); open it in https://ui.perfetto.dev")
    for sentence in sentences(summary):
        note(sentence)


def _target(output: Path | None, tar: bool) -> Path:
    """Where to write. Raises AnnotqError (usage) when nothing or an impossible place was said."""
    suffix = ".tar" if tar else ".pftrace"
    if output is None:
        raise AnnotqError("Where to?", f"Add -o FILE{suffix}.", EXIT_USAGE)
    if output.is_dir():
        raise AnnotqError(f"{output} is a folder.", f"Name a file in it: -o {output}/FILE{suffix}", EXIT_USAGE)
    if output.exists() and not output.is_file():
        raise AnnotqError(
            f"{output} is no regular file.", f"Name a file that may be replaced: -o FILE{suffix}", EXIT_USAGE
        )
    if not output.parent.is_dir():
        raise AnnotqError(f"There is no folder {output.parent}.", f"Make it before -o {output}.", EXIT_USAGE)
    return output


def _job(option: str | None, argument: str | None) -> str | None:
    if option is not None and argument is not None and option != argument:
        raise AnnotqError(f"Two jobs: {argument} and --job {option}.", "Say one.", EXIT_USAGE)
    return argument if argument is not None else option
