"""What is asked of the store: the selection as it was meant, the questions, all rows of their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from annotq.agent.errors import EXIT_USAGE, AnnotqError
from annotq.cli.perfetto import questions
from annotq.cli.perfetto.selection import Moment, Selection

if TYPE_CHECKING:
    import pyarrow as pa

    from annotq.cli.door import AnyDoor

Ask = Callable[[str, Sequence[object]], "pa.Table"]


def ask_of(door: AnyDoor) -> Ask:
    """Answers with all rows of a question or an AnnotqError: never with a part of them."""

    def ask(sql: str, parameters: Sequence[object]) -> pa.Table:
        answer = door.ask(sql, parameters)
        if answer.truncated:
            rows = f"{answer.table.num_rows:,}"
            raise AnnotqError(
                f"The picture needs more than {rows} rows at once.", "Choose with --rank, --step or --region."
            )
        return answer.table

    return ask


def chosen(
    ask: Ask,
    job: str,
    ranks: Sequence[int],
    steps: tuple[int, int] | None,
    region: str | None,
    moments: tuple[Moment | None, Moment | None],
) -> Selection:
    """The selection in the latest attempt of the job. ranks: in order, empty for all. moments: since and until; times after
    the first GPU work become times.

    Raises AnnotqError (usage) when until is not after since, or there is no GPU work to count from.
    """
    from annotq.collector.receipt import latest_attempt

    found = Selection(
        job=job,
        attempt=latest_attempt(ask, job),
        ranks=tuple(ranks) or None,
        steps=steps,
        region=region,
    )
    zero_ns = 0
    if any(moment is not None and moment.relative for moment in moments):
        first = questions.first_work(found)
        first_ns = ask(first.sql, first.parameters)["start_ns"][0].as_py()
        if first_ns is None:
            raise AnnotqError(
                f"Job {job} has no GPU work to count from.", "Say the time in ns since the epoch.", EXIT_USAGE
            )
        zero_ns = first_ns
    since, until = (
        None if moment is None else moment.ns + zero_ns if moment.relative else moment.ns for moment in moments
    )
    if since is not None and until is not None and until <= since:
        raise AnnotqError("--until is not after --since.", "Work is drawn from --since to --until.", EXIT_USAGE)
    return replace(found, since_ns=since, until_ns=until)


def statements(ask: Ask, selection: Selection) -> str:
    """The SQL of all questions, those of a rank as they are asked of the first."""
    asked = [
        ("the ranks and their traces", questions.traces(selection)),
        ("what there is to draw", questions.overview(selection)),
        ("the steps", questions.steps(selection)),
        ("the calls of collectives", questions.collectives(selection)),
    ]
    for row in ask(asked[0][1].sql, asked[0][1].parameters).slice(0, 1).to_pylist():
        first = questions.kernels(selection, row["trace_id"], row["process_id"])
        asked.append(("the passes of the first rank through its regions", questions.regions(selection, row["rank"])))
        asked.append(("the kernels of its first trace", first))
    head = f"-- {len(asked)} statements; annotq query runs one at a time."
    return "\n\n".join([head, *(f"-- {what}\n{question.filled()};" for what, question in asked)])
