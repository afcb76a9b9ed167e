"""The report of one job as a page: findings, what they rest on, the figures, and the SQL behind all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from annotq.cli.html import (
    findings,
    last_to_arrive,
    provenance,
    rank_regions,
    rank_steps,
    region_spread,
    region_table,
    step_time,
)
from annotq.cli.html.document import Link, document
from annotq.cli.html.questions import Questions
from annotq.cli.html.subject import Subject, read_subject

if TYPE_CHECKING:
    from annotq.cli.door import AnyDoor
    from annotq.cli.html.figure import Figure

# In the order of the page, with what the navigation calls them.
FIGURES = (
    (findings, "Findings"),
    (provenance, "Basis"),
    (rank_steps, "Steps"),
    (rank_regions, "Ranks by region"),
    (region_spread, "Spread"),
    (step_time, "Step time"),
    (last_to_arrive, "Collectives"),
    (region_table, "Regions"),
)


def report_page(door: AnyDoor, job: str, attempt: int | None = None, *, refresh_seconds: int | None = None) -> str:
    """The whole HTML document about one attempt of a job (None: the latest one).

    refresh_seconds: the page loads itself again so often, for a job that is running.
    Raises AnnotqError as Door.ask does.
    """
    subject, figures = read_page(Questions(door), job, attempt)
    return page_of(subject, figures, refresh_seconds=refresh_seconds)


def read_page(questions: Questions, job: str, attempt: int | None = None) -> tuple[Subject, list[Figure]]:
    """The attempt (None: the latest one), judged, and all figures in the order of the page: everything that is asked."""
    from annotq.collector.receipt import latest_attempt

    subject = read_subject(questions, job, latest_attempt(questions.ask, job) if attempt is None else attempt)
    return subject, [module.figure(subject) for module, _ in FIGURES]


def page_of(
    subject: Subject, figures: list[Figure], *, refresh_seconds: int | None = None, home: str | None = None
) -> str:
    """The document around the figures. home: the page that lists all jobs, where there is one."""
    return document(
        f"{subject.job}: annotq report",
        Markup("\n").join(figure.html() for figure in figures),
        heading=subject.job,
        lead=_lead(subject),
        links=[Link(text, f"#{module.ANCHOR}") for module, text in FIGURES],
        refresh_seconds=refresh_seconds,
        home=home,
    )


def _lead(subject: Subject) -> str:
    receipt = subject.verdict.receipt
    of = f" of {receipt.ranks_expected:,}" if receipt.ranks_expected else ""
    parts = [
        f"{len(receipt.ranks_seen):,}{of} ranks with a usable trace",
        f"{subject.verdict.steps:,} steps compared",
        f"{receipt.gpu_events:,} GPU events",
    ]
    return ", ".join(parts)
