"""Sentences for people: what a finding, or its absence, means."""

from __future__ import annotations

import re
from collections.abc import Iterable
from statistics import median

from annotq.collector.evidence import against_others
from annotq.collector.stragglers import Finding, RegionFinding, Report
from annotq.collector.waits import RankWait

# How many ranks a sentence lists by name.
RANKS_NAMED = 8


def duration_text(nanoseconds: float) -> str:
    """A duration with a readable unit: "16.3 ms", "10 us", "7.03 ms"."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(nanoseconds) >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.3g} ns"


def patterns(names: Iterable[str]) -> list[str]:
    """Region names with their numbers folded where several differ in nothing else: layers.0.mlp, layers.1.mlp -> layers.*.mlp."""
    folded: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        folded.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    return [pattern if len(members) > 1 else members[0] for pattern, members in folded.items()]


def explain_finding(finding: Finding) -> str:
    """One sentence: who, where, how much, how sure, at what cost."""
    names = ", ".join(patterns(row.evidence.region for row in finding.regions))
    phases = " and ".join(sorted({row.evidence.phase for row in finding.regions}, reverse=True))
    usual = median(row.typical_ratio for row in finding.regions)
    steps = max(len(row.evidence.steps) for row in finding.regions)
    share = min(row.evidence.slowest_share for row in finding.regions)
    host = f" (host {finding.host})" if finding.host else ""
    ranks = min(row.evidence.ranks for row in finding.regions)
    other = f" ({against_others(usual, ranks):.2f} times the other rank)" if ranks == 2 else ""
    text = (
        f"Rank {finding.rank}{host} is slow in {names}, {phases}: {usual:.2f} times the ranks' median{other}, "
        f"slowest in {_share_text(share, steps, len(finding.regions))} steps; "
        f"it costs {duration_text(finding.cost_ns_per_step)} a step"
    )
    if finding.single_kernels_matter:
        text += f" ({duration_text(finding.typical_cost_ns_per_step)} without single kernels that were held up)"
    if finding.caused_wait:
        text += f", and the others wait {duration_text(finding.caused_wait.wait_ns)} a step for it"
        if finding.caused_wait.steps < steps:
            text += f" in the {finding.caused_wait.steps} of {steps} steps in which it arrives last"
    return text + "."


def _share_text(share: float, steps: int, regions: int) -> str:
    """How many of the steps, for the region with the smallest share."""
    if share == 1:
        return f"all {steps}"
    return f"{'at least ' if regions > 1 else ''}{round(share * steps)} of {steps}"


def explain_single_kernels(row: RegionFinding) -> str:
    """What single kernels did to a region, next to what its code costs."""
    nodes = row.nodes
    reads = (
        f"{row.evidence.region} {row.evidence.phase} on rank {row.evidence.rank} reads {row.evidence.ratio:.1f} times"
    )
    if nodes is None or nodes.held_ns is None or nodes.held_median_ns is None:
        return f"{reads}: other kernels last longer in every step; by each node's own median it is {row.typical_ratio:.2f} times."
    return (
        f"{reads}: in {nodes.held_steps} of {nodes.steps} steps single kernels ({nodes.held_kernels} in all) lasted about "
        f"{duration_text(nodes.held_ns)} instead of {duration_text(nodes.held_median_ns)}; "
        f"by each node's own median it is {row.typical_ratio:.2f} times."
    )


def explain_absence(report: Report) -> str:
    """Why there is no finding: what was compared and what came closest, or what is missing."""
    if report.verdict == "inconclusive":
        return f"No verdict: {report.reason}."
    of_those = " of those that could be compared" if report.not_judged else ""
    text = f"No rank{of_those} is slower than the others: {len(report.evidence)} comparisons over {report.steps} steps"
    closest = report.closest
    if report.held_up:
        text = (
            f"No rank{of_those} runs slower code than the others: {len(report.evidence)} comparisons over {report.steps} "
            f"steps; {len(report.held_up)} of them read slower through single kernels only"
        )
    elif closest:
        text += (
            f", the largest ratio is {closest.ratio:.2f} (rank {closest.rank}, {closest.region} {closest.phase}, "
            f"slowest in {closest.slowest_share:.0%} of the steps)"
        )
    if report.not_judged:
        ranks = ", ".join(map(str, report.not_judged))
        text += f". Not judged, too few steps in common with the others: rank {ranks}"
    return text + "."


def explain_waits(waits: Iterable[RankWait]) -> list[str]:
    """One sentence per kind of collective: how long ranks wait, who is last, how long the transfer takes."""
    kinds: dict[tuple[str | int | None, ...], list[RankWait]] = {}
    for row in waits:
        kinds.setdefault(row.kind, []).append(row)
    judged = [rows for rows in kinds.values() if any(row.judged for row in rows)]
    several = len({rows[0].group for rows in judged}) > 1
    sentences = [_wait_sentence(rows, f" of group {rows[0].group}" if several else "") for rows in judged]
    left_out = {
        row.title: max(other.collectives - other.judged for other in waits if other.title == row.title)
        for rows in kinds.values()
        for row in rows
        if row.judged < row.collectives
    }
    if left_out:
        names = ", ".join(f"{count} {title}" for title, count in left_out.items())
        sentences.append(f"Not judged (annotq views collectives says when): {names}.")
    return sentences


def _wait_sentence(rows: list[RankWait], group: str) -> str:
    kind = f"{rows[0].title}{group}"
    waits = [row.wait_ns for row in rows if row.wait_ns is not None]
    judged = max(row.judged for row in rows)
    often = [row for row in sorted(rows, key=lambda row: -row.last) if row.last]
    last = ", ".join(f"rank {row.rank} in {row.last}" for row in often[:RANKS_NAMED])
    if len(often) > RANKS_NAMED:
        last += f", and {len(often) - RANKS_NAMED} other ranks"
    return (
        f"{kind}: {judged} collectives, waits of {duration_text(min(waits))} to {duration_text(max(waits))} "
        f"(median by rank); last to arrive: {last}."
    )
