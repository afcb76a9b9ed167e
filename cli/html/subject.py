"""What a report page is about: one attempt of a job, its straggler report, and the door that the figures ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from annotq.cli.html.questions import Questions
from annotq.cli.statement import Statement

if TYPE_CHECKING:
    from annotq.collector.report import Report


@dataclass(frozen=True)
class Subject:
    """verdict: the straggler report of the attempt; verdict_queries: the statements that it asked, in order."""

    questions: Questions
    job: str
    attempt: int
    verdict: Report
    verdict_queries: tuple[Statement, ...]

    @property
    def hosts(self) -> dict[int, str | None]:
        """By rank."""
        return self.verdict.receipt.hosts

    @property
    def no_trace(self) -> str:
        """Why there is nothing to measure, empty when there is a usable trace."""
        receipt = self.verdict.receipt
        if receipt.ranks_seen:
            return ""
        if receipt.traces:
            return f"None of the {receipt.traces:,} traces can be used: they were rejected or are still arriving, see above."
        return "No profiler window has arrived yet, so nothing was measured."

    @property
    def named_ranks(self) -> list[int]:
        """Ranks that the findings name, the costliest finding first."""
        ranks = [
            rank for finding in self.verdict.findings for rank in finding.ranks or (finding.rank,) if rank is not None
        ]
        return list(dict.fromkeys(ranks))


def read_subject(questions: Questions, job: str, attempt: int) -> Subject:
    """Judges the attempt: the most expensive part of a page. Raises AnnotqError as Questions.ask does."""
    from annotq.collector.stragglers import straggler_report

    before = len(questions.asked)
    verdict = straggler_report(questions.ask, job, attempt)
    return Subject(questions, job, attempt, verdict, tuple(questions.asked[before:]))
