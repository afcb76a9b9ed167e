"""What a report said about a job, held against the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from page import percent
from simulated_causes import BLAMING, Cause
from simulated_job import Plan

from annotq.collector.stragglers import Report


@dataclass(frozen=True)
class Named:
    """One finding: its cause, the ranks that it names (for stage, imbalance and global those are not blamed), and when."""

    cause: str
    ranks: frozenset[int]
    regions: frozenset[str]
    since_step: int | None
    until_step: int | None


@dataclass(frozen=True)
class Outcome:
    """truth, blamed: the ranks to be blamed, and those that were.

    found: something was reported that points at the truth. right_rank: exactly the true ranks are blamed, nobody for a
    cause that blames nobody. right_cause: a finding with the true cause and its ranks, for every cause. wrong_rank: a
    rank was blamed that has nothing wrong with it.
    """

    verdict: str
    truth: frozenset[int]
    blamed: frozenset[int]
    found: bool
    right_rank: bool
    right_cause: bool
    wrong_rank: bool
    named: tuple[Named, ...]
    reason: str = ""

    @property
    def right(self) -> bool:
        return self.right_rank and self.right_cause


def judge(report: Report, plan: Plan) -> Outcome:
    named = tuple(findings(report))
    blamed = frozenset(rank for one in named if one.cause in BLAMING for rank in one.ranks)
    truth = frozenset(rank for cause in plan.causes if cause.name in BLAMING for rank in cause.ranks)
    said = {one.cause for one in named} | ({"imbalance"} if report.verdict == "imbalance" else set())
    blaming = any(cause.name in BLAMING for cause in plan.causes)
    right_cause = bool(plan.causes) and all(_is_named(cause, named, said) for cause in plan.causes)
    return Outcome(
        verdict=report.verdict,
        truth=truth,
        blamed=blamed,
        found=bool(blamed & truth) if blaming else bool(said),
        right_rank=blamed == truth if blaming else not blamed and bool(said),
        right_cause=right_cause,
        wrong_rank=bool(blamed - truth),
        named=named,
        reason=report.reason,
    )


def shares(outcomes: Sequence[Outcome]) -> str:
    """found / right rank / right cause / wrong rank, in per cent of the jobs; "-" of none."""
    if not outcomes:
        return "-"
    answers = (
        [one.found for one in outcomes],
        [one.right_rank for one in outcomes],
        [one.right_cause for one in outcomes],
        [one.wrong_rank for one in outcomes],
    )
    return " / ".join(map(percent, answers))


def findings(report: Report) -> list[Named]:
    return [
        Named(
            cause=finding.cause,
            ranks=frozenset(finding.ranks if finding.rank is None else (finding.rank,)),
            regions=frozenset(row.evidence.region for row in finding.regions),
            since_step=finding.since_step,
            until_step=finding.until_step,
        )
        for finding in report.findings
    ]


def _is_named(cause: Cause, named: tuple[Named, ...], said: set[str]) -> bool:
    if cause.name in ("imbalance", "global"):
        return cause.name in said
    same = [one for one in named if one.cause == cause.name]
    together = frozenset(rank for one in same for rank in one.ranks)
    return frozenset(cause.ranks) <= together
