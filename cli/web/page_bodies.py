"""The two pages about jobs, made by the code of `annotq report`, with a way back to the list."""

from __future__ import annotations

from annotq.cli.door import AnyDoor
from annotq.cli.html import comparison_page, report_page
from annotq.cli.html.questions import Questions
from annotq.cli.web.job_urls import Asked

HOME = "/"


def report(door: AnyDoor, asked: Asked, refresh_seconds: int | None) -> tuple[str, str]:
    """The report of a job attempt, and its verdict. Raises AnnotqError as report_page.report_page."""
    subject, figures = report_page.read_page(Questions(door), asked.job, asked.attempt)
    page = report_page.page_of(subject, figures, refresh_seconds=refresh_seconds, home=HOME)
    return page, subject.verdict.verdict


def comparison(door: AnyDoor, asked: Asked, refresh_seconds: int | None) -> str:
    """The comparison of two job attempts. Raises AnnotqError as comparison_page.comparison_page."""
    before, after = f"{asked.job}@{asked.attempt}", f"{asked.against}@{asked.against_attempt}"
    found, figures = comparison_page.read_comparison(Questions(door), before, after)
    return comparison_page.page_of(found, figures, door.name, refresh_seconds=refresh_seconds, home=HOME)
