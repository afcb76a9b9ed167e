"""`annotq diff`: what got slower or faster from one job, attempt or window to another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from annotq.agent.errors import EXIT_FINDING, EXIT_USAGE, AnnotqError
from annotq.cli.errors import note
from annotq.cli.options import Format, ReadingOptions, reading_command
from annotq.cli.report import Report, open_report
from annotq.cli.statement import Statement

if TYPE_CHECKING:
    import pyarrow as pa

    from annotq.collector.diff import Change
    from annotq.collector.diff_sides import Key, Node, Side

Before = Annotated[
    str, typer.Argument(metavar="A", help="What it was: JOB, JOB@ATTEMPT or JOB@ATTEMPT:STEPS (0-9,20-29).")
]
After = Annotated[str, typer.Argument(metavar="B", help="What it is now, written the same way.")]
Nodes = Annotated[bool, typer.Option("--nodes", help="Node by node, where both sides ran the same graph.")]
FailOver = Annotated[
    str | None,
    typer.Option(
        "--fail-over",
        metavar="PERCENT",
        help="Exit with 3 when the step, or a region of 1 % of it or more, certainly got slower by more than this (5%).",
    ),
]

TERMINAL_ROWS = 50


@reading_command(without=("job",))
def diff(options: ReadingOptions, a: Before, b: After, nodes: Nodes = False, fail_over: FailOver = None) -> None:
    """What got slower or faster, in time per step: regions of both sides, new and vanished ones.

    A time is the median over the steps of the median of the ranks (slowest: of the slowest rank). Computing leaves
    communication out, transfers leave the wait out; the row `step` holds everything. low to high is the 95 % interval of the
    difference: what the steps of the two sides can tell apart.
    """
    limit = None if fail_over is None else _limit(fail_over)
    with open_report(options) as report:
        from annotq.collector.diff import changes, over_limit
        from annotq.collector.diff_sides import check_steps, node_series, read_side, region_series

        sides = [read_side(report.ask, text) for text in (a, b)]
        if options.show_sql:
            typer.echo(_sql(sides, nodes))
            return
        for side in sides:
            check_steps(report.ask, side)
        regions = changes(*(region_series(report.ask, side) for side in sides))
        shown: pa.Table = _region_table(regions)
        if nodes:
            shown = _node_table(changes(*(node_series(report.ask, side) for side in sides)))
        _print(report, _limited(report, shown), _summary(sides, regions))
        if shown.num_rows == 0:
            note(
                f"Neither {sides[0].title} nor {sides[1].title} has anything to compare. annotq status shows what is loaded."
            )
        for side in sides:
            note(_coverage(report, side))
    step = next((row for row in regions if row.key[0] == "step"), None)
    if limit is not None:
        _fail(over_limit(regions, step.a_ns or 0 if step else 0, limit), limit)


def _limit(text: str) -> float:
    """ "5%" as 0.05. Raises AnnotqError (usage) for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if match is None:
        raise AnnotqError(f"--fail-over {text} is no percentage.", "Write it as 5%.", EXIT_USAGE)
    return float(match[1]) / 100


def _fail(over: list[Change[Key]], limit: float) -> None:
    """Says what is over the limit and raises typer.Exit with 3; does nothing where nothing is."""
    for row in over:
        assert row.ratio is not None and row.surely_ns is not None and row.a_ns is not None
        surely = row.surely_ns / row.a_ns
        note(f"{_name(row.key)} got slower by {row.ratio - 1:.1%}, surely by {surely:.1%}; the limit is {limit:.1%}.")
    if over:
        raise typer.Exit(EXIT_FINDING)


def _name(key: Key) -> str:
    return " ".join(filter(None, key))


def _summary(sides: list[Side], rows: list[Change[Key]]) -> str:
    """One or two lines before the table: the step of both sides, and how many regions changed."""
    from annotq.cli.time_columns import duration_text

    text = f"{sides[0].title} -> {sides[1].title}"
    step = next((row for row in rows if row.key[0] == "step"), None)
    if step is not None and step.ratio is not None:
        text += f": a step took {duration_text(step.a_ns)}, takes {duration_text(step.b_ns)} ({step.ratio - 1:+.1%}"
        if step.low_ns is not None and step.high_ns is not None and step.a_ns:
            text += f", 95 % interval {step.low_ns / step.a_ns:+.1%} to {step.high_ns / step.a_ns:+.1%}"
        text += f"; {step.steps_a} and {step.steps_b} steps)"
    counts = {word: sum(row.change == word for row in rows if row.key[0] != "step") for word in CHANGES}
    return f"{text}\n{', '.join(f'{count} {word}' for word, count in counts.items() if count)}\n"


CHANGES = ("slower", "slower on some ranks", "faster", "faster on some ranks", "same", "unsure", "new", "vanished")


def _print(report: Report, table: pa.Table, before: str) -> None:
    """The rows; what stands before them goes to stderr where a program reads the rows."""
    if report.printer.format in (Format.TABLE, Format.MARKDOWN):
        report.printer.print(table, before=before)
    else:
        note(before)
        report.printer.print(table)


def _limited(report: Report, table: pa.Table) -> pa.Table:
    limit = report.options.limit or (TERMINAL_ROWS if report.printer.for_terminal else table.num_rows)
    if table.num_rows > limit:
        note(
            f"{table.num_rows:,} rows; these are the {limit:,} with the largest difference. Raise --limit to see more."
        )
    return table.slice(0, limit)


def _region_table(rows: list[Change[Key]]) -> pa.Table:
    """The step first, then the largest difference first."""
    ordered = sorted(rows, key=lambda row: row.key[0] != "step")
    names: list[dict[str, object]] = [dict(zip(("part", "region", "phase"), row.key, strict=True)) for row in ordered]
    return _table(names, ordered, ("part", "region", "phase"))


def _node_table(rows: list[Change[Node]]) -> pa.Table:
    names = [{**vars(row.key), "fingerprint": row.key.fingerprint[:12]} for row in rows]
    return _table(names, rows, ("fingerprint", "node_index", "name", "region", "phase"))


def _table(
    names: list[dict[str, object]], rows: Sequence[Change[Key] | Change[Node]], columns: tuple[str, ...]
) -> pa.Table:
    import pyarrow as pa

    kinds: dict[str, pa.DataType] = {"node_index": pa.int64()}
    schema: list[tuple[str, pa.DataType]] = [(column, kinds.get(column, pa.string())) for column in columns]
    schema.append(("change", pa.string()))
    times = ("a_ns", "b_ns", "difference_ns", "low_ns", "high_ns", "slowest_a_ns", "slowest_b_ns")
    schema += [(column, pa.int64()) for column in times]
    schema += [("ratio", pa.float64()), ("steps_a", pa.int64()), ("steps_b", pa.int64())]
    cells = [
        name
        | {"change": row.change, "ratio": row.ratio, "steps_a": row.steps_a, "steps_b": row.steps_b}
        | {column: None if (value := getattr(row, column)) is None else round(value) for column in times}
        for name, row in zip(names, rows, strict=True)
    ]
    return pa.Table.from_pylist(cells, schema=pa.schema(schema))


def _coverage(report: Report, side: Side) -> str:
    from annotq.collector.receipt import receipt

    sentence = receipt(report.ask, side.job, side.attempt).sentence()
    return sentence.replace(f"coverage of {side.job}:", f"coverage of {side.title}:", 1)


def _sql(sides: list[Side], nodes: bool) -> str:
    from annotq.collector.diff_sides import NODES, PERIODS
    from annotq.collector.waits import COLLECTIVE_STEPS
    from annotq.collector.work import REGION_CODES, REGION_WORK

    queries = {
        "steps": PERIODS,
        "compute time by rank, step and region": REGION_WORK,
        "the regions' numbers": REGION_CODES,
        "collectives": COLLECTIVE_STEPS,
    }
    if nodes:
        queries = {"kernels of each graph node": NODES}
    parts = []
    for side in sides:
        for purpose, query in queries.items():
            about = (side.job, side.attempt) * (query.count("?") // 2)
            parts.append(f"-- {side.title}: {purpose}, all steps\n{Statement(query, about).filled()};")
    return f"-- {len(parts)} statements; annotq query runs one at a time.\n\n" + "\n\n".join(parts)
