"""The findings: at most five sentences with numbers, and the comparisons they rest on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from annotq.cli.html.figure import Figure
from annotq.cli.html.rendering import render
from annotq.cli.html.subject import Subject

if TYPE_CHECKING:
    from annotq.collector.findings import Finding, RegionFinding
    from annotq.collector.report import Report

ANCHOR, TITLE = "findings", "Findings"
FINDINGS_SAID = 3
# Rows of a finding's table; a slow GPU has hundreds.
REGIONS_SHOWN = 12


@dataclass(frozen=True)
class Comparison:
    """A region of a finding, as written on the page."""

    region: str
    phase: str
    ratio: float
    low: float | None
    high: float | None
    typical: float
    slowest: str
    excess_ns: float
    single_kernels: str


@dataclass(frozen=True)
class Evidence:
    """The regions of one finding that cost most, and how many are left out."""

    title: str
    rows: list[Comparison]
    left_out: int


def figure(subject: Subject) -> Figure:
    verdict = subject.verdict
    body = render(
        "findings.html",
        verdict=WORDS[verdict.verdict],
        colour=COLOURS[verdict.verdict],
        sentences=sentences(verdict),
        evidence=[_evidence(finding) for finding in verdict.findings[:FINDINGS_SAID] if finding.regions],
        held_up=_held_up(verdict),
    )
    return Figure(ANCHOR, TITLE, Markup(), body, subject.verdict_queries)


WORDS = {
    "straggler": "straggler",
    "imbalance": "imbalance, no straggler",
    "none": "no straggler",
    "inconclusive": "inconclusive",
}
COLOURS = {"straggler": "bad", "imbalance": "bad", "none": "good", "inconclusive": ""}


def sentences(verdict: Report) -> list[str]:
    """At most five, the most important first, in the words of `annotq stragglers`."""
    from annotq.collector.explain import explain_absence, explain_finding

    if verdict.verdict in ("none", "inconclusive"):
        said = [explain_absence(verdict)]  # up to three sentences
        said += [explain_finding(finding) for finding in verdict.findings[:1]]
    else:
        said = [explain_finding(finding) for finding in verdict.findings[:FINDINGS_SAID]]
        left = len(verdict.findings) - len(said)
        if left > 0:
            said.append(f"{left} more finding{'s cost' if left > 1 else ' costs'} less: annotq stragglers lists all.")
    if not any(finding.caused_wait for finding in verdict.findings):
        said += _longest_wait(verdict)
    return said[:5]


def _longest_wait(verdict: Report) -> list[str]:
    """The collectives in which a rank waits longest."""
    from annotq.collector.explain import explain_waits

    judged = [row for row in verdict.waits if row.wait_ns is not None]
    if not judged:
        return []
    longest = max(judged, key=lambda row: row.wait_ns or 0)
    # One sentence per kind that was judged, in their order; it names the group where there are several.
    kinds = list(dict.fromkeys(row.kind for row in verdict.waits if row.judged))
    return [explain_waits(verdict.waits)[kinds.index(longest.kind)]]


def _evidence(finding: Finding) -> Evidence:
    shown = sorted(finding.regions, key=lambda row: -row.excess_ns)[:REGIONS_SHOWN]
    kept = {id(row) for row in shown}
    host = f" (host {finding.host})" if finding.host else ""
    title = f"Rank {finding.rank}{host} against the ranks' median, step by step"
    rows = [_comparison(row) for row in finding.regions if id(row) in kept]
    return Evidence(title, rows, len(finding.regions) - len(rows))


def _comparison(row: RegionFinding) -> Comparison:
    from annotq.collector.explain import explain_single_kernels

    evidence = row.evidence
    steps = len(evidence.steps)
    return Comparison(
        evidence.region,
        evidence.phase,
        evidence.ratio,
        evidence.ratio_low,
        evidence.ratio_high,
        row.typical_ratio,
        f"{round(evidence.slowest_share * steps)} of {steps}",
        evidence.median_excess_ns,
        explain_single_kernels(row) if row.single_kernels_matter else "",
    )


def _held_up(verdict: Report) -> list[str]:
    from annotq.collector.explain import explain_single_kernels

    return [explain_single_kernels(row) for row in verdict.held_up[:REGIONS_SHOWN]]
