"""`annotq report A --against B`: one page with what changed from A to B, the largest effect first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

from markupsafe import Markup

from annotq.cli.html.comparison_changes import changes_figure, table_figure
from annotq.cli.html.comparison_parts import parts_figure
from annotq.cli.html.comparison_provenance import provenance_figure
from annotq.cli.html.comparison_sentences import badge, cautions, sentences
from annotq.cli.html.comparison_sides import Compared, both_sides
from annotq.cli.html.comparison_steps import step_figure
from annotq.cli.html.document import Link, document
from annotq.cli.html.figure import Figure
from annotq.cli.html.questions import Questions
from annotq.cli.html.rendering import render
from annotq.collector.diff import Change, changes
from annotq.collector.diff_sides import Key, read_side
from annotq.collector.shift import inflation_of

if TYPE_CHECKING:
    from annotq.cli.door import AnyDoor

# What the navigation calls the figures.
LINKS = {
    "sides": "Sides",
    "step": "Step time",
    "regions": "Regions",
    "parts": "Parts of a step",
    "stragglers": "Stragglers",
    "all": "Table",
}


@dataclass(frozen=True)
class Comparison:
    """Both sides, and what differs, the largest difference first. inflation: as the intervals were stretched by."""

    before: Compared
    after: Compared
    rows: tuple[Change[Key], ...]
    inflation: float

    @property
    def sentences(self) -> list[str]:
        """What changed, at most five; the first is about the step."""
        return sentences(self.before, self.after, self.rows)


def comparison_page(door: AnyDoor, before: str, after: str, *, refresh_seconds: int | None = None) -> str:
    """The page. before, after: JOB, JOB@ATTEMPT or JOB@ATTEMPT:STEPS, as `annotq diff` takes them.

    Raises AnnotqError for a job or attempt that is not there, and as the door does.
    """
    found, figures = read_comparison(Questions(door), before, after)
    return page_of(found, figures, door.name, refresh_seconds=refresh_seconds)


def read_comparison(questions: Questions, before: str, after: str) -> tuple[Comparison, list[Figure]]:
    """Both sides and the figures in the order of the page: everything that is asked. Raises AnnotqError as comparison_page."""
    first, second = (read_side(questions.ask, text) for text in (before, after))
    a, b = both_sides(questions, first, second)
    both = [key for key in a.series if key in b.series]
    # As changes() takes it, to be written into the SQL that gives the same intervals.
    inflation = max(inflation_of(side.series[key].median_ns for key in both) for side in (a, b)) if both else 1.0
    rows = tuple(changes(a.series, b.series))
    figures = [
        provenance_figure(a, b),
        step_figure(a, b, inflation),
        changes_figure(a, b, rows, inflation),
        parts_figure(a, b),
        _findings_figure(a, b),
        table_figure(a, b, rows, inflation),
    ]
    return Comparison(a, b, rows, inflation), figures


def page_of(
    found: Comparison,
    figures: list[Figure],
    source: str,
    *,
    refresh_seconds: int | None = None,
    home: str | None = None,
) -> str:
    """The document around the figures. source: what was asked, as the door calls itself. home: the page that lists all jobs."""
    before, after = found.before, found.after
    word, colour = badge(found.rows, before.side == after.side)
    head = render(
        "comparison_head.html",
        word=word,
        colour=colour,
        sentences=found.sentences,
        cautions=cautions(before, after),
    )
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return document(
        f"{before.title} → {after.title}: annotq comparison",
        Markup("\n").join([head, *(figure.html() for figure in figures)]),
        heading=f"{before.title} → {after.title}",
        lead=f"Before: {before.title}. After: {after.title}. Made {now} by annotq {version('annotq')} from {source}.",
        links=[Link("Changes", "#changed"), *(Link(LINKS[figure.anchor], f"#{figure.anchor}") for figure in figures)],
        refresh_seconds=refresh_seconds,
        home=home,
        styles=("page.css", "comparison.css"),
    )


def _findings_figure(before: Compared, after: Compared) -> Figure:
    lead = "What annotq stragglers says of each side by itself: about the ranks of one run, not about the change between runs."
    # Two windows of one attempt have one verdict.
    sides = [("Before and after", before)] if after.judged is before.judged else [("Before", before), ("After", after)]
    body = render("comparison_findings.html", sides=sides)
    statements = [statement for _, side in sides for statement in side.judged.statements]
    return Figure("stragglers", "Stragglers on each side", lead, body, statements)
